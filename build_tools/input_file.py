"""Files that are read from one end to the other: a failure bears the name of the file, an interrupt is heard."""

from __future__ import annotations

import io
import os
from typing import Any

from build_tools.errors import FileError
from build_tools.parallel import require_running


def open_input(path: str | os.PathLike[str], fd: int | None = None) -> io.BufferedReader:
    """A file to read; what fails is a FileError of its name, and it is read no further once the run has ended.

    Args:
        path: what it is called.
        fd: where it is open already; closed with this.

    Raises:
        FileError: it cannot be opened; later, that it cannot be read.
        Stopped: later, as :func:`build_tools.parallel.require_running`.
    """
    return io.BufferedReader(_InputFile(path, fd))


class _InputFile(io.FileIO):
    # By way of `readinto`, which those of FileIO go round.
    read = io.RawIOBase.read  # type: ignore[assignment]
    readall = io.RawIOBase.readall

    def __init__(self, path: str | os.PathLike[str], fd: int | None) -> None:
        self._path = path
        try:
            super().__init__(os.fspath(path) if fd is None else fd)
        except OSError as error:
            raise FileError.of("read", path, error) from error

    def readinto(self, buffer: Any, /) -> int | None:
        require_running()
        try:
            return super().readinto(buffer)
        except OSError as error:
            raise FileError.of("read", self._path, error) from error
