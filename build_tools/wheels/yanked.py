"""The list of files that an index offers, but that no installer takes unasked (PEP 592): ``yanked.txt``.

Each line names what is yanked, then says why; ``#`` begins a comment::

    demo-1.0-py3-none-any.whl    imports fail on Python 3.14
    demo==1.1                    holds debug symbols

What is yanked is a file name, or a requirement without blanks that its version meets.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from packaging.requirements import InvalidRequirement, Requirement

from build_tools.errors import FileError, IndexingError
from build_tools.wheels.distribution import ENDINGS, Distribution
from build_tools.wheels.name import normal_form

DEFAULT = "yanked.txt"


class Yank(NamedTuple):
    """One line: where it stands, what it names, and why."""

    line: int
    what: str
    reason: str

    def names(self, file: Distribution) -> bool:
        """Whether it names this file."""
        if self.what.endswith(ENDINGS):
            return self.what == file.filename
        requirement = Requirement(self.what)
        return normal_form(requirement.name) == file.project and requirement.specifier.contains(
            file.version, prereleases=True
        )


def read_yanked(path: Path) -> list[Yank]:
    """Read a list of yanked files.

    Raises:
        IndexingError: it is not UTF-8, or a line names neither a file nor versions; each is named.
        FileError: it cannot be read.
    """
    try:
        text = path.read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise IndexingError(f"{str(path)!r} is not UTF-8: {error.reason} at byte {error.start}") from None
    except OSError as error:
        raise FileError.of("read", path, error) from error
    yanks: list[Yank] = []
    faults: list[str] = []
    for number, line in enumerate(text.splitlines(), 1):
        words = line.partition("#")[0].split() if line.lstrip().startswith("#") else line.split()
        if not words:
            continue
        yank = Yank(number, words[0], " ".join(words[1:]))
        if not yank.what.endswith(ENDINGS) and not _names_versions(yank.what):
            faults.append(
                f"{path.name}:{number}: {yank.what!r} is neither a file name nor versions of a project, "
                "expected such as 'demo-1.0-py3-none-any.whl' or 'demo==1.0', then why"
            )
        yanks.append(yank)
    if faults:
        raise IndexingError(faults)
    return yanks


def _names_versions(text: str) -> bool:
    try:
        requirement = Requirement(text)
    except InvalidRequirement:
        return False
    return bool(requirement.specifier) and not (requirement.extras or requirement.marker)


def find_yanked(yanks: Iterable[Yank], files: Iterable[Distribution], path: Path) -> dict[str, str]:
    """The reason of each file that is yanked, by its name; the first line that names it counts.

    Raises:
        IndexingError: a line names no file: a slip there would leave on offer what must not be taken.
    """
    files = list(files)
    reasons: dict[str, str] = {}
    faults: list[str] = []
    for yank in yanks:
        named = [file.filename for file in files if yank.names(file)]
        if not named:
            faults.append(f"{path.name}:{yank.line}: {yank.what!r} names no file of the index")
        for name in named:
            reasons.setdefault(name, yank.reason)
    if faults:
        raise IndexingError(faults, hint="mend the line, or remove it if the file is gone")
    return reasons
