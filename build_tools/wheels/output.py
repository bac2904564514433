"""Outputs that appear under their name only when they are whole.

A file or folder is written under a hidden temporary name beside its final place, then linked or
renamed. The temporary one is locked while its run lives, so the next run in the same folder can
tell a dead one and remove it.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import stat
from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Self

from build_tools.errors import FileError, OutputExistsError, ReleaseError
from build_tools.parallel import require_running
from build_tools.wheels.file_identity import is_same_file, require_unchanged

try:
    import fcntl
except ImportError:  # Windows: an open file cannot be removed there, which does for a lock
    fcntl = None  # type: ignore[assignment]

_SUFFIX = ".te-wheel-tmp"
_OURS = rf"\..+\.[0-9a-f]{{16}}{re.escape(_SUFFIX)}\Z"
_CHUNK = 1 << 20
_made_folders: set[Path] = set()
"""Real paths of the folders that this process made, for all its outputs: each is an entry that an fsync must cover."""
_NO_LINKS = {
    getattr(errno, name) for name in ("EPERM", "EOPNOTSUPP", "ENOTSUP", "ENOSYS", "EMLINK", "EXDEV", "EACCES", "EINVAL")
}


class _Output(ABC):
    """What a file and a folder share: both are made beside their place, and discarded unless published."""

    path: Path
    _sweep = True
    """Whether what dead runs left in the folder is looked for."""

    def __enter__(self) -> Self:
        folder = self.path.parent
        try:
            _make_folders(folder)
            if self._sweep:
                remove_leftovers(folder)
            self._create(folder)
        except BaseException as error:
            self._clear()
            if isinstance(error, OSError) and not isinstance(error, ReleaseError):
                raise FileError.of("write", self.path, error) from error
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._clear()
        if isinstance(error, OSError) and not isinstance(error, ReleaseError):
            raise FileError.of("write", self.path, error) from error

    def _clear(self) -> None:
        try:
            self._discard()
        except BaseException:  # an interrupt in the middle of it
            self._discard()
            raise

    @abstractmethod
    def _create(self, folder: Path) -> None:
        """Make the temporary one in ``folder`` and lock it."""

    @abstractmethod
    def _discard(self) -> None:
        """Remove the temporary one, if it is there, and close what is open; to be called once more where that fails."""


class OutputFile(_Output):
    """A file being written for ``path``; a context manager.

    Leaving it without :meth:`publish` removes the temporary file. Every failure of the operating
    system, whoever writes to :attr:`fd`, leaves it as a :class:`FileError` that names ``path``.
    """

    def __init__(self, path: Path, *, mode: int | None = None, sweep: bool = True) -> None:
        self.path = path
        self._sweep = sweep  # a caller with a thousand outputs in one folder sweeps it once
        self._mode = mode
        self._temporary: Path | None = None
        self.fd = -1

    def _create(self, folder: Path) -> None:
        while True:
            temporary = _temporary(folder, self.path.name)
            flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0) | getattr(os, "O_CLOEXEC", 0)
            # Known before it is there, so that an interrupt in between leaves nothing.
            self._temporary = temporary
            self.fd = os.open(temporary, flags, 0o666)
            # Another run may have taken the file for a dead one's before it was locked.
            if _lock(self.fd) is not False and _is_same(self.fd, temporary):
                break
            os.close(self.fd)
            self.fd = -1
        if self._mode is not None:
            os.chmod(temporary, self._mode)

    @property
    def temporary(self) -> Path:
        """Where the file is until it is published."""
        assert self._temporary is not None
        return self._temporary

    def stream(self) -> BinaryIO:
        """The file as a stream to write to; to close it leaves :attr:`fd` open."""
        return os.fdopen(os.dup(self.fd), "wb")

    def publish(self, *, replace: bool, fsync: bool, last_look: Callable[[], None] | None = None) -> bool:
        """Give the file its name; return whether that changed anything.

        A file that is there already with the same bytes stays as it is.

        Args:
            replace: whether a file with other bytes may be replaced.
            fsync: whether file and folder must be on the disk before this returns.
            last_look: called just before the file gets its name; what it raises comes out of here.

        Raises:
            OutputExistsError: another file has the name.
        """
        assert self._temporary is not None
        if self.path.exists() and not self.path.is_file():
            raise FileError(f"{str(self.path)!r} is there and is no file, so the output cannot have its name")
        while True:
            if _same_bytes(self.fd, self.path):
                if fsync:
                    _sync(self.path)
                    self._sync_folders()
                return False
            if fsync:
                os.fsync(self.fd)
            if last_look is not None:
                last_look()
            if replace:
                os.replace(self._temporary, self.path)
                self._temporary = None
            else:
                try:
                    self._link()
                except FileExistsError:
                    if _same_bytes(self.fd, self.path):
                        continue
                    raise OutputExistsError(
                        f"{str(self.path)!r} exists already with other bytes", hint="give --force to replace it"
                    ) from None
            if fsync:
                self._sync_folders()
            return True

    def succeed(self, source: Path, before: tuple[int, ...], *, replace: bool, force: bool, fsync: bool) -> bool:
        """:meth:`publish` a file that was made from ``source``; return whether that changed anything.

        Args:
            source: the input, which may have the very path of the output.
            before: its :func:`identity` when it was read: a file that took its place since is not touched.
            replace: remove the input once the output is safe on the disk; needed where the two have one path.
            force: replace an output that is there with other bytes.
            fsync: return only when the output is on the disk.

        Raises:
            OutputExistsError: the output is there with other bytes, or is the input.
            FileError: the input cannot be removed, or is another file now.
        """
        in_place = is_same_file(source, self.path)
        try:
            written = self.publish(
                replace=replace if in_place else force,
                fsync=fsync or replace,
                last_look=partial(require_unchanged, source, before) if replace else None,
            )
        except OutputExistsError:
            if not in_place:
                raise
            raise OutputExistsError(
                f"{str(self.path)!r} is the input itself", hint="give --replace to replace it, or -o for another folder"
            ) from None
        if replace and not is_same_file(source, self.path):
            require_unchanged(source, before)
            try:
                source.unlink()
            except OSError as error:
                raise FileError.of(f"remove (the output {str(self.path)!r} is written)", source, error) from error
        return written

    def _sync_folders(self) -> None:
        # A folder that was made, for this output or for another of the run, is an entry of the one above it.
        folder = Path(os.path.realpath(self.path.parent))
        _sync(folder)
        for made in (folder, *folder.parents):
            if made in _made_folders:
                _sync(made.parent)

    def _link(self) -> None:
        """Appear under ``path`` without ever replacing what another run puts there meanwhile."""
        assert self._temporary is not None
        try:
            os.link(self._temporary, self.path)
        except OSError as error:
            if error.errno not in _NO_LINKS:
                raise
            if os.path.lexists(self.path):
                raise FileExistsError(errno.EEXIST, "exists") from None
            os.replace(self._temporary, self.path)
            self._temporary = None

    def _discard(self) -> None:
        if self._temporary is not None:
            with contextlib.suppress(OSError):
                os.unlink(self._temporary)
            self._temporary = None
        fd, self.fd = self.fd, -1
        if fd >= 0:
            os.close(fd)


class OutputFolder(_Output):
    """A folder being filled for ``path``; a context manager.

    Fill :attr:`temporary`, then :meth:`publish`. Leaving it otherwise removes what was written.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.temporary = path
        self._fd = -1

    def __enter__(self) -> Self:
        if os.path.lexists(self.path):
            raise OutputExistsError(
                f"{str(self.path)!r} exists already", hint="remove it, or choose another folder with -d"
            )
        return super().__enter__()

    def _create(self, folder: Path) -> None:
        while True:
            temporary = _temporary(folder, self.path.name)
            # Known before it is there, so that an interrupt in between leaves nothing.
            self.temporary = temporary
            temporary.mkdir()
            try:
                self._fd = os.open(temporary, os.O_RDONLY | getattr(os, "O_CLOEXEC", 0))
            except FileNotFoundError:
                continue
            # Another run may have taken the folder for a dead one's before it was locked.
            if _lock(self._fd) is not False and _is_same(self._fd, temporary):
                return
            os.close(self._fd)
            self._fd = -1

    def publish(self) -> None:
        """Give the folder its name.

        Raises:
            OutputExistsError: another run made it meanwhile.
        """
        try:
            os.rename(self.temporary, self.path)
        except OSError:
            if os.path.lexists(self.path):
                raise OutputExistsError(f"{str(self.path)!r} exists already") from None
            raise
        self.temporary = self.path

    def _discard(self) -> None:
        if self.temporary != self.path:
            _remove_tree(self.temporary)
            self.temporary = self.path
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)


def _temporary(folder: Path, name: str) -> Path:
    # A name may be as long as the file system allows; the temporary one is longer.
    return folder / f".{name.removesuffix('.whl')[:180]}.{os.urandom(8).hex()}{_SUFFIX}"


def _make_folders(folder: Path) -> None:
    """Make ``folder`` and those above it that are missing.

    Raises:
        FileError: something else has its name.
    """
    if folder.exists() and not folder.is_dir():
        raise FileError(f"{str(folder)!r} is no folder, expected the output folder")
    above = Path(os.path.realpath(folder))  # outputs of one run may spell one folder in several ways
    while not above.exists():
        _made_folders.add(above)  # before it is there: no other thread may find it and not know that it is new
        above = above.parent
    folder.mkdir(parents=True, exist_ok=True)


def remove_leftovers(folder: Path) -> None:
    """Remove the temporary files of runs that are dead; leave those that a live run holds."""
    with os.scandir(folder) as entries:
        names = [entry.name for entry in entries if entry.name.endswith(_SUFFIX) and re.match(_OURS, entry.name)]
    for name in names:
        path = folder / name
        with contextlib.suppress(OSError):
            is_folder = stat.S_ISDIR(os.lstat(path).st_mode)
            access = os.O_RDONLY if is_folder else os.O_RDWR
            fd = os.open(path, access | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0))
            try:
                if _lock(fd) and _is_same(fd, path):
                    if is_folder:
                        _remove_tree(path)
                    else:
                        os.unlink(path)
            finally:
                os.close(fd)


def _remove_tree(path: Path) -> None:
    import shutil  # costly, and seldom needed

    shutil.rmtree(path, ignore_errors=True)


def _lock(fd: int) -> bool | None:
    """True: locked now; False: somebody holds it; None: this file system has no locks."""
    if fcntl is None:
        return True
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return None  # better a leftover than the file of a live run removed
    return True


def _is_same(fd: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(fd), os.stat(path))
    except FileNotFoundError:
        return False


def _same_bytes(fd: int, path: Path) -> bool:
    """Whether ``path`` is a regular file with the bytes of ``fd``."""
    try:
        if not stat.S_ISREG(os.stat(path).st_mode):
            return False
        other = open(path, "rb", buffering=0)  # noqa: SIM115
    except OSError:
        return False
    with other:
        if os.fstat(fd).st_size != os.fstat(other.fileno()).st_size:
            return False
        os.lseek(fd, 0, os.SEEK_SET)
        while True:
            require_running()
            ours, theirs = os.read(fd, _CHUNK), other.read(_CHUNK)
            if ours != theirs:
                return False
            if not ours:
                return True


def _sync(path: Path) -> None:
    try:
        fd = os.open(path, os.O_RDONLY)
    except OSError:
        if path.is_dir():
            return  # Windows opens no folders
        raise
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
