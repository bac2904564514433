"""Which rows of a buffer are real, and which are padding, as indices made of what the host knows.

One layout serves each layer of a model, forwards and backwards, and so the indices of small ones are kept.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from te_pkg.attention.caching import TensorCache

__all__ = ["gaps_of", "padding_rows", "real_rows", "spans_of"]

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


def gaps_of(lengths: Sequence[int], slots: Sequence[int], rows: int) -> list[tuple[int, int]]:
    """First row and number of rows of each gap; from the last sequence to the end of the buffer is one.

    >>> gaps_of([3, 2], slots=[0, 4, 8], rows=12)
    [(3, 1), (6, 6)]
    """
    gaps: list[tuple[int, int]] = []
    end = 0
    for length, start in zip(lengths, slots, strict=False):
        if start > end:
            gaps.append((end, start - end))
        end = start + length
    if rows > end:
        gaps.append((end, rows - end))
    return gaps


def real_rows(
    lengths: tuple[int, ...], slots: Sequence[int], real: int, device: torch.device, columns: int = 0
) -> torch.Tensor:
    """int64 ``[real]``: the real rows in order; with ``columns``, ``[real, columns]``, each in all. Not to be changed.

    >>> real_rows((3, 2), (0, 4, 8), 5, torch.device("cpu"))
    tensor([0, 1, 2, 4, 5])
    """
    if real > _KEPT_ROWS:
        return _make_real_rows(lengths, slots, real, columns, device=device)
    return _real_rows.get((lengths, slots, real, columns), device)


def padding_rows(lengths: tuple[int, ...], slots: Sequence[int], rows: int, device: torch.device) -> torch.Tensor:
    """int64 ``[n]``: the padding rows of ``rows`` in order. Not to be changed.

    >>> padding_rows((3, 2), (0, 4, 8), 9, torch.device("cpu"))
    tensor([3, 6, 7, 8])
    """
    if rows > _KEPT_ROWS:
        return _make_padding_rows(lengths, slots, rows, device=device)
    return _padding_rows.get((lengths, slots, rows), device)


def _make_real_rows(
    lengths: tuple[int, ...], slots: Sequence[int], real: int, columns: int, *, device: torch.device
) -> torch.Tensor:
    rows = _ranges(slots[: len(lengths)], lengths, real, device)
    return rows.unsqueeze(1).expand(-1, columns) if columns else rows


def _make_padding_rows(
    lengths: tuple[int, ...], slots: Sequence[int], rows: int, *, device: torch.device
) -> torch.Tensor:
    gaps = gaps_of(lengths, slots, rows)
    sizes = [size for _, size in gaps]
    return _ranges([start for start, _ in gaps], sizes, sum(sizes), device)


def _ranges(starts: Sequence[int], sizes: Sequence[int], total: int, device: torch.device) -> torch.Tensor:
    """``start, start + 1, ...`` of each range, one behind the other."""
    counts = torch.tensor(sizes, dtype=torch.int64, device=device)
    shifts = torch.tensor(starts, dtype=torch.int64, device=device) - (counts.cumsum(0) - counts)
    index = torch.repeat_interleave(shifts, counts, output_size=total)
    return index.add_(torch.arange(total, device=device))


_real_rows = TensorCache("real_rows", _make_real_rows, max_entries=_MAX_ENTRIES)
_padding_rows = TensorCache("padding_rows", _make_padding_rows, max_entries=_MAX_ENTRIES)
