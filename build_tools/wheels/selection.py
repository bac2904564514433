"""The files that a command line means: files as they are, and what lies in folders."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from build_tools.errors import FileError, MissingFileError

WHEELS = (".whl",)
DISTRIBUTIONS = (".whl", ".tar.gz")


def select_files(paths: Iterable[str | os.PathLike[str]], endings: Sequence[str] = WHEELS) -> list[Path]:
    """The files that ``paths`` stand for, in their order, none of them twice.

    Args:
        paths: files, taken whatever they are called and also where they are not there (whoever reads one will say
            so), and folders, which stand for the files in them, sorted by name.
        endings: which files of a folder are meant.

    Raises:
        FileError: a folder holds no such file, or cannot be read.
        MissingFileError: a pattern that the shell left as it was, since it matches nothing.
    """
    found: dict[str, Path] = {}
    for given in paths:
        path = Path(given)
        if _unless_refused(path.is_dir, otherwise=False):
            inside = _files_of(path, endings)
        elif any(letter in os.fspath(given) for letter in "*?[") and not os.path.lexists(path):
            raise MissingFileError(f"the pattern {os.fspath(given)!r} matches no file")
        else:
            inside = [path]
        for file in inside:
            found.setdefault(os.path.realpath(file), file)
    return list(found.values())


def _files_of(folder: Path, endings: Sequence[str]) -> list[Path]:
    try:
        names = sorted(name for name in os.listdir(folder) if name.endswith(tuple(endings)) and name[0] != ".")
    except OSError as error:
        raise FileError.of("read", folder, error) from error
    files = [folder / name for name in names if _unless_refused((folder / name).is_file, otherwise=True)]
    if not files:
        raise FileError(f"the folder {str(folder)!r} holds no file that ends in {' or '.join(endings)}")
    return files


def _unless_refused(look: Callable[[], bool], *, otherwise: bool) -> bool:
    """What a look at a path says; where the system refuses it, the path is for its reader to complain of."""
    try:
        return look()
    except OSError:
        return otherwise
