"""Cumulative sequence lengths: where each sequence of a packed buffer begins and ends.

``b`` sequences, ``s`` rows of the longest one. Offsets count rows, int32, ``[b + 1]``, and start at 0.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import accumulate
from typing import SupportsIndex

import torch
from torch.compiler import is_compiling

from te_pkg.attention.caching import Device, TensorCache
from te_pkg.attention.errors import ArgumentTypeError, LayoutError, OffsetOverflowError, SizeError
from te_pkg.attention.layout_checks import host_lengths
from te_pkg.attention.offsets import (
    INT32_MAX,
    integers,
    offsets_of_counts,
    offsets_of_positions,
    offsets_of_token_mask,
    ordinary,
    place_of,
    refuse_copy,
    shape_faults,
    tensor_of,
    why_unreadable,
)

__all__ = [
    "cu_seqlens_from_lengths",
    "cu_seqlens_from_position_ids",
    "cu_seqlens_from_token_mask",
    "get_cu_seqlens",
    "get_full_cu_seqlens",
]


def get_full_cu_seqlens(batch_size: SupportsIndex, max_seqlen: SupportsIndex, device: Device = None) -> torch.Tensor:
    """Offsets of a batch whose sequences all fill their slots: ``[0, s, 2s, ..., b * s]``.

    The tensor is kept and shared between callers: do not change it (one that was changed in place is replaced at the
    next call). It is an ordinary tensor also when first made under ``torch.inference_mode``, so it serves inference and
    training. Under ``torch.compile``, ``torch.export``, ONNX export, fake tensors, functorch transforms and CUDA graph
    capture a new one is made by operations on the device, and nothing is kept; sizes may be symbolic there. A size that
    ``torch.export`` knows as a ``Dim`` needs a ``max``, at most ``(2**31 - 1) // s``, as torch's own error suggests.

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
        batch_size, max_seqlen = integers(batch_size=batch_size, max_seqlen=max_seqlen)
    return _full_cu_seqlens.get((batch_size, max_seqlen), device)


def cu_seqlens_from_lengths(lengths: Iterable[SupportsIndex] | torch.Tensor, device: Device = None) -> torch.Tensor:
    """Offsets of sequences with these numbers of rows: ``[0, n0, n0 + n1, ...]``.

    No host sync, unless a tensor on a CUDA device is wanted on the CPU. Values on the host are checked; those on a
    device are not read.

    >>> cu_seqlens_from_lengths([3, 2, 4])
    tensor([0, 3, 5, 9], dtype=torch.int32)

    Args:
        lengths: ``b`` numbers, or an int32 or int64 tensor ``[b]``.
        device: where; ``None`` is that of a tensor, else torch's current default.

    Returns:
        int32 ``[b + 1]``, an ordinary tensor also under inference mode.

    Raises:
        ArgumentTypeError: a ``TypeError``; an entry is no integer, or there are no entries to take.
        LayoutError: a ``ValueError``; an entry is negative, or a tensor is not ``[b]`` or holds no integers.
        OffsetOverflowError: an ``OverflowError``; the sum is beyond int32.
        CaptureError: a ``RuntimeError``; a copy between host and device under CUDA graph capture.
    """
    if isinstance(lengths, torch.Tensor):
        faults = shape_faults("lengths", lengths, "[b]")
        if faults:
            raise LayoutError(faults)
        place = lengths.device if device is None else place_of(device)
        if lengths.device.type == "cpu" and why_unreadable(lengths) is None:
            return tensor_of(_check_lengths(lengths), place)
        refuse_copy(lengths.device, place)
        with ordinary():
            return offsets_of_counts(lengths).to(place, non_blocking=place.type != "cpu")
    return tensor_of(_check_lengths(lengths), place_of(device))


def cu_seqlens_from_token_mask(token_mask: torch.Tensor) -> torch.Tensor:
    """Offsets of the packed sequences of a batch, each as long as its row of the mask has real tokens. No host sync.

    >>> cu_seqlens_from_token_mask(torch.tensor([[True, True, False], [True, False, False]]))
    tensor([0, 2, 3], dtype=torch.int32)

    Args:
        token_mask: ``[b, s]``, bool with True for a real token, or integers with 0 for padding. Real tokens may stand
            anywhere in their row.

    Returns:
        int32 ``[b + 1]``, an ordinary tensor also under inference mode.

    Raises:
        LayoutError: a ``ValueError``; the mask is not 2-D, or is floating point.
        OffsetOverflowError: an ``OverflowError``; more tokens than int32 counts, where that is known without a sync.
    """
    return offsets_of_token_mask(token_mask, "token_mask")


def cu_seqlens_from_position_ids(position_ids: torch.Tensor) -> torch.Tensor:
    """Offsets of packed sequences: one starts where a position is not greater than the one before, and in each row.

    One host sync on a CUDA device: the positions decide how many sequences there are. Under export that number is
    symbolic.

    >>> cu_seqlens_from_position_ids(torch.tensor([0, 1, 2, 0, 1, 0, 1, 2, 3]))
    tensor([0, 3, 5, 9], dtype=torch.int32)
    >>> cu_seqlens_from_position_ids(torch.tensor([2, 3, 4, 2, 3]))  # need not start at 0
    tensor([0, 3, 5], dtype=torch.int32)

    Args:
        position_ids: integers ``[t]``, or ``[n, t / n]``.

    Returns:
        int32 ``[b + 1]``, an ordinary tensor also under inference mode.

    Raises:
        LayoutError: a ``ValueError``; neither 1-D nor 2-D, or no integers.
        OffsetOverflowError: an ``OverflowError``; more rows than int32 counts.
        HostReadError: a ``RuntimeError``; under CUDA graph capture.
    """
    return offsets_of_positions(position_ids, "position_ids")


def get_cu_seqlens(padding_mask: torch.Tensor) -> torch.Tensor:
    """Offsets of the packed sequences of a batch, from a mask that is True on *padding*. No host sync.

    >>> get_cu_seqlens(torch.tensor([[False, False, True], [False, True, True]])[:, None, None])
    tensor([0, 2, 3], dtype=torch.int32)

    Drop-in for Transformer Engine's function of this name.

    Args:
        padding_mask: bool or integers ``[b, 1, 1, s]``, or ``[b, s]``.

    Returns:
        int32 ``[b + 1]``, an ordinary tensor also under inference mode.

    Raises:
        LayoutError: a ``ValueError``; the mask has another shape, or is floating point.
        OffsetOverflowError: an ``OverflowError``; more tokens than int32 counts, where that is known without a sync.
    """
    mask = padding_mask
    if isinstance(mask, torch.Tensor) and mask.ndim != 2:
        if mask.ndim != 4 or mask.shape[1] != 1 or mask.shape[2] != 1:
            raise LayoutError([f"padding_mask has shape {list(mask.shape)}, expected [b, 1, 1, s]"])
        mask = mask[:, 0, 0]
    return offsets_of_token_mask(mask, "padding_mask", real=False)


def _check_lengths(lengths: Iterable[SupportsIndex] | torch.Tensor) -> list[int]:
    """The offsets on the host."""
    host, strange, faults = host_lengths(lengths)
    if strange:
        raise ArgumentTypeError("\n".join([*strange, *faults]))
    if faults:
        raise LayoutError(faults)
    offsets = list(accumulate(host, initial=0))
    if offsets[-1] > INT32_MAX:
        raise OffsetOverflowError(
            f"{offsets[-1]} is beyond int32: the sum of {len(host)} lengths, expected at most {INT32_MAX}; hint: split "
            "the batch",
            offsets[-1],
        )
    return offsets


def _make_full_cu_seqlens(batch_size: int, max_seqlen: int, *, device: Device) -> torch.Tensor:
    _check_sizes(batch_size, max_seqlen)
    # A product, not a range with a step: a step of 0 is refused, and a symbolic one would be fixed as not 0.
    return torch.arange(batch_size + 1, dtype=torch.int32, device=device) * max_seqlen


_full_cu_seqlens = TensorCache("full_cu_seqlens", _make_full_cu_seqlens, max_entries=256)


def _check_sizes(batch_size: int, max_seqlen: int) -> None:
    if is_compiling() or isinstance(batch_size, torch.SymInt) or isinstance(max_seqlen, torch.SymInt):
        # Becomes a guard, or an assertion in the exported program; a message would fail a strict export (torch 2.13).
        # A bound of the one size rather than of the product, where that is possible: it is one that a `Dim` can keep.
        if type(max_seqlen) is int and max_seqlen > 0:
            fits = batch_size <= INT32_MAX // max_seqlen
        elif type(batch_size) is int and batch_size > 0:
            fits = max_seqlen <= INT32_MAX // batch_size
        else:
            fits = batch_size * max_seqlen <= INT32_MAX
        for holds in (batch_size >= 0, max_seqlen >= 0, fits):
            torch._check(holds)  # type: ignore[no-untyped-call]
        return
    if isinstance(batch_size, torch.Tensor) or isinstance(max_seqlen, torch.Tensor):
        return  # `torch.jit.trace`: a comparison would be recorded with its present answer
    sizes = {"batch_size": batch_size, "max_seqlen": max_seqlen}
    negative = [f"{name} must not be negative, got {size!r}" for name, size in sizes.items() if size < 0]
    if negative:
        raise SizeError("\n".join(negative))
    end = batch_size * max_seqlen
    if end > INT32_MAX:
        raise OffsetOverflowError(
            f"{end} is beyond int32: batch_size {batch_size!r} times max_seqlen {max_seqlen!r} rows, expected at most "
            f"{INT32_MAX}; hint: split the batch",
            end,
        )
