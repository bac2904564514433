"""Whether a path still leads to the file that was read."""

from __future__ import annotations

import os
from pathlib import Path

from build_tools.errors import FileError


def is_same_file(one: Path, other: Path) -> bool:
    """Whether both are there and are one file."""
    try:
        return os.path.samefile(one, other)
    except OSError:
        return False


def identity(path: Path) -> tuple[int, ...]:
    """What tells the file ``path`` from another that takes its place; nothing where there is none."""
    try:
        info = path.stat()
    except OSError:
        return ()
    return info.st_dev, info.st_ino, info.st_size, info.st_mtime_ns


def require_unchanged(path: Path, before: tuple[int, ...]) -> None:
    """Refuse to remove or replace a file that nobody has read.

    Args:
        before: the :func:`identity` of the one that was read.

    Raises:
        FileError: another file has its place.
    """
    if identity(path) != before:
        raise FileError(f"{str(path)!r} is another file by now, so it is not removed")
