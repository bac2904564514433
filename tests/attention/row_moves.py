"""Moves between random layouts with a model in plain Python, kernels by name, and memory that is full of garbage."""

from __future__ import annotations

import functools
import importlib
import importlib.util
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple
from unittest import mock

import pytest
import torch
from hypothesis import strategies as st

from te_pkg.attention import PackedLayout, kernels
from te_pkg.attention.kernels import PaddingRows, RowMove, Slots
from tests.attention.layouts import Rows, layout_of, layouts

__all__ = [
    "DTYPES",
    "KERNELS",
    "Move",
    "expected_rows",
    "kernel_named",
    "moves",
    "poisoned_memory",
    "random_rows",
    "same_bits",
    "trailing_shapes",
]

KERNELS = ("reference", "cpu", "triton")

DTYPES = [
    torch.bool,
    torch.uint8,
    torch.int8,
    torch.uint16,
    torch.int16,
    torch.int32,
    torch.int64,
    torch.bfloat16,
    torch.float16,
    torch.float32,
    torch.float64,
    torch.complex64,
    torch.complex128,
    torch.float8_e4m3fn,
    torch.float8_e5m2,
    torch.float8_e8m0fnu,
    torch.float4_e2m1fn_x2,
]

trailing_shapes = st.sampled_from([(), (1,), (3,), (0,), (2, 4), (3, 1, 5), (130,), (2, 160)])


class Move(NamedTuple):
    """The same sequences in two buffers."""

    source: PackedLayout
    target: PackedLayout
    source_rows: Rows
    target_rows: Rows

    @property
    def unknown(self) -> RowMove:
        """As a kernel gets it where the host knows nothing."""
        source, target = self.source, self.target
        return RowMove(
            source.cu_seqlens,
            Slots(source.cu_seqlens_padded, source.total_tokens),
            Slots(target.cu_seqlens_padded, target.total_tokens),
        )

    @property
    def known(self) -> RowMove:
        """As a kernel gets it where the host knows all."""
        source, target = self.source, self.target
        return RowMove(
            source.cu_seqlens,
            Slots(source.cu_seqlens_padded, source.total_tokens, source.slot_offsets),
            Slots(target.cu_seqlens_padded, target.total_tokens, target.slot_offsets),
            source.lengths,
            source.real_tokens if source.real_tokens is not None else -1,
        )

    def padding(self, *, known: bool) -> PaddingRows:
        """The padding rows of the source."""
        move = self.known if known else self.unknown
        return PaddingRows(move.cu_seqlens, move.source, move.lengths, move.real)


@st.composite
def moves(draw: st.DrawFn, *, max_sequences: int = 6, max_length: int = 9) -> Move:
    """Any kind of padding on either side, also none."""
    source = draw(layouts(max_sequences=max_sequences, max_length=max_length))
    lengths = source.rows.lengths
    gap = st.just(0) if draw(st.booleans()) else st.integers(0, 4)
    slots = tuple(length + draw(gap) for length in lengths)
    target = Rows(lengths, slots, sum(slots) + draw(gap))
    return Move(source.layout, layout_of(target), source.rows, target)


def expected_rows(x: torch.Tensor, source: Rows, target: Rows, fill: Any) -> torch.Tensor:
    """What a person would do with a pencil."""
    place_of = {owner: row for row, owner in enumerate(source.owners) if owner is not None}
    shape = (target.total, *x.shape[1:])
    out = torch.full(shape, fill, dtype=x.dtype) if fill else torch.zeros(shape, dtype=x.dtype)
    for row, owner in enumerate(target.owners):
        if owner is not None:
            _bytes_of(out)[row] = _bytes_of(x)[place_of[owner]]
    return out


def random_rows(rows: int, trailing: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """Any bits: NaN with a payload, infinities, subnormal numbers."""
    if dtype == torch.bool:
        return torch.randint(0, 2, (rows, *trailing)).bool()
    itemsize = torch.empty(0, dtype=dtype).itemsize
    return torch.randint(0, 256, (rows, *trailing, itemsize), dtype=torch.uint8).view(dtype).squeeze(-1)


def same_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    return a.dtype == b.dtype and a.shape == b.shape and torch.equal(_bytes_of(a), _bytes_of(b))


def _bytes_of(x: torch.Tensor) -> torch.Tensor:
    return x.unsqueeze(-1).view(torch.uint8)


@contextmanager
def poisoned_memory() -> Iterator[None]:
    """Whatever is allocated holds bytes of 255: NaN in every format of floating point."""

    def poison(allocate: Any) -> Any:
        @functools.wraps(allocate)
        def poisoned(*args: Any, **kwargs: Any) -> torch.Tensor:
            tensor = allocate(*args, **kwargs)
            if tensor.numel() and tensor.device.type != "meta":
                tensor.untyped_storage().fill_(255)
            return tensor

        return poisoned

    with (
        mock.patch.object(torch, "empty", poison(torch.empty)),
        mock.patch.object(torch, "empty_like", poison(torch.empty_like)),
        mock.patch.object(torch.Tensor, "new_empty", poison(torch.Tensor.new_empty)),
    ):
        yield


def kernel_named(name: str) -> ModuleType:
    """A kernel that runs on the CPU: Triton under its interpreter. Skips where Triton is missing."""
    if name != "triton":
        return importlib.import_module(f"te_pkg.attention.kernels.{name}")
    pytest.importorskip("triton", reason="needs the extra 'triton'")
    return _interpreted()


@functools.cache
def _interpreted() -> ModuleType:
    # A second copy of the module: the first one stays what it is in this process.
    path = Path(kernels.__file__).with_name("triton_rows.py")
    spec = importlib.util.spec_from_file_location("tests.attention.interpreted_triton_rows", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    with mock.patch.dict(os.environ, TRITON_INTERPRET="1"):
        spec.loader.exec_module(module)
    return module
