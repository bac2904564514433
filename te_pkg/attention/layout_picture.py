"""A layout drawn with letters: sequences, gaps, the last slot's padding and spare capacity at a glance.

ASCII alone, at most 8 lines of 100 columns. Where there are more rows than fit, one letter stands for several::

    PackedLayout: 3 sequences, 5340 real rows of 8192, 65.1% full, longest 4000, on cpu
    padding: 2852 rows: 708 between sequences, 96 after the last sequence, 2048 of spare capacity
       0 aaaaaaaaaaaaaaaaaaaaaaaaaaaaa1............3bbbbbbbbbbbbbbbbbbbbbbbbbb3...............6cc
    2112 cccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccc
    4224 cccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccc....________
    6336 ______________________________________________________________________________
    each mark is 24 rows: a-Z one sequence, 1-9 tenths real, . padding, _ spare
    lengths: 640 to 4000, median 700
"""

from __future__ import annotations

import string
from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate, pairwise

__all__ = ["COLUMNS", "LINES", "draw"]

COLUMNS = 100
LINES = 8

_LETTERS = string.ascii_lowercase + string.ascii_uppercase
_BAR_LINES = 4
_BAR_COLUMNS = 88


def draw(lengths: Sequence[int], slot_offsets: Sequence[int], total_tokens: int, device: str) -> str:
    """The picture of a valid layout, from numbers on the host.

    >>> print(draw([3, 0, 2], [0, 4, 4, 6], 8, "cpu"))
    PackedLayout: 3 sequences, 5 real rows of 8, 62.5% full, longest 3, on cpu
    padding: 3 rows: 1 between sequences, 2 of spare capacity
    a a a . | - | c c || _ _
    """
    real = sum(lengths)
    full = f", {1000 * real // total_tokens / 10}% full" if total_tokens else ""  # 100.0% has no padding
    head = f"PackedLayout: {_count(len(lengths), 'sequence')}, {_count(real, 'real row')} of {total_tokens}"
    longest = f", longest {max(lengths, default=0)}"
    lines = [
        _fitting(f"{head}{full}{longest}, on {device}", f"{head}{longest}, on {device}", f"{head}, on {device}"),
        _padding(lengths, slot_offsets, total_tokens),
    ]
    if total_tokens or lengths:
        every_row = _every_row(lengths, slot_offsets, total_tokens)
        lines += _bars(lengths, slot_offsets, total_tokens) if every_row is None else [every_row]
    return "\n".join(lines)


def _fitting(*lines: str) -> str:
    """The first line that is short enough, else the last one."""
    return next((line for line in lines if len(line) <= COLUMNS), lines[-1])


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def _letter(sequence: int) -> str:
    return _LETTERS[sequence % len(_LETTERS)]


def _padding(lengths: Sequence[int], slot_offsets: Sequence[int], total_tokens: int) -> str:
    gaps = [end - start - length for length, (start, end) in zip(lengths, pairwise(slot_offsets), strict=True)]
    kinds = {
        "between sequences": sum(gaps[:-1]),
        "after the last sequence": sum(gaps[-1:]),
        "of spare capacity": total_tokens - slot_offsets[-1],
    }
    present = [f"{rows} {where}" for where, rows in kinds.items() if rows]
    if not present:
        return "padding: none"
    line = f"padding: {_count(sum(kinds.values()), 'row')}: {', '.join(present)}"
    return _fitting(line, line.replace(" sequences", "").replace(" sequence", "").replace("of spare capacity", "spare"))


def _every_row(lengths: Sequence[int], slot_offsets: Sequence[int], total_tokens: int) -> str | None:
    """A letter for each row; None where that takes more than a line."""
    spare = total_tokens - slot_offsets[-1]
    if 2 * total_tokens + 2 * len(lengths) > COLUMNS + 2:
        return None
    slots = [
        " ".join([_letter(i)] * length + ["."] * (end - start - length)) or "-"
        for i, (length, (start, end)) in enumerate(zip(lengths, pairwise(slot_offsets), strict=True))
    ]
    parts = [" | ".join(slots)] if slots else []
    if spare:
        parts += ["||", " ".join("_" * spare)]
    line = " ".join(parts)
    return line if len(line) <= COLUMNS else None


def _bars(lengths: Sequence[int], slot_offsets: Sequence[int], total_tokens: int) -> list[str]:
    """A mark for several rows each, on as few lines as they need, then what the marks mean."""
    margin = len(str(total_tokens))
    columns = min(_BAR_COLUMNS, COLUMNS - margin - 1)
    rows = max(1, -(-total_tokens // (_BAR_LINES * columns)))
    # Letters for shorter slots than this would say nothing, and repeat.
    lettered = len(lengths) <= len(_LETTERS) and total_tokens >= 2 * rows * len(lengths)
    real_before = list(accumulate(lengths, initial=0))

    def real_until(row: int) -> int:
        slot = bisect_right(slot_offsets, row) - 1
        inside = min(row - slot_offsets[slot], lengths[slot]) if slot < len(lengths) else 0
        return real_before[slot] + inside

    def mark(start: int) -> str:
        end = min(start + rows, total_tokens)
        real = real_until(end) - real_until(start)
        if real == 0:
            return "." if start < slot_offsets[-1] else "_"
        if real < end - start:
            return str(max(1, 10 * real // (end - start)))
        first, last = (bisect_right(slot_offsets, row) - 1 for row in (start, end - 1))
        return _letter(first) if lettered and first == last else "#"

    marks = "".join(map(mark, range(0, total_tokens, rows)))
    lines = [f"{first * rows:{margin}} {marks[first : first + columns]}" for first in range(0, len(marks), columns)]
    meanings = {
        _LETTERS: "a-Z one sequence",
        "#": "# several" if lettered else "# real",
        "123456789": "1-9 tenths real",
        ".": ". padding",
        "_": "_ spare",
    }
    if marks:
        legend = ", ".join(meaning for symbols, meaning in meanings.items() if set(symbols) & set(marks))
        lines.append(f"each mark is {_count(rows, 'row')}: {legend}")
    if lengths:
        ordered = sorted(lengths)
        median = (ordered[(len(ordered) - 1) // 2] + ordered[len(ordered) // 2]) / 2
        empty = ordered.count(0)
        lines.append(
            f"lengths: {ordered[0]} to {ordered[-1]}, median {median:.12g}" + (f", {empty} empty" if empty else "")
        )
    return lines
