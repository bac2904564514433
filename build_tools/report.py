"""The talk of a step that takes a while: a function is given one line after the other, and sizes are for people."""

from __future__ import annotations

from collections.abc import Callable

Report = Callable[[str], None]


def silent(line: str) -> None:
    """Report nothing."""


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
