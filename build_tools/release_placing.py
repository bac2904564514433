"""The files of a release get their places: all of them, or none."""

from __future__ import annotations

import contextlib
import filecmp
import os
from collections.abc import Iterable, Sequence
from pathlib import Path

from build_tools.errors import FileError, OutputExistsError, ReleaseError


def is_same(one: Path, other: Path) -> bool:
    """Whether ``other`` is a file with the bytes of ``one``."""
    return other.is_file() and filecmp.cmp(one, other, shallow=False)


def require_free(work: Path, folder: Path, names: Iterable[str]) -> None:
    """Refuse to replace anything.

    Raises:
        OutputExistsError: with each file that is there with other bytes.
    """
    taken = [name for name in names if os.path.lexists(folder / name) and not is_same(work / name, folder / name)]
    if taken:
        raise OutputExistsError(
            [f"{str(folder / name)!r} exists already with other bytes" for name in taken],
            hint="give --force to replace, or -o for another folder",
        )


def place_all(work: Path, folder: Path, names: Sequence[str], told: Sequence[str], *, force: bool) -> None:
    """Move the outputs, then what tells of them (``told``), to their places: all of them, or none.

    Raises:
        OutputExistsError: another run put a file there meanwhile.
        FileError: the operating system refuses.
    """
    replaced = work / "replaced"
    replaced.mkdir()
    changed = [name for name in (*names, *told) if not is_same(work / name, folder / name)]
    try:
        # What tells of the old wheels must not stand beside new ones, not even after a power cut.
        for name in told:
            if name in changed and (folder / name).exists():
                os.replace(folder / name, replaced / name)
        for name in changed:
            if force and os.path.lexists(folder / name):
                _replace(work / name, folder / name, replaced / name)
            else:
                _move(work / name, folder / name)
    except BaseException as error:
        for name in changed:
            with contextlib.suppress(OSError):
                _take_back(work / name, folder / name, replaced / name)
        if isinstance(error, OSError) and not isinstance(error, ReleaseError):
            raise FileError.of("write", folder, error) from error
        raise


def _replace(source: Path, target: Path, kept: Path) -> None:
    """Put ``source`` in the place of ``target``, which is never empty: a run that is killed loses neither."""
    try:
        os.link(target, kept, follow_symlinks=False)
    except OSError:  # a file system without links
        os.rename(target, kept)
    os.replace(source, target)


def _move(source: Path, target: Path) -> None:
    try:
        os.link(source, target)
    except FileExistsError:
        raise OutputExistsError(f"{str(target)!r} was made by another run meanwhile") from None
    except OSError:  # a file system without links
        os.rename(source, target)


def _take_back(source: Path, target: Path, replaced: Path) -> None:
    if os.path.lexists(replaced):
        os.replace(replaced, target)
    elif not source.exists() or (target.exists() and target.samefile(source)):
        target.unlink()
