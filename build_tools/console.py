"""Talk to the person or the job that runs the command line.

stdout is data; what is said here goes to stderr. Colour is only an addition, and off where
NO_COLOR is set or stderr is no terminal. Under GitHub Actions errors and findings become
annotations, and summaries go to the job's page.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterable, Sequence

_COLOURS = {"error": "31;1", "warning": "33;1", "hint": "36", "note": "36"}


class Console:
    """Where one run of the command line says things.

    Args:
        quiet: say warnings, errors and hints alone.
    """

    def __init__(self, *, quiet: bool = False) -> None:
        self._quiet = quiet
        self._colour = not os.environ.get("NO_COLOR") and sys.stderr is not None and sys.stderr.isatty()
        self._actions = os.environ.get("GITHUB_ACTIONS") == "true"

    def say(self, text: str) -> None:
        """What is being done, or was: for people."""
        if not self._quiet:
            _write("\n".join(map(printable, text.split("\n"))))

    def note(self, text: str) -> None:
        """Something that a person may want to know."""
        if not self._quiet:
            self._label("note", text)

    def warning(self, text: str) -> None:
        """Something that is odd, and stops nothing."""
        self._label("warning", text)
        self.annotate("warning", text)

    def error(self, faults: Iterable[str], hint: str | None = None) -> None:
        """Each fault in a line of its own, then what to do next."""
        for fault in faults:
            self._label("error", fault)
            self.annotate("error", fault)
        if hint:
            self._label("hint", hint)

    def annotate(self, level: str, message: str, *, file: str | None = None, title: str | None = None) -> None:
        """An annotation on the page of a GitHub Actions job; nothing elsewhere."""
        if self._actions:
            pairs = [("file", file), ("title", title)]
            properties = ",".join(f"{key}={_escape(value, property=True)}" for key, value in pairs if value)
            _write(f"::{level}{' ' + properties if properties else ''}::{_escape(message)}")

    def summary(self, title: str, header: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
        """A table on the page of a GitHub Actions job; nothing elsewhere."""
        path = os.environ.get("GITHUB_STEP_SUMMARY") if self._actions else None
        if not path:
            return
        lines = [f"### {title}", "", _row(header), _row(["---"] * len(header)), *map(_row, rows), ""]
        try:
            with open(path, "a", encoding="utf-8") as file:
                file.write("\n".join(lines) + "\n")
        except OSError as error:
            self.say(f"note: the step summary {path!r} cannot be written: {error.strerror}")

    def _label(self, label: str, text: str) -> None:
        shown = f"\x1b[{_COLOURS[label]}m{label}:\x1b[0m" if self._colour else f"{label}:"
        _write(f"{shown} {printable(text)}")


def _write(text: str) -> None:
    # Nobody hears it where stderr is closed or full; the exit code still tells.
    with contextlib.suppress(OSError, ValueError):
        print(text, file=sys.stderr)


def printable(text: str) -> str:
    """``text`` in one line that is safe to print: what a hostile file is called must not steer a terminal."""
    if text.lstrip().startswith("::"):
        text = text.replace("::", ":\\:", 1)  # nor an Actions runner
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else repr(char)[1:-1] for char in text)


def format_size(count: int) -> str:
    """A number of bytes for people.

    >>> format_size(900), format_size(24_700), format_size(729_000_000)
    ('900 B', '24.7 kB', '729 MB')
    """
    size = float(count)
    for unit in ("B", "kB", "MB"):
        if size < 1000:
            return f"{size:.0f} {unit}" if unit == "B" or size >= 100 else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.1f} GB"


def _row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in cells) + " |"


def _escape(text: str, *, property: bool = False) -> str:
    text = text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")
    return text.replace(":", "%3A").replace(",", "%2C") if property else text
