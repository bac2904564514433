"""What the host knows of a layout, for kernels that are faster with it.

It is left out where it would outlive the call: under CUDA graph capture, whose graph runs again after the offsets were
refilled, and under ``torch.compile`` and the like, where every length would become a constant of the program.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch.compiler import is_compiling

from te_pkg.attention.caching import is_tracing
from te_pkg.attention.layout import PackedLayout
from te_pkg.attention.offsets import why_unreadable

__all__ = ["HostRows", "gaps_of", "host_rows", "spans_of"]


class HostRows(NamedTuple):
    """A layout on the host: ``b`` lengths, ``b + 1`` slot offsets, and the number of real rows."""

    lengths: Sequence[int]
    slots: Sequence[int]
    real: int


def host_rows(layout: PackedLayout, *tensors: torch.Tensor, read: bool = True) -> HostRows | None:
    """What the host knows, or finds in its own memory; None where that is nothing, or may not be relied on.

    Offsets on the CPU are read where the layout does not have them. Those on a device are not: no host sync.

    >>> host_rows(PackedLayout.from_lengths([3, 2], pad_to_multiple=4))
    HostRows(lengths=(3, 2), slots=(0, 4, 8), real=5)

    Args:
        layout: the layout.
        tensors: what is to be moved; one that stands for another tensor makes it None.
        read: whether to read offsets on the CPU where the layout does not know them; takes 0.2 microseconds each.

    Raises:
        LayoutError: a ``ValueError``; the offsets were not checked when the layout was made, and are none.
    """
    if is_compiling() or why_unreadable(layout.cu_seqlens, layout.cu_seqlens_padded, *tensors) is not None:
        return None
    if layout.lengths is None:
        # Whoever watches operations, under a mode, is to see those that run on a device too.
        if not read or layout.device.type != "cpu" or is_tracing():
            return None
        layout = PackedLayout.from_cu_seqlens(
            layout.cu_seqlens, layout.cu_seqlens_padded, layout.total_tokens, layout.max_seqlen
        )
    lengths, slots, real = layout.lengths, layout.slot_offsets, layout.real_tokens
    return None if lengths is None or slots is None or real is None else HostRows(lengths, slots, real)


def spans_of(lengths: Sequence[int], source: Sequence[int], target: Sequence[int]) -> list[int]:
    """The spans of a :class:`~te_pkg.attention.kernels.RowMove`; neighbours in both buffers are one.

    >>> spans_of([3, 2, 1], source=[0, 4, 6, 7], target=[0, 3, 5, 9])
    [0, 0, 3, 4, 3, 3]
    """
    spans: list[int] = []
    end = there_end = -1
    for length, here, there in zip(lengths, source, target, strict=False):
        if here == end and there == there_end:
            spans[-1] += length
        elif length:
            spans += (here, there, length)
        else:
            continue
        end, there_end = here + length, there + length
    return spans


def gaps_of(lengths: Sequence[int], slots: Sequence[int], rows: int) -> list[int]:
    """The gaps of :class:`~te_pkg.attention.kernels.PaddingRows`, from the last sequence to the end of the buffer one.

    >>> gaps_of([3, 2], slots=[0, 4, 8], rows=12)
    [3, 1, 6, 6]
    """
    gaps: list[int] = []
    end = 0
    for length, start in zip(lengths, slots, strict=False):
        if start > end:
            gaps += (end, start - end)
        end = start + length
    if rows > end:
        gaps += (end, rows - end)
    return gaps
