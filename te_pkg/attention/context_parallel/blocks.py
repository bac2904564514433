"""Which queries of a rank attend to which keys of another: the fewest problems that say it, and none that is empty.

``c`` ranks. A query at position ``p`` of its sequence sees keys from ``p + diagonal - left`` to ``p + diagonal +
right``. Halves begin at other positions, so that a block of theirs is a problem whose diagonal is shifted. With a
causal mask of self-attention three forms are enough, because chunk ``r`` lies before, and ``2 * c - 1 - r`` behind,
all chunks of the later ranks::

    keys of the rank itself      causal, because both halves lie in the order of their positions
    keys of an earlier rank      all queries see the first half, none the second
    keys of a later rank         the second half of the queries sees all keys, the first none
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from te_pkg.attention.backends import AttentionProblem
from te_pkg.attention.context_parallel.shards import Piece, Shards

__all__ = ["Band", "Block", "gathered_blocks", "ring_blocks", "whole_block"]


class Block(NamedTuple):
    """Rows of queries, rows of keys, and the problem that they are."""

    q: Piece
    kv: Piece
    problem: AttentionProblem


@dataclass(frozen=True)
class Band:
    """Who sees whom, and how scores become weights.

    Attributes:
        left: how many keys before its diagonal a query sees; None: all.
        right: likewise, behind it.
        diagonals: where the first query of each sequence meets its keys.
        scale: as in :class:`~te_pkg.attention.backends.AttentionProblem`.
        softcap: likewise.
        is_self: queries and keys have one layout.
    """

    left: int | None
    right: int | None
    diagonals: tuple[int, ...]
    scale: float
    softcap: float | None
    is_self: bool

    @property
    def is_causal(self) -> bool:
        """Whether the three forms are enough."""
        return self.is_self and self.left is None and self.right == 0

    def block(self, q: Piece, kv: Piece) -> Block | None:
        """The problem of two pieces whose positions follow each other; None where nobody sees anybody."""
        shift = [
            at + diagonal - at_kv for at, diagonal, at_kv in zip(q.positions, self.diagonals, kv.positions, strict=True)
        ]
        pairs = [
            (moved, rows, keys) for moved, rows, keys in zip(shift, q.lengths, kv.lengths, strict=True) if rows and keys
        ]
        # How far keys lie behind the diagonals of the queries: all distances from the least to the greatest occur.
        spans = [(1 - rows - moved, keys - 1 - moved) for moved, rows, keys in pairs]
        left, right = self.left, self.right
        if not any(
            (left is None or greatest >= -left) and (right is None or least <= right) for least, greatest in spans
        ):
            return None
        if left is not None and all(least >= -left for least, _ in spans):
            left = None
        if right is not None and all(greatest <= right for _, greatest in spans):
            right = None
        moved = None if left is None and right is None else tuple(shift)
        return Block(q, kv, self._problem(q, kv, left, right, moved))

    def unbanded(self, q: Piece, kv: Piece) -> Block:
        """All queries see all keys of their sequence."""
        return Block(q, kv, self._problem(q, kv, None, None, None))

    def causal(self, q: Piece, kv: Piece) -> Block:
        """Each query sees the keys up to its own."""
        return Block(q, kv, self._problem(q, kv, None, 0, None))

    def _problem(
        self, q: Piece, kv: Piece, left: int | None, right: int | None, shift: tuple[int, ...] | None
    ) -> AttentionProblem:
        return AttentionProblem(
            q.layout, kv.layout, self.scale, left=left, right=right, shift=shift, softcap=self.softcap
        )


def ring_blocks(band: Band, queries: Shards, keys: Shards, rank: int, source: int) -> list[Block]:
    """What the queries of ``rank`` see of the keys that ``source`` holds."""
    if band.left is None and band.right is None:
        return _occupied([band.unbanded(queries.whole(rank), keys.whole(source))])
    if band.is_causal:
        if source == rank:
            whole = queries.whole(rank)
            return _occupied([band.causal(whole, whole)])
        if source < rank:
            return _occupied([band.unbanded(queries.whole(rank), keys.half(source, False))])
        return _occupied([band.unbanded(queries.half(rank, True), keys.whole(source))])
    pieces = [queries.half(rank, second) for second in (False, True)]
    pieces_kv = [keys.half(source, second) for second in (False, True)]
    return _present(band.block, [(q, kv) for q in pieces for kv in pieces_kv])


def gathered_blocks(band: Band, queries: Shards, keys: Shards, rank: int) -> list[Block]:
    """What the queries of ``rank`` see of all keys. Keys behind the last that is seen are left out."""
    if band.left is None and band.right is None:
        return _occupied([band.unbanded(queries.whole(rank), keys.everything())])
    pairs = []
    for q in (queries.half(rank, False), queries.half(rank, True)):
        lengths = keys.lengths
        if band.right is not None:
            ends = (
                at + rows + diagonal + band.right
                for at, rows, diagonal in zip(q.positions, q.lengths, band.diagonals, strict=True)
            )
            lengths = tuple(max(min(length, end), 0) for length, end in zip(lengths, ends, strict=True))
        pairs.append((q, keys.everything(lengths)))
    return _present(band.block, pairs)


def whole_block(band: Band, queries: Shards, keys: Shards) -> list[Block]:
    """All queries and all keys."""
    q = queries.everything()
    block = band.block(q, q if band.is_self else keys.everything())
    return [] if block is None else [block]


def _occupied(blocks: Sequence[Block]) -> list[Block]:
    return [
        block
        for block in blocks
        if any(rows and keys for rows, keys in zip(block.q.lengths, block.kv.lengths, strict=True))
    ]


def _present(make: Callable[[Piece, Piece], Block | None], pairs: Sequence[tuple[Piece, Piece]]) -> list[Block]:
    made = (make(q, kv) for q, kv in pairs)
    return [block for block in made if block is not None]
