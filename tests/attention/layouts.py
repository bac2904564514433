"""Random layouts of every kind of padding, each with a model of its rows in plain Python."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate
from typing import NamedTuple

import torch
from hypothesis import strategies as st

from te_pkg.attention.capture import mark_capturing
from te_pkg.attention.layout import PackedLayout, Padding

__all__ = ["LayoutCase", "Rows", "assert_same", "facts", "layout_of", "layouts", "without_host_facts"]


@dataclass(frozen=True)
class Rows:
    """A layout as a person would write it down: how long each sequence is, how long its slot, how many rows in all."""

    lengths: tuple[int, ...]
    slots: tuple[int, ...]
    total: int

    @property
    def owners(self) -> list[tuple[int, int] | None]:
        """For each row its sequence and its position there, or None for padding."""
        rows: list[tuple[int, int] | None] = []
        for sequence, (length, slot) in enumerate(zip(self.lengths, self.slots, strict=True)):
            rows += [(sequence, position) for position in range(length)] + [None] * (slot - length)
        return rows + [None] * (self.total - len(rows))

    @property
    def cu_seqlens(self) -> list[int]:
        return list(accumulate(self.lengths, initial=0))

    @property
    def cu_seqlens_padded(self) -> list[int]:
        return list(accumulate(self.slots, initial=0))

    @property
    def max_seqlen(self) -> int:
        return max(self.lengths, default=0)

    @property
    def token_mask(self) -> list[bool]:
        return [owner is not None for owner in self.owners]

    @property
    def real_rows(self) -> list[int]:
        return [row for row, owner in enumerate(self.owners) if owner is not None]

    @property
    def padding_rows(self) -> list[int]:
        return [row for row, owner in enumerate(self.owners) if owner is None]

    @property
    def sequence_ids(self) -> list[int]:
        return [-1 if owner is None else owner[0] for owner in self.owners]

    @property
    def position_ids(self) -> list[int]:
        positions = [position for slot in self.slots for position in range(slot)]
        return positions + [0] * (self.total - len(positions))

    @property
    def kinds(self) -> Padding:
        gaps = [slot - length for length, slot in zip(self.lengths, self.slots, strict=True)]
        kinds = Padding.NONE
        if any(gaps[:-1]):
            kinds |= Padding.BETWEEN
        if any(gaps[-1:]):
            kinds |= Padding.LAST
        if self.total > sum(self.slots):
            kinds |= Padding.CAPACITY
        return kinds


class LayoutCase(NamedTuple):
    layout: PackedLayout
    rows: Rows


def layout_of(rows: Rows, *, host: bool = True, device: str = "cpu") -> PackedLayout:
    """The layout that a model describes; ``host=False`` makes it without host facts, as under capture."""
    layout = PackedLayout.from_cu_seqlens(
        torch.tensor(rows.cu_seqlens, dtype=torch.int32),
        torch.tensor(rows.cu_seqlens_padded, dtype=torch.int32),
        rows.total,
        rows.max_seqlen,
    )
    if not host:
        layout = without_host_facts(layout)
    return layout if device == "cpu" else layout.to(device)


def without_host_facts(layout: PackedLayout) -> PackedLayout:
    """The same layout, made where nothing may be read."""
    with mark_capturing():
        return PackedLayout.from_cu_seqlens(
            layout.cu_seqlens, layout.cu_seqlens_padded, layout.total_tokens, layout.max_seqlen
        )


def assert_same(left: PackedLayout, right: PackedLayout) -> None:
    assert left.cu_seqlens.tolist() == right.cu_seqlens.tolist()
    assert left.cu_seqlens_padded.tolist() == right.cu_seqlens_padded.tolist()
    assert facts(left) == facts(right)


def facts(made: PackedLayout) -> tuple[object, ...]:
    """What the host knows."""
    return made.total_tokens, made.max_seqlen, made.lengths, made.slot_offsets, made.real_tokens


@st.composite
def layouts(
    draw: st.DrawFn,
    *,
    num_sequences: int | None = None,
    max_sequences: int = 6,
    max_length: int = 9,
    kinds: Padding | None = None,
    host: bool | None = True,
) -> LayoutCase:
    """Layouts with their models; empty batches, empty sequences and empty slots among them.

    Args:
        num_sequences: ``b``; None: any up to ``max_sequences``.
        max_length: rows of a sequence at most; a gap has up to 4.
        kinds: the padding that may occur; None: any.
        host: whether the host knows the lengths; None: either.
    """
    allowed = Padding.LAST | Padding.BETWEEN | Padding.CAPACITY if kinds is None else kinds
    fewest, most = (0, max_sequences) if num_sequences is None else (num_sequences, num_sequences)
    lengths = draw(st.lists(st.integers(0, max_length), min_size=fewest, max_size=most))
    # Drawn before the gaps, so that each kind of padding is as often absent as present.
    present = allowed & draw(st.builds(Padding, st.integers(0, 7)))
    gap = st.integers(0, 4)
    gaps = [draw(gap) if Padding.BETWEEN in present else 0 for _ in lengths[:-1]]
    if lengths:
        gaps.append(draw(gap) if Padding.LAST in present else 0)
    slots = tuple(length + extra for length, extra in zip(lengths, gaps, strict=True))
    capacity = draw(gap) if Padding.CAPACITY in present else 0
    rows = Rows(tuple(lengths), slots, sum(slots) + capacity)
    known = draw(st.booleans()) if host is None else host
    return LayoutCase(layout_of(rows, host=known), rows)
