"""Which rows of a buffer are real, and which are padding, as indices made of what the host knows.

One layout serves each layer of a model, forwards and backwards, and so the indices of small ones are kept.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from itertools import accumulate

import torch

from te_pkg.attention.caching import TensorCache

__all__ = ["padding_rows", "pieces_of", "real_rows", "spans_of"]

# An index of more rows takes less time to make than the rows take to move, and too much memory to keep.
_KEPT_ROWS = 1 << 16
_MAX_ENTRIES = 32


def spans_of(lengths: Sequence[int], source: Sequence[int], target: Sequence[int]) -> list[tuple[int, int, int]]:
    """Source row, target row and number of rows of what moves in one piece.

    >>> spans_of([3, 2, 0, 1], source=[0, 4, 6, 6, 7], target=[0, 3, 5, 5, 9])
    [(0, 0, 3), (4, 3, 3)]
    """
    spans: list[tuple[int, int, int]] = []
    for length, here, there in zip(lengths, source, target, strict=False):
        if spans and spans[-1][0] + spans[-1][2] == here and spans[-1][1] + spans[-1][2] == there:
            spans[-1] = (*spans[-1][:2], spans[-1][2] + length)
        elif length:
            spans.append((here, there, length))
    return spans


@lru_cache(maxsize=_MAX_ENTRIES)
def pieces_of(lengths: tuple[int, ...], slots: Sequence[int], rows: int) -> tuple[int, ...]:
    """How many rows are real, then padding, then real, and so on to the end of the buffer. Without a gap of no row.

    >>> pieces_of((3, 2), slots=(0, 4, 8), rows=12)
    (3, 1, 2, 6)
    """
    pieces: list[int] = []
    start = end = 0  # of the real rows that lie one behind the other
    for length, slot in zip(lengths, slots, strict=False):
        if length:
            if slot > end:
                pieces += (end - start, slot - end)
                start = slot
            end = slot + length
    pieces.append(end - start)
    if rows > end:
        pieces.append(rows - end)
    return tuple(pieces)


def real_rows(
    lengths: tuple[int, ...], slots: Sequence[int], real: int, device: torch.device, columns: int = 0
) -> torch.Tensor:
    """int64 ``[real]``: the real rows in order; with ``columns``, ``[real, columns]``, each in all. Not to be changed.

    >>> real_rows((3, 2), (0, 4, 8), 5, torch.device("cpu"))
    tensor([0, 1, 2, 4, 5])
    """
    if real > _KEPT_ROWS:
        return _make_real_rows(lengths, slots, real, columns, device=device)
    key = (lengths, slots, real, columns)
    kept = _real_rows.kept(key, device)
    return _real_rows.get(key, device) if kept is None else kept


def padding_rows(lengths: tuple[int, ...], slots: Sequence[int], rows: int, device: torch.device) -> torch.Tensor:
    """int64 ``[n]``: the padding rows of ``rows`` in order. Not to be changed.

    >>> padding_rows((3, 2), (0, 4, 8), 9, torch.device("cpu"))
    tensor([3, 6, 7, 8])
    """
    if rows > _KEPT_ROWS:
        return _make_padding_rows(lengths, slots, rows, device=device)
    key = (lengths, slots, rows)
    kept = _padding_rows.kept(key, device)
    return _padding_rows.get(key, device) if kept is None else kept


def _make_real_rows(
    lengths: tuple[int, ...], slots: Sequence[int], real: int, columns: int, *, device: torch.device
) -> torch.Tensor:
    rows = _ranges(slots[: len(lengths)], lengths, real, device)
    return rows.unsqueeze(1).expand(-1, columns) if columns else rows


def _make_padding_rows(
    lengths: tuple[int, ...], slots: Sequence[int], rows: int, *, device: torch.device
) -> torch.Tensor:
    pieces = pieces_of.__wrapped__(lengths, slots, rows)
    sizes = pieces[1::2]
    return _ranges([*accumulate(pieces)][: 2 * len(sizes) : 2], sizes, sum(sizes), device)


def _ranges(starts: Sequence[int], sizes: Sequence[int], total: int, device: torch.device) -> torch.Tensor:
    """``start, start + 1, ...`` of each range, one behind the other."""
    counts = torch.tensor(sizes, dtype=torch.int64, device=device)
    shifts = torch.tensor(starts, dtype=torch.int64, device=device) - (counts.cumsum(0) - counts)
    index = torch.repeat_interleave(shifts, counts, output_size=total)
    return index.add_(torch.arange(total, device=device))


_real_rows = TensorCache("real_rows", _make_real_rows, max_entries=_MAX_ENTRIES)
_padding_rows = TensorCache("padding_rows", _make_padding_rows, max_entries=_MAX_ENTRIES)
