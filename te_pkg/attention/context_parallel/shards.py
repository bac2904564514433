"""What a rank holds of a layout, as layouts of its shard: the whole of it, the first halves, the second halves.

``b`` sequences, ``c`` ranks. Slot ``i`` has ``2 * c`` chunks of ``chunks[i]`` rows, and a shard two of them, see
:mod:`~te_pkg.attention.context_parallel.partition`. Nothing is copied: halves are layouts with more padding::

    shard               a a | a .   b b | b b
    first halves        a a   . .   b b   . .
    second halves           | a .   . .   b b      from row 2 on
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import NamedTuple

from te_pkg.attention.context_parallel.partition import check_slots
from te_pkg.attention.errors import HostReadError
from te_pkg.attention.layout import PackedLayout
from te_pkg.attention.layout_checks import CheckedOffsets
from te_pkg.attention.offsets import tensor_of, why_unreadable

__all__ = ["Piece", "Shards"]


class Piece(NamedTuple):
    """Some rows of a buffer: those from ``begin`` on, their layout, and where in its sequence each of them begins."""

    begin: int
    layout: PackedLayout
    lengths: tuple[int, ...]
    positions: tuple[int, ...]


@dataclass(frozen=True)
class Shards:
    """A layout, cut into shards. Its lengths are on the host.

    Attributes:
        layout: of the whole buffer.
        cp_size: ``c``.
        lengths: real rows of each sequence.
        chunks: rows of each chunk of each sequence.
        rows: of a shard, without spare capacity.
    """

    layout: PackedLayout
    cp_size: int
    lengths: tuple[int, ...]
    chunks: tuple[int, ...]
    rows: int
    _pieces: dict[tuple[int, bool | None], Piece] = field(default_factory=dict, repr=False, compare=False)

    @classmethod
    def of(cls, layout: PackedLayout, cp_size: int, name: str = "layout") -> Shards:
        """Of a layout. One host sync where its lengths are not known.

        >>> layout = PackedLayout.from_lengths([7, 4], pad_to_multiple=4)
        >>> Shards.of(layout, 2).chunks
        (2, 1)

        Raises:
            LayoutError: a ``ValueError`` that names each slot that is no multiple of ``2 * c``.
            HostReadError: a ``RuntimeError``; the lengths are not known, and may not be read now.
        """
        lengths, slots = layout.lengths, layout.slot_offsets
        if lengths is None or slots is None:
            reason = why_unreadable(layout.cu_seqlens, layout.cu_seqlens_padded)
            if reason is not None:
                raise HostReadError(
                    f"context parallelism needs the lengths of {name} on the host, and they cannot be read, because "
                    f"{reason}; hint: make the layout before, of lengths that the host knows"
                )
            read = PackedLayout.from_cu_seqlens(
                layout.cu_seqlens, layout.cu_seqlens_padded, layout.total_tokens, layout.max_seqlen
            )
            lengths, slots = read.lengths or (), read.slot_offsets or (0,)
        check_slots(slots, cp_size, name)
        chunks = tuple(slot // (2 * cp_size) for slot in map(operator.sub, slots[1:], slots))
        return cls(layout, cp_size, lengths, chunks, slots[-1] // cp_size)

    def whole(self, rank: int) -> Piece:
        """Both halves, one behind the other. Positions are those of the first."""
        if (rank, None) not in self._pieces:
            lengths = list(map(operator.add, self._real(rank), self._real(self._partner(rank))))
            self._pieces[rank, None] = self._piece(0, lengths, [2 * chunk for chunk in self.chunks], rank)
        return self._pieces[rank, None]

    def half(self, rank: int, second: bool) -> Piece:
        """One half of each sequence.

        >>> piece = Shards.of(PackedLayout.from_lengths([7, 4], pad_to_multiple=4), 2).half(rank=0, second=True)
        >>> piece.begin, piece.lengths, piece.positions
        (2, (1, 1), (6, 3))
        """
        if (rank, second) not in self._pieces:
            begin, slots = 0, [2 * chunk for chunk in self.chunks]
            if second and slots:
                # Each second half, and the first one of the next sequence as its padding.
                begin = self.chunks[0]
                slots = list(map(operator.add, self.chunks, (*self.chunks[1:], 0)))
            nth = self._partner(rank) if second else rank
            self._pieces[rank, second] = self._piece(begin, self._real(nth), slots, nth)
        return self._pieces[rank, second]

    def everything(self, lengths: Sequence[int] | None = None) -> Piece:
        """The whole buffer without its spare capacity, in the order of its sequences.

        Args:
            lengths: fewer real rows than there are; None: all.
        """
        slots = [2 * self.cp_size * chunk for chunk in self.chunks]
        return self._piece(0, self.lengths if lengths is None else lengths, slots, 0)

    def _partner(self, rank: int) -> int:
        return 2 * self.cp_size - 1 - rank

    def _real(self, nth: int) -> list[int]:
        """Real rows in chunk ``nth`` of each sequence."""
        return [
            min(max(length - nth * chunk, 0), chunk) for length, chunk in zip(self.lengths, self.chunks, strict=True)
        ]

    def _piece(self, begin: int, lengths: Sequence[int], slots: Sequence[int], nth: int) -> Piece:
        host, ends = tuple(lengths), tuple(accumulate(slots, initial=0))
        real, device = sum(host), self.layout.device
        stored = tensor_of(ends, device)
        cu = stored if real == ends[-1] else tensor_of(accumulate(host, initial=0), device)
        layout = PackedLayout._trusted(CheckedOffsets(cu, stored, ends[-1], max((0, *host)), host, ends, real))
        return Piece(begin, layout, host, tuple(nth * chunk for chunk in self.chunks))
