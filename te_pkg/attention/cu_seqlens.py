"""Cumulative sequence lengths: where each sequence of a packed buffer begins and ends.

``b`` sequences, ``s`` rows of the longest one. Offsets count rows, int32, ``[b + 1]``, and start at 0.
"""

from __future__ import annotations

import operator
from typing import SupportsIndex, cast

import torch
from torch._C import _get_tracing_state
from torch.compiler import is_compiling

from te_pkg.attention.caching import Device, TensorCache
from te_pkg.attention.errors import ArgumentTypeError, OffsetOverflowError, SizeError

__all__ = ["get_full_cu_seqlens"]

_INT32_MAX = 2**31 - 1


def get_full_cu_seqlens(batch_size: SupportsIndex, max_seqlen: SupportsIndex, device: Device = None) -> torch.Tensor:
    """Offsets of a batch whose sequences all fill their slots: ``[0, s, 2s, ..., b * s]``.

    The tensor is kept and shared between callers: do not change it (one that was changed in place is replaced at the
    next call). It is an ordinary tensor also when first made under ``torch.inference_mode``, so it serves inference and
    training. Under ``torch.compile``, ``torch.export``, ONNX export, fake tensors, functorch transforms and CUDA graph
    capture a new one is made by operations on the device, and nothing is kept; sizes may be symbolic there.

    >>> get_full_cu_seqlens(3, 512)
    tensor([   0,  512, 1024, 1536], dtype=torch.int32)
    >>> get_full_cu_seqlens(0, 512)
    tensor([0], dtype=torch.int32)

    Drop-in for Transformer Engine's function of this name. Source: the reports in Transformer Engine PR 2728.

    Args:
        batch_size: ``b``, number of sequences, at least 0. Anything with ``__index__``; to read a size from a tensor on
            a device is a host sync.
        max_seqlen: ``s``, rows of each sequence, at least 0. Likewise.
        device: where; ``None`` is torch's current default, ``"cuda"`` the current CUDA device.

    Returns:
        int32 ``[b + 1]`` on ``device``.

    Raises:
        ArgumentTypeError: a ``TypeError``; a size is no integer. A bool is none.
        SizeError: a ``ValueError``; a size is negative.
        OffsetOverflowError: an ``OverflowError``; ``b * s`` is beyond int32. Where sizes are symbolic, this and the one
            before become a guard or an assertion of the program, which fails with torch's own error.
    """
    # Not `isinstance`: it would let a bool through, and `True` is the same key as 1.
    if type(batch_size) is not int or type(max_seqlen) is not int:
        batch_size, max_seqlen = _integers(batch_size=batch_size, max_seqlen=max_seqlen)
    return _full_cu_seqlens.get((batch_size, max_seqlen), device)


def _make_full_cu_seqlens(batch_size: int, max_seqlen: int, *, device: Device) -> torch.Tensor:
    _check_sizes(batch_size, max_seqlen)
    # A product, not a range with a step: a step of 0 is refused, and a symbolic one would be fixed as not 0.
    return torch.arange(batch_size + 1, dtype=torch.int32, device=device) * max_seqlen


_full_cu_seqlens = TensorCache("full_cu_seqlens", _make_full_cu_seqlens, max_entries=256)


def _integers(**sizes: SupportsIndex) -> list[int]:
    integers: list[int] = []
    faults: list[str] = []
    for name, size in sizes.items():
        if isinstance(size, torch.SymInt) or (isinstance(size, torch.Tensor) and _get_tracing_state() is not None):
            integers.append(cast(int, size))  # a symbol; to ask for its value would fix it
            continue
        try:
            if isinstance(size, bool) or (isinstance(size, torch.Tensor) and size.dtype == torch.bool):
                raise TypeError
            integers.append(int(operator.index(size)))
        except TypeError:
            faults.append(f"{name} must be an integer, got {size!r}")
    if faults:
        raise ArgumentTypeError("\n".join(faults))
    return integers


def _check_sizes(batch_size: int, max_seqlen: int) -> None:
    if is_compiling() or isinstance(batch_size, torch.SymInt) or isinstance(max_seqlen, torch.SymInt):
        # Becomes a guard, or an assertion in the exported program; a message would fail a strict export (torch 2.13).
        for holds in (batch_size >= 0, max_seqlen >= 0, batch_size * max_seqlen <= _INT32_MAX):
            torch._check(holds)  # type: ignore[no-untyped-call]
        return
    if isinstance(batch_size, torch.Tensor) or isinstance(max_seqlen, torch.Tensor):
        return  # `torch.jit.trace`: a comparison would be recorded with its present answer
    sizes = {"batch_size": batch_size, "max_seqlen": max_seqlen}
    negative = [f"{name} must not be negative, got {size!r}" for name, size in sizes.items() if size < 0]
    if negative:
        raise SizeError("\n".join(negative))
    end = batch_size * max_seqlen
    if end > _INT32_MAX:
        raise OffsetOverflowError(
            f"{end} is beyond int32: batch_size {batch_size!r} times max_seqlen {max_seqlen!r} rows, expected at most "
            f"{_INT32_MAX}; hint: split the batch",
            end,
        )
