"""A folder that is filled with the members of an archive, and nothing outside it.

Every step goes from one open folder to the next and follows no symlink, so a folder that somebody
swaps for a link meanwhile is refused, never written through.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from types import TracebackType
from typing import Self

from build_tools.errors import WheelError
from build_tools.wheels.limits import MAX_DEPTH

_BY_FOLDER = {os.open, os.mkdir, os.symlink} <= os.supports_dir_fd
_WINDOWS = os.name == "nt"
_RESERVED = re.compile(r"(?:CON|PRN|AUX|NUL|CONIN\$|CONOUT\$|(?:COM|LPT)[0-9\xb9\xb2\xb3])[ ]*(?:\.|\Z)", re.IGNORECASE)
_FORBIDDEN = re.compile(r'[<>:"|?*]')
_OPEN_FOLDER = os.O_RDONLY | getattr(os, "O_DIRECTORY", 0) | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0)
_NEW_FILE = (
    os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0) | getattr(os, "O_NOFOLLOW", 0)
    | getattr(os, "O_CLOEXEC", 0)
)  # fmt: skip
# The umask of the user takes its part of these; that all may write is never restored.
_FOLDER_MODE, _FILE_MODE = 0o775, 0o664


class NewTree:
    """An empty folder to be filled. A context manager; it holds the folder open.

    Args:
        root: the folder.
    """

    def __init__(self, root: Path) -> None:
        self._root = root
        self._made: set[str] = set()
        self._where = ""
        self._fd = -1
        self._root_fd = os.open(root, _OPEN_FOLDER) if _BY_FOLDER else -1

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._leave()
        if self._root_fd >= 0:
            os.close(self._root_fd)
            self._root_fd = -1

    def make_folder(self, name: str) -> None:
        """Make a folder and those above it that were not made yet; none may be there already."""
        above = ""
        for part in name.split("/") if name else ():
            folder = f"{above}/{part}" if above else part
            if folder not in self._made:
                if _BY_FOLDER:
                    os.mkdir(part, _FOLDER_MODE, dir_fd=self._enter(above))
                else:
                    os.mkdir(self._root / folder, _FOLDER_MODE)
                self._made.add(folder)
            above = folder

    def open_file(self, name: str, *, executable: bool) -> int:
        """Make a file, its folders too, and open it for writing; it may not be there already."""
        folder, _, last = name.rpartition("/")
        self.make_folder(folder)
        mode = _FILE_MODE | (0o111 if executable else 0)
        if _BY_FOLDER:
            return os.open(last, _NEW_FILE, mode, dir_fd=self._enter(folder))
        return os.open(self._root / name, _NEW_FILE, mode)

    def make_link(self, name: str, target: str) -> None:
        """Make a symlink. Make them last: nothing shall be written through one."""
        folder, _, last = name.rpartition("/")
        self.make_folder(folder)
        if _BY_FOLDER:
            os.symlink(target, last, dir_fd=self._enter(folder))
        else:
            os.symlink(target, self._root / name)

    def _enter(self, folder: str) -> int:
        """The folder, open: gone down to step by step, since a path as a whole would follow links."""
        if not folder:
            return self._root_fd
        if folder != self._where:
            self._leave()
            fd = self._root_fd
            for part in folder.split("/"):
                below = os.open(part, _OPEN_FOLDER, dir_fd=fd)
                self._leave()
                fd = self._fd = below
            self._where = folder
        return self._fd

    def _leave(self) -> None:
        self._where = ""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def require_names(names: list[str], source: str) -> None:
    """Refuse names that cannot be files here.

    Args:
        names: those of an archive, none of them unsafe.
        source: what the message calls the archive.

    Raises:
        WheelError: a name has too many folders, or Windows would make a device or a stream of it; each is named.
    """
    faults = []
    for name in names:
        if name.count("/") > MAX_DEPTH:
            faults.append(
                f"{source}: {name[:100]}... stands below {name.count('/')} folders, at most {MAX_DEPTH} are made"
            )
        elif _WINDOWS and (_FORBIDDEN.search(name) or any(map(_RESERVED.match, name.split("/")))):
            faults.append(f"{source}: {name!r} cannot be the name of a file on Windows")
    if faults:
        raise WheelError(faults)
