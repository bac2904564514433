"""Layouts, rows and graphs for the tests that need a GPU. Imported without hypothesis, as they are."""

from __future__ import annotations

import random
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import accumulate, pairwise
from typing import Any

import torch

from te_pkg.attention import PackedLayout
from te_pkg.attention.capture import mark_capturing


def random_layout(
    seed: int, lengths: list[int] | None = None, *, gap: int = 3, capacity: int = 5, device: str = "cpu"
) -> PackedLayout:
    """Sequences of odd lengths, empty ones among them, in slots with up to ``gap`` rows more."""
    rng = random.Random(seed)
    if lengths is None:
        lengths = [rng.choice((0, 1, 2, 17, 33, rng.randrange(90))) for _ in range(rng.randrange(1, 12))]
    slots = [length + rng.randint(0, gap) for length in lengths]
    cu, padded = ([*accumulate(rows, initial=0)] for rows in (lengths, slots))
    layout = PackedLayout.from_cu_seqlens(
        torch.tensor(cu, dtype=torch.int32), torch.tensor(padded, dtype=torch.int32), padded[-1] + capacity
    )
    return layout.to(device)


def random_rows(total: int, shape: tuple[int, ...], dtype: torch.dtype, seed: int = 0) -> torch.Tensor:
    """On the CPU; every bit pattern for numbers of one or two bytes, NaN among them."""
    generator = torch.Generator().manual_seed(seed)
    if dtype == torch.bool:
        return torch.randint(0, 2, (total, *shape), generator=generator).bool()
    size = torch.empty(0, dtype=dtype).element_size()
    numbers = torch.randint(0, 256, (total, *shape, size), generator=generator, dtype=torch.uint8)
    return numbers.view(dtype).reshape(total, *shape)


def moved(x: torch.Tensor, source: PackedLayout, target: PackedLayout, fill: float = 0) -> torch.Tensor:
    """The readable truth on the CPU: sequence by sequence."""
    out = torch.full((target.total_tokens, *x.shape[1:]), fill, dtype=torch.float32).to(x.dtype)
    starts = source.cu_seqlens_padded.tolist(), target.cu_seqlens_padded.tolist()
    ends = source.cu_seqlens.tolist()
    for i, length in enumerate(b - a for a, b in pairwise(ends)):
        out[starts[1][i] : starts[1][i] + length] = x[starts[0][i] : starts[0][i] + length]
    return out


def padding_mask(layout: PackedLayout) -> torch.Tensor:
    return ~layout.to("cpu").token_mask()


def assert_same_bits(found: torch.Tensor, expected: torch.Tensor) -> None:
    assert found.dtype == expected.dtype
    assert found.shape == expected.shape
    found, expected = (t.detach().cpu().contiguous().flatten().view(torch.uint8) for t in (found, expected))
    assert torch.equal(found, expected)


def capture(work: Callable[[], Any], *, warm_up: bool = True) -> tuple[torch.cuda.CUDAGraph, Any]:
    """A graph of ``work`` and what it returned there; warmed up as torch advises, on a stream beside."""
    if warm_up:
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(2):
                work()
        torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = work()
    return graph, result


@contextmanager
def no_waiting() -> Iterator[None]:
    """The device itself refuses whatever makes the host wait."""
    torch.cuda.synchronize()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch calls the mode a prototype
        torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


class Buffers:
    """Static buffers of a graph: offsets of ``b`` sequences in two layouts, and rows; refilled between replays."""

    def __init__(self, device: str, b: int = 6, s: int = 40) -> None:
        self.b, self.s, self.total = b, s, b * (s + 4) + 3
        self.cu, self.source, self.target = (torch.zeros(b + 1, dtype=torch.int32, device=device) for _ in range(3))
        self.x = torch.zeros(self.total, 3, 11, device=device)

    def refill(self, seed: int) -> tuple[torch.Tensor, PackedLayout, PackedLayout]:
        rng = random.Random(seed)
        lengths = [rng.randrange(self.s + 1) for _ in range(self.b)]
        layouts = []
        for i in (1, 2):
            layout = random_layout(seed + i, lengths, gap=4, capacity=0)
            layouts.append(PackedLayout.from_cu_seqlens(layout.cu_seqlens, layout.cu_seqlens_padded, self.total))
        x = torch.randn(self.total, 3, 11, generator=torch.Generator().manual_seed(seed))
        x[padding_mask(layouts[0])] = torch.nan
        for buffer, value in (
            (self.cu, layouts[0].cu_seqlens),
            (self.source, layouts[0].cu_seqlens_padded),
            (self.target, layouts[1].cu_seqlens_padded),
            (self.x, x),
        ):
            buffer.copy_(value)
        return x, layouts[0], layouts[1]

    def layout(self, padded: torch.Tensor) -> PackedLayout:
        with mark_capturing():  # in the warm-up too: nothing is read, as in the capture
            return PackedLayout.from_cu_seqlens(self.cu, padded, self.total, self.s)
