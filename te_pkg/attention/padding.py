"""The kinds of padding that a packed buffer can have."""

from __future__ import annotations

import enum
from collections.abc import Sequence

__all__ = ["Padding", "padding_of"]


class Padding(enum.Flag):
    """Where a packed buffer has rows of no sequence. The kinds combine.

    >>> Padding.LAST | Padding.CAPACITY
    <Padding.LAST|CAPACITY: 5>
    """

    NONE = 0
    """Every row is real."""
    LAST = 1
    """The last slot is longer than its sequence: ``cu = [0, 698]``, ``cu_padded = [0, 704]``."""
    BETWEEN = 2
    """An earlier slot is longer than its sequence: ``cu = [0, 3, 8]``, ``cu_padded = [0, 4, 9]``."""
    CAPACITY = 4
    """Rows lie beyond the last slot, as in a static buffer: ``cu_padded[-1] = 12``, ``t = 16``."""


def padding_of(lengths: Sequence[int], slot_offsets: Sequence[int], real_tokens: int, total_tokens: int) -> Padding:
    """The kinds of a valid layout, in constant time.

    >>> padding_of([3, 5], [0, 4, 12], 8, 16)
    <Padding.LAST|BETWEEN|CAPACITY: 7>
    """
    kinds = Padding.NONE
    if lengths:
        last_start, end = slot_offsets[-2:]
        # No slot is shorter than its sequence, so what the start of the last one exceeds the real rows by are gaps.
        if last_start != real_tokens - lengths[-1]:
            kinds |= Padding.BETWEEN
        if end - last_start != lengths[-1]:
            kinds |= Padding.LAST
    if slot_offsets[-1] < total_tokens:
        kinds |= Padding.CAPACITY
    return kinds
