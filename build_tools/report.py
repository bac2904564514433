"""Who gets the talk of a step that takes a while: a function that is given one line after the other."""

from __future__ import annotations

from collections.abc import Callable

Report = Callable[[str], None]


def silent(line: str) -> None:
    """Report nothing."""
