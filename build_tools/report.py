"""The talk of a step that takes a while: a function is given one line after the other; sizes and counts for people."""

from __future__ import annotations

from collections.abc import Callable

Report = Callable[[str], None]


def silent(line: str) -> None:
    """Report nothing."""


def counted(count: int, noun: str) -> str:
    """How many there are.

    >>> counted(1, "change"), counted(2, "change"), counted(0, "change")
    ('1 change', '2 changes', '0 changes')
    """
    return f"{count} {noun}{'' if count == 1 else 's'}"


def human_size(count: int) -> str:
    """Bytes in three digits.

    >>> human_size(23_800), human_size(729_046_361)
    ('23.8 kB', '729 MB')
    """
    size = float(count)
    for unit in ("B", "kB", "MB"):
        if size < 1000:
            return f"{size:.0f} {unit}" if unit == "B" or size >= 100 else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.1f} GB"
