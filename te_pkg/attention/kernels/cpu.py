"""The row kernel made of torch's own operations: slices where a few pieces hold all rows, row indices elsewhere.

A slice costs a call for each piece and, where threads share it, a meeting of the threads; an index costs a few passes
over one integer for each row, which are saved where it was made before. Where the host knows nothing, nothing is read
on the host, no shape depends on values, and every operation runs on the device: safe under CUDA graph capture.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from te_pkg.attention.kernels import Fill, PaddingRows, RowMove
from te_pkg.attention.kernels.row_index import padding_rows, pieces_of, real_rows, spans_of
from te_pkg.attention.kernels.words import as_integers, as_words, fill_with, fill_word, in_words

__all__ = ["fill_known_", "fill_padding_", "move_known", "move_rows", "take_rows", "why_unavailable"]

# What comes with FBGEMM is a `gather` of whole rows that is faster than `copy_`; other builds gather each element.
_GATHERS_ROWS = "fbgemm" in torch.backends.quantized.supported_engines
_GATHERED = (torch.bfloat16, torch.float32, torch.float64)
_GATHERED_BYTES = 512  # shorter rows are faster one by one
_FLOATS = {torch.int16: torch.bfloat16, torch.int32: torch.float32, torch.int64: torch.float64}

# Bytes in the gaps of a buffer from which on it pays that threads share them.
_SHARED_FILL = 4 << 20


def why_unavailable(device: torch.device) -> str | None:
    """None: it runs on every device, and always."""
    return None


def move_rows(x: torch.Tensor, move: RowMove, fill: Fill, out: torch.Tensor | None = None) -> torch.Tensor:
    """See :class:`te_pkg.attention.kernels.RowKernel`.

    >>> from te_pkg.attention.kernels import Slots
    >>> cu, slots = torch.tensor([0, 2, 3]), torch.tensor([0, 3, 4])
    >>> move_rows(torch.tensor([1, 2, 3]), RowMove(cu, Slots(cu, 3), Slots(slots, 5)), fill=0)
    tensor([1, 2, 0, 3, 0])
    """
    rows = move.target.rows
    if out is None:
        # Never `zeros`: torch writes them too, and most rows are written again.
        out = x.new_empty((rows, *x.shape[1:]))
    if out.numel() == 0:
        return out
    source, target = move.source.on_host, move.target.on_host
    if x.numel() == 0:
        (words,) = in_words(out)
        fill_with(words, fill_word(fill, x.dtype, words))
    elif move.lengths is None or source is None or target is None:
        _move_unknown(x, out, move, fill)
    else:
        move_known(x, out, move.lengths, source, target, move.real, fill)
    return out


def move_known(
    x: torch.Tensor,
    out: torch.Tensor,
    lengths: tuple[int, ...],
    source: Sequence[int],
    target: Sequence[int],
    real: int,
    fill: Fill,
) -> None:
    """:func:`move_rows` where the host knows everything and neither buffer is empty."""
    rows = out.shape[0]
    if real < rows:
        fill_known_(out, lengths, target, real, fill)
    if _prefers_slices(len(lengths), real):
        _copy_slices(x, out, spans_of(lengths, source, target))
    elif real == rows:
        _take_real_rows(x, lengths, source, real, out)
    elif real > 0:
        _move_by_index(x, out, lengths, source, target, real)


def fill_padding_(x: torch.Tensor, padding: PaddingRows, fill: Fill) -> None:
    """See :class:`te_pkg.attention.kernels.RowKernel`.

    >>> from te_pkg.attention.kernels import Slots
    >>> x = torch.tensor([1.0, float("nan"), 3.0, float("inf")])
    >>> fill_padding_(x, PaddingRows(torch.tensor([0, 1, 2]), Slots(torch.tensor([0, 2, 3]), 4)), fill=0)
    >>> x
    tensor([1., 0., 3., 0.])
    """
    lengths, slots = padding.lengths, padding.slots
    if x.numel() == 0:
        return
    if lengths is None or slots.on_host is None:
        words, rows = as_words(x), x.shape[0]
        ends = slots.offsets[:-1] + padding.cu_seqlens.diff()
        _fill_where(
            words, _row_numbers(rows, ends) >= _spread(ends, slots.offsets, rows), fill_word(fill, x.dtype, words)
        )
    else:
        fill_known_(x, lengths, slots.on_host, padding.real, fill)


def fill_known_(x: torch.Tensor, lengths: tuple[int, ...], slots: Sequence[int], real: int, fill: Fill) -> None:
    """:func:`fill_padding_` where the host knows everything and the buffer is not empty."""
    words, rows = as_words(x), x.shape[0]
    word = fill_word(fill, x.dtype, words)
    if _prefers_gaps(len(lengths), rows - real, x.nbytes // rows):
        # Wide words are few, and so each gap is filled by this thread alone: no other has to be woken.
        # One call for all the views, of which every other one is a gap.
        gaps = words.split_with_sizes(pieces_of(lengths, slots, rows))[1::2]
        if word is not None:
            for gap in gaps:
                fill_with(gap, word)
        elif gaps:
            torch._foreach_zero_(gaps)
    elif word is None:
        words.index_fill_(0, padding_rows(lengths, slots, rows, x.device), 0)
    else:
        words[padding_rows(lengths, slots, rows, x.device)] = word


def _prefers_gaps(sequences: int, padding: int, row: int) -> bool:
    # An index costs a view of each gap less, and 5 nanoseconds for each row: next to nothing beside a row of half a
    # kilobyte, unless so many that the index itself takes memory.
    return sequences <= 2 or padding > 65_536 or (sequences <= 32 and row < 512 and padding > 64)


def _prefers_slices(pieces: int, rows: int) -> bool:
    # A slice that threads share takes 10 to 30 microseconds, an index 5 nanoseconds for each row.
    return pieces <= 2 or pieces * 4096 <= rows


def _copy_slices(x: torch.Tensor, out: torch.Tensor, spans: list[tuple[int, int, int]]) -> None:
    # In elements, not in wider words: threads share a copy by the number of its elements.
    source, target = as_integers(x), as_integers(out)
    for here, there, rows in spans:
        target.narrow(0, there, rows).copy_(source.narrow(0, here, rows))


def _move_by_index(
    x: torch.Tensor,
    out: torch.Tensor,
    lengths: tuple[int, ...],
    source: Sequence[int],
    target: Sequence[int],
    real: int,
) -> None:
    if real < x.shape[0]:
        x = _take_real_rows(x, lengths, source, real, x.new_empty((real, *x.shape[1:])))
    rows, words = in_words(x, out)
    words.index_copy_(0, real_rows(lengths, target, real, x.device), rows)


def _move_unknown(x: torch.Tensor, out: torch.Tensor, move: RowMove, fill: Fill) -> None:
    rows = move.target.rows
    # Where offsets are wrong, buffers end all the same.
    source, target = move.source.offsets.clamp(0, x.shape[0]), move.target.offsets.clamp(0, rows)
    row_numbers = _row_numbers(rows, source)
    index = row_numbers + _spread(source[:-1] - target[:-1], target, rows)
    lengths = torch.minimum(move.cu_seqlens.diff(), source.diff())
    padding = row_numbers >= _spread(target[:-1] + lengths, target, rows)
    take_rows(x, index.long().masked_fill_(padding, 0), out)
    (words,) = in_words(out)
    _fill_where(words, padding, fill_word(fill, x.dtype, words))


def take_rows(x: torch.Tensor, index: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
    """``out[:] = x[index]`` for int64 ``[n]``, of any dtype with at least one element on either side; gives ``out``."""
    source, target = _gatherable(x, out)
    if source is None:
        return _select_rows(x, index, out)
    torch.gather(source, 0, index.unsqueeze(1).expand(-1, source.shape[1]), out=target)
    return out


def _take_real_rows(
    x: torch.Tensor, lengths: tuple[int, ...], slots: Sequence[int], real: int, out: torch.Tensor
) -> torch.Tensor:
    source, target = _gatherable(x, out)
    if source is None:
        return _select_rows(x, real_rows(lengths, slots, real, x.device), out)
    torch.gather(source, 0, real_rows(lengths, slots, real, x.device, source.shape[1]), out=target)
    return out


def _gatherable(x: torch.Tensor, out: torch.Tensor) -> tuple[torch.Tensor | None, torch.Tensor | None]:
    """Both as ``[t, n]`` of a dtype whose rows `gather` moves as a whole; None where that is not faster."""
    rows = x.shape[0]
    if (
        not _GATHERS_ROWS
        or x.nbytes < rows * _GATHERED_BYTES
        or not x.is_cpu
        or not x.is_contiguous()
        or not out.is_contiguous()
    ):
        return None, None
    if x.dtype in _GATHERED:
        if x.ndim == 2:
            return x, out
        return x.view(rows, -1), out.view(out.shape[0], -1)
    source, target = in_words(x, out, widest=8)
    floats = _FLOATS.get(source.dtype)
    return (None, None) if floats is None else (source.view(floats), target.view(floats))


def _select_rows(x: torch.Tensor, index: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
    source, target = in_words(x, out)
    torch.index_select(source, 0, index, out=target)
    return out


def _fill_where(words: torch.Tensor, padding: torch.Tensor, word: torch.Tensor | None) -> None:
    mask = padding.view(-1, *[1] * (words.ndim - 1))
    if word is None:
        words.masked_fill_(mask, 0)
    else:
        torch.where(mask, word, words, out=words)  # not `masked_fill_`, which reads a word from its device


def _row_numbers(rows: int, like: torch.Tensor) -> torch.Tensor:
    return torch.arange(rows, dtype=like.dtype, device=like.device)


def _spread(values: torch.Tensor, slots: torch.Tensor, rows: int) -> torch.Tensor:
    """For each row the value of its slot: ``[b]`` -> ``[rows]``; 0 beyond the last slot."""
    values = torch.cat([values, values.new_zeros(1)])
    if values.is_cpu:  # a third of the time; on other devices it trusts the sum of the counts
        counts = torch.cat([slots, slots.new_full((1,), rows)]).diff()
        return torch.repeat_interleave(values, counts, output_size=rows)
    return values[torch.searchsorted(slots[1:], torch.arange(rows, device=slots.device), right=True)]
