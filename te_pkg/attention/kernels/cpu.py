"""The row kernel made of torch's own operations: slices where the host knows the rows, row indices where it does not.

A slice costs a call for each piece, an index a few passes over one integer for each row: the caller, who knows both
numbers, decides by what it gives (:func:`prefers_slices`). Without spans and gaps nothing is read on the host, no shape
depends on values, and every operation runs on the device: safe under CUDA graph capture.
"""

from __future__ import annotations

import torch

from te_pkg.attention.kernels import Fill, PaddingRows, RowMove
from te_pkg.attention.kernels.words import fill_with, fill_word, in_words

__all__ = ["fill_padding_", "move_rows", "prefers_slices", "why_unavailable"]


def why_unavailable(device: torch.device) -> str | None:
    """None: it runs on every device, and always."""
    return None


def prefers_slices(pieces: int, rows: int) -> bool:
    """Whether ``pieces`` slices are faster than an index of ``rows`` rows.

    Measured: a slice takes 1 microsecond; an index 20, and 8 nanoseconds more for each row.

    >>> prefers_slices(8, 4_400), prefers_slices(4096, 65_536)
    (True, False)
    """
    return pieces <= 16 + rows // 128


def move_rows(x: torch.Tensor, move: RowMove, fill: Fill, out: torch.Tensor | None = None) -> torch.Tensor:
    """See :class:`te_pkg.attention.kernels.RowKernel`.

    >>> cu, slots = torch.tensor([0, 2, 3]), torch.tensor([0, 3, 4])
    >>> move_rows(torch.tensor([1, 2, 3]), RowMove(cu, source=cu, target=slots, rows=5), fill=0)
    tensor([1, 2, 0, 3, 0])
    """
    if out is None:
        # Never `zeros`: torch writes them too, and most rows are written again.
        out = x.new_empty((move.rows, *x.shape[1:]))
    if out.numel() == 0:
        return out
    if x.numel() == 0:
        (words,) = in_words(out)
        fill_with(words, fill_word(fill, x.dtype, words))
        return out
    source, target = in_words(x, out)
    word = None if move.full else fill_word(fill, x.dtype, target)
    if move.spans is not None:
        _move_slices(source, target, move.spans, word)
    else:
        _move_by_index(source, target, move, word)
    return out


def fill_padding_(x: torch.Tensor, padding: PaddingRows, fill: Fill) -> None:
    """See :class:`te_pkg.attention.kernels.RowKernel`.

    >>> x = torch.tensor([1.0, float("nan"), 3.0, float("inf")])
    >>> fill_padding_(x, PaddingRows(torch.tensor([0, 1, 2]), slots=torch.tensor([0, 2, 3])), fill=0)
    >>> x
    tensor([1., 0., 3., 0.])
    """
    if x.numel() == 0:
        return
    (words,) = in_words(x)
    word = fill_word(fill, x.dtype, words)
    rows = words.shape[0]
    if padding.gaps is not None:
        for gap in _pieces(words, padding.gaps[::2], padding.gaps[1::2])[1::2]:
            fill_with(gap, word)
        return
    ends = padding.slots[:-1] + padding.cu_seqlens.diff()
    if padding.count is None:
        _fill_where(words, _row_numbers(words) >= _spread(ends, padding.slots, rows), word)
        return
    # One gap after each sequence and one before all, of which most may be empty.
    starts = torch.cat([ends.new_zeros(1), ends])
    stops = torch.cat([padding.slots[:-1], padding.slots.new_full((1,), rows)])
    lengths = stops - starts
    index = torch.arange(padding.count, device=words.device) + torch.repeat_interleave(
        starts - (lengths.cumsum(0) - lengths), lengths, output_size=padding.count
    )
    if word is None:
        words.index_fill_(0, index, 0)
    else:
        words[index] = word


def _move_slices(source: torch.Tensor, target: torch.Tensor, spans: list[int], word: torch.Tensor | None) -> None:
    lengths = spans[2::3]
    targets = _pieces(target, spans[1::3], lengths)
    for there, here in zip(targets[1::2], _pieces(source, spans[::3], lengths)[1::2], strict=True):
        there.copy_(here)
    for gap in targets[::2]:
        if gap.shape[0]:
            fill_with(gap, word)


def _pieces(words: torch.Tensor, starts: list[int], lengths: list[int]) -> tuple[torch.Tensor, ...]:
    """What lies before the first span, the span, what lies before the second, ..., and what lies after the last."""
    sizes: list[int] = []
    end = 0
    for start, length in zip(starts, lengths, strict=True):
        sizes += (start - end, length)
        end = start + length
    return words.split_with_sizes([*sizes, words.shape[0] - end])  # one call: a third of the time of as many slices


def _move_by_index(source: torch.Tensor, target: torch.Tensor, move: RowMove, word: torch.Tensor | None) -> None:
    from_slots, to_slots = move.source.long().clamp(max=source.shape[0]), move.target.long().clamp(max=move.rows)
    row_numbers = _row_numbers(target)
    index = row_numbers + _spread(from_slots[:-1] - to_slots[:-1], to_slots, move.rows)
    if move.full:
        torch.index_select(source, 0, index, out=target)
        return
    lengths = torch.minimum(move.cu_seqlens.diff(), from_slots.diff())
    padding = row_numbers >= _spread(to_slots[:-1] + lengths, to_slots, move.rows)
    torch.index_select(source, 0, index.masked_fill_(padding, 0), out=target)
    _fill_where(target, padding, word)


def _fill_where(words: torch.Tensor, padding: torch.Tensor, word: torch.Tensor | None) -> None:
    mask = padding.view(-1, *[1] * (words.ndim - 1))
    if word is None:
        words.masked_fill_(mask, 0)
    else:
        torch.where(mask, word, words, out=words)  # not `masked_fill_`, which reads a word from its device


def _row_numbers(words: torch.Tensor) -> torch.Tensor:
    return torch.arange(words.shape[0], device=words.device)


def _spread(values: torch.Tensor, slots: torch.Tensor, rows: int) -> torch.Tensor:
    """For each row the value of its slot: ``[b]`` -> ``[rows]``; 0 beyond the last slot."""
    values = torch.cat([values, values.new_zeros(1)])
    if values.device.type == "cpu":  # a third of the time; on other devices it trusts the sum of the counts
        counts = torch.cat([slots, slots.new_full((1,), rows)]).diff()
        return torch.repeat_interleave(values, counts, output_size=rows)
    return values[torch.searchsorted(slots[1:], torch.arange(rows, device=slots.device), right=True)]
