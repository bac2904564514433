"""A line on a terminal that says how far a run over many files is."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Self, TextIO, TypeVar

from build_tools.report import human_size

T = TypeVar("T")

_PATIENCE = 1.0
"""Seconds before the line appears: a run that is over by then needs none."""
_PERIOD = 0.2


class Progress:
    """A context manager; the line stands on stderr while it lasts, and only where that is a terminal.

    Args:
        files: what the run goes through.
        quiet: show nothing.

    Whatever else writes to the terminal calls :meth:`hide` first.
    """

    def __init__(self, files: Sequence[Path], *, quiet: bool = False) -> None:
        self._stream = None if quiet or sys.stderr is None or not sys.stderr.isatty() else sys.stderr
        self._files = len(files)
        self._sizes = {path: _size(path) for path in files} if self._stream else {}
        self._done: list[Path] = []
        self._running: dict[Path, None] = {}
        self._ticker: _Ticker | None = None

    def __enter__(self) -> Self:
        if self._stream:
            self._ticker = _Ticker(self._stream, lambda: self.line)
        return self

    def __exit__(self, *_: object) -> None:
        if self._ticker:
            self._ticker.stop()

    @contextlib.contextmanager
    def at(self, path: Path) -> Iterator[None]:
        """While ``path`` is worked on."""
        self._running[path] = None
        try:
            yield
        finally:
            self._done.append(path)
            del self._running[path]

    def watched(self, function: Callable[[Path], T]) -> Callable[[Path], T]:
        """``function``, which works on a path, told of here while it does."""

        def work(path: Path) -> T:
            with self.at(path):
                return function(path)

        return work

    def hide(self) -> None:
        """Take the line away; it comes back by itself."""
        if self._ticker:
            self._ticker.hide()

    @property
    def line(self) -> str:
        """Files, bytes, and what is worked on."""
        done = human_size(sum(self._sizes.get(path, 0) for path in list(self._done)))
        whole = human_size(sum(self._sizes.values()))
        names = ", ".join(path.name for path in list(self._running))
        return f"{len(self._done)} of {self._files} files, {done} of {whole}: {names}"


class _Ticker:
    """Writes a line to a terminal, again and again until it is stopped."""

    def __init__(self, stream: TextIO, line: Callable[[], str]) -> None:
        import threading  # few runs have a terminal

        self._stream = stream
        self._line = line
        self._shown = False
        self._lock = threading.Lock()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def hide(self) -> None:
        with self._lock:
            if self._shown:
                self._write("\r\x1b[K")
                self._shown = False

    def stop(self) -> None:
        self._over.set()
        self._thread.join()
        self.hide()

    def _run(self) -> None:
        wait = _PATIENCE
        while not self._over.wait(wait):
            wait = _PERIOD
            with self._lock:
                self._write(f"\r\x1b[K{_fit(self._line())}")
                self._shown = True

    def _write(self, text: str) -> None:
        with contextlib.suppress(OSError, ValueError):
            self._stream.write(text)
            self._stream.flush()


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _fit(text: str) -> str:
    """``text`` in one line of the terminal."""
    try:
        columns = os.get_terminal_size(sys.stderr.fileno()).columns or 80
    except (OSError, ValueError):
        columns = 80
    text = "".join(char if char.isprintable() else "?" for char in text)
    return text if len(text) < columns else text[: max(columns - 4, 0)] + "..."
