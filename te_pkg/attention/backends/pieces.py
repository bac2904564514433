"""The pairs of a problem in rectangles, for kernels that take one sequence at a time.

Worked out on the host. Each rectangle holds only queries that see a key, and only keys that one of them sees; what is
left of the band in it is nothing, the lower triangle, or a mask. Where a mask is needed, queries are taken some at a
time, so that a narrow window costs no more than it holds::

    window (2, 0), two queries at a time    X . . . . .
                                            X X . . . .
                                            ------------
                                            X X X . . .
                                            . X X X . .   from the first key to the fourth
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch

from te_pkg.attention.backends.problem import AttentionProblem
from te_pkg.attention.kernels.host import HostRows

__all__ = ["Piece", "pieces"]

_QUERIES_WITH_A_MASK = 256


class Piece(NamedTuple):
    """Some queries of a sequence against all the keys that they see.

    Attributes:
        q: first row of the queries in their buffer.
        queries: how many.
        k: first row of the keys in theirs.
        keys: how many.
        least: key ``j`` is seen by query ``i``, both counted from 0 here, if ``j >= i + least``; None: always.
        most: and if ``j <= i + most``; None: always.
    """

    q: int
    queries: int
    k: int
    keys: int
    least: int | None
    most: int | None

    @property
    def is_causal(self) -> bool:
        """Whether it is the lower triangle that begins in its upper left corner."""
        return self.least is None and self.most == 0

    @property
    def is_masked(self) -> bool:
        """Whether it is neither that nor everything."""
        return self.least is not None or self.most not in (None, 0)

    def mask(self, like: torch.Tensor) -> torch.Tensor:
        """``[queries, keys]`` of the dtype of ``like``, 0 where a key is seen, else -inf."""
        distance = torch.arange(self.keys, device=like.device) - torch.arange(self.queries, device=like.device)[:, None]
        hidden = torch.zeros_like(distance, dtype=torch.bool)
        if self.least is not None:
            hidden |= distance < self.least
        if self.most is not None:
            hidden |= distance > self.most
        return torch.zeros(hidden.shape, dtype=like.dtype, device=like.device).masked_fill_(hidden, -torch.inf)


def pieces(problem: AttentionProblem, rows: HostRows, keys: HostRows) -> Iterator[list[Piece]]:
    """For each sequence its pieces, in order; none where nothing is seen.

    >>> from te_pkg.attention.layout import PackedLayout
    >>> rows = HostRows((3,), (0, 3), 3)
    >>> problem = AttentionProblem.of(PackedLayout.from_lengths([3]), scale=1.0, causal=True)
    >>> list(pieces(problem, rows, rows))
    [[Piece(q=0, queries=3, k=0, keys=3, least=None, most=0)]]

    Args:
        problem: with a ``shift`` that the host knows.
        rows: the layout of the queries.
        keys: that of the keys.
    """
    diagonals = problem.host_diagonals(rows.lengths, keys.lengths) or [0] * len(rows.lengths)
    for i, diagonal in enumerate(diagonals):
        whole = _piece(problem, rows.slots[i], keys.slots[i], range(rows.lengths[i]), keys.lengths[i], diagonal)
        if whole is None:
            yield []
        elif not whole.is_masked or whole.queries <= _QUERIES_WITH_A_MASK:
            yield [whole]
        else:
            first = whole.q - rows.slots[i]
            parts = (
                range(start, min(start + _QUERIES_WITH_A_MASK, first + whole.queries))
                for start in range(first, first + whole.queries, _QUERIES_WITH_A_MASK)
            )
            found = (_piece(problem, rows.slots[i], keys.slots[i], part, keys.lengths[i], diagonal) for part in parts)
            yield [piece for piece in found if piece is not None]


def _piece(problem: AttentionProblem, row: int, key: int, positions: range, keys: int, diagonal: int) -> Piece | None:
    """Of the queries at ``positions`` of a sequence whose buffers hold it from ``row`` and from ``key`` on."""
    left, right = problem.left, problem.right
    start, stop = positions.start, positions.stop
    if right is not None:
        start = max(start, -diagonal - right)
    if left is not None:
        stop = min(stop, keys - diagonal + left)
    if stop <= start or keys == 0:
        return None
    first = 0 if left is None else max(0, start + diagonal - left)
    end = keys if right is None else min(keys, stop + diagonal + right)
    least = None if left is None else start + diagonal - left - first
    most = None if right is None else start + diagonal + right - first
    queries, keys = stop - start, end - first
    if least is not None and least + queries <= 1:
        least = None
    if most is not None and most >= keys - 1:
        most = None
    return Piece(row + start, queries, key + first, keys, least, most)
