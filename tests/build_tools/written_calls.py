"""Every call to the operating system that writes (or reads), counted, and one of them made to go wrong.

The functions that reach the file system stand in one place here: those of :mod:`os`, and :func:`io.open` for what
is opened by its name. A run is watched once to learn its calls; then each of them in turn fails, is interrupted, or is
the last that the process makes.
"""

from __future__ import annotations

import contextlib
import io
import os
import signal
import threading
import traceback
import warnings
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

CALLS = (
    "write", "pwrite", "writev", "copy_file_range", "sendfile", "fsync", "fdatasync", "truncate", "ftruncate",
    "link", "symlink", "rename", "replace", "unlink", "remove", "mkdir", "rmdir", "chmod", "fchmod", "utime", "mkfifo",
)  # fmt: skip
READS = ("read", "pread", "stat", "lstat", "fstat", "scandir")
_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND

Step = Callable[[int, str], None]


class _WatchedFile(io.FileIO):
    """A file opened by its name: its writes are calls too."""

    take: Callable[[str], contextlib.AbstractContextManager[None]]

    def write(self, data: Any, /) -> int:
        with self.take("write"):
            return super().write(data)

    def truncate(self, size: int | None = None, /) -> int:
        with self.take("ftruncate"):
            return super().truncate(size)

    def readinto(self, buffer: Any, /) -> int | None:
        with self.take("read"):
            return super().readinto(buffer)


class Watch:
    """What the calls of one run do: all are listed, and ``before`` and ``after`` are told of each, in its thread.

    Args:
        before, after: told of the number and the name of each call.
        reads: watch the calls that read, not those that write.

    Attributes:
        calls: the name of each call, in order.
    """

    def __init__(
        self,
        before: Step = lambda at, call: None,
        after: Step = lambda at, call: None,
        *,
        reads: bool = False,
    ) -> None:
        self.calls: list[str] = []
        self._names = READS if reads else CALLS
        self._reads = reads
        self._lock = threading.Lock()
        self._before = before
        self._after = after

    @contextlib.contextmanager
    def _take(self, call: str, path: object = None) -> Iterator[None]:
        with self._lock:
            at = len(self.calls)
            self.calls.append(call)
        try:
            self._before(at, call)
        except OSError as error:
            if isinstance(path, (str, os.PathLike)):
                error.filename = os.fspath(path)  # as the system's own errors
            raise
        yield
        self._after(at, call)

    def _wrapped(self, call: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def wrapper(*arguments: Any, **options: Any) -> Any:
            with self._take(call, arguments[0] if arguments else None):
                return real(*arguments, **options)

        return wrapper

    def _os_open(self, path: Any, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
        if bool(flags & _WRITING) == self._reads:
            return _REAL_OS_OPEN(path, flags, mode, dir_fd=dir_fd)
        with self._take("open", path):
            return _REAL_OS_OPEN(path, flags, mode, dir_fd=dir_fd)

    def _io_open(self, file: Any, mode: str = "r", *arguments: Any, **options: Any) -> Any:
        if bool(set(mode) & set("wax+")) == self._reads:
            return _REAL_IO_OPEN(file, mode, *arguments, **options)
        if isinstance(file, int):
            raw = _WatchedFile(file, mode.replace("b", "").replace("t", ""))
        else:
            with self._take("open", file):
                raw = _WatchedFile(file, mode.replace("b", "").replace("t", ""))
        raw.take = self._take
        buffered = io.BufferedReader(raw) if self._reads else io.BufferedWriter(raw)
        if "b" in mode:
            return buffered
        names = ("buffering", "encoding", "errors", "newline")
        given = {**dict(zip(names, arguments, strict=False)), **options}
        given.pop("buffering", None)
        return io.TextIOWrapper(buffered, **given)

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        wrappers = {name: self._wrapped(name, getattr(os, name)) for name in self._names if hasattr(os, name)}
        # What looks at these sets must find the wrappers there too.
        sets = {
            name: getattr(os, name) | {wrappers[call] for call in wrappers if _REAL[call] in getattr(os, name)}
            for name in ("supports_dir_fd", "supports_fd", "supports_follow_symlinks")
        }
        if _REAL_OS_OPEN in os.supports_dir_fd:
            sets["supports_dir_fd"] |= {self._os_open}
        with (
            mock.patch.multiple(os, **wrappers, **sets, open=self._os_open),
            mock.patch.object(io, "open", self._io_open),
            mock.patch("builtins.open", self._io_open),
        ):
            yield


_REAL_OS_OPEN, _REAL_IO_OPEN = os.open, io.open
_REAL = {name: getattr(os, name) for name in (*CALLS, *READS) if hasattr(os, name)}


def failing(at: int, number: int, *, ever_after: bool = False, reads: bool = False) -> Watch:
    """Call ``at`` fails with the errno ``number``; with ``ever_after`` every later one too, as on a disk that died."""

    def before(now: int, call: str) -> None:
        if now == at or (ever_after and now > at):
            raise OSError(number, os.strerror(number))

    return Watch(before, reads=reads)


def signalled(at: int, number: signal.Signals, *, done: bool = False) -> Watch:
    """A signal reaches the process just before call ``at``, or (``done``) just after it took effect."""

    def step(now: int, call: str) -> None:
        if now == at:
            os.kill(os.getpid(), number)

    return Watch(after=step) if done else Watch(step)


def in_a_child(run: Callable[[], int], watch: Watch) -> int:
    """Run in a process of its own; its exit code, or the signal that ended it as a negative number."""
    with warnings.catch_warnings():
        # The child calls nothing that another thread could have left locked.
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if not child:
        code = 99
        try:
            with watch.watching():
                code = run()
        except BaseException:
            os.write(2, traceback.format_exc().encode())  # pytest shows what came this way
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
