"""The readable truth of the row kernels: a loop over sequences.

Reads the offsets: a host sync where they are on a CUDA device, and so nothing for CUDA graph capture.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import torch

from te_pkg.attention import capture
from te_pkg.attention.kernels import Fill, PaddingRows, RowMove
from te_pkg.attention.kernels.words import fill_with, fill_word, in_words

__all__ = ["fill_padding_", "move_rows", "why_unavailable"]


def why_unavailable(device: torch.device) -> str | None:
    """None, or why it cannot run now."""
    if capture.is_capturing():
        return "it reads the offsets on the host, which the CUDA graph capture under way forbids"
    return None


def move_rows(x: torch.Tensor, move: RowMove, fill: Fill, out: torch.Tensor | None = None) -> torch.Tensor:
    """See :class:`te_pkg.attention.kernels.RowKernel`.

    >>> from te_pkg.attention.kernels import Slots
    >>> cu, slots = torch.tensor([0, 2, 3]), torch.tensor([0, 3, 4])
    >>> move_rows(torch.tensor([1, 2, 3]), RowMove(cu, Slots(cu, 3), Slots(slots, 5)), fill=0)
    tensor([1, 2, 0, 3, 0])
    """
    if out is None:
        out = x.new_empty((move.target.rows, *x.shape[1:]))
    if out.numel() == 0:
        return out
    (target,) = in_words(out)
    fill_with(target, fill_word(fill, x.dtype, target))
    if x.numel() == 0:
        return out
    source, target = in_words(x, out)
    source_slots, target_slots = _slots(move.source.offsets, x.shape[0]), _slots(move.target.offsets, len(out))
    for length, here, there in zip(_lengths(move.cu_seqlens), source_slots, target_slots, strict=True):
        rows = min(length, len(here), len(there))
        target[there.start : there.start + rows] = source[here.start : here.start + rows]
    return out


def fill_padding_(x: torch.Tensor, padding: PaddingRows, fill: Fill) -> None:
    """See :class:`te_pkg.attention.kernels.RowKernel`.

    >>> from te_pkg.attention.kernels import Slots
    >>> x = torch.tensor([1.0, float("nan"), 3.0, float("inf")])
    >>> fill_padding_(x, PaddingRows(torch.tensor([0, 1, 2]), Slots(torch.tensor([0, 2, 3]), 4)), fill=0)
    >>> x
    tensor([1., 0., 3., 0.])
    """
    if x.numel() == 0:
        return
    (words,) = in_words(x)
    word = fill_word(fill, x.dtype, words)
    end = 0
    for length, slot in zip(_lengths(padding.cu_seqlens), _slots(padding.slots.offsets, len(x)), strict=True):
        fill_with(words[slot.start + length : slot.stop], word)
        end = slot.stop
    fill_with(words[end:], word)


def _lengths(cu_seqlens: torch.Tensor) -> Iterator[int]:
    offsets = cu_seqlens.tolist()
    return (end - start for start, end in pairwise(offsets))


def _slots(offsets: torch.Tensor, rows: int) -> Iterator[range]:
    bounds = [min(max(offset, 0), rows) for offset in offsets.tolist()]
    return (range(start, end) for start, end in pairwise(bounds))
