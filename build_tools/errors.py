"""Everything that this tooling refuses to do, as one family of exceptions.

Each concrete error also inherits the builtin that a caller would expect, so
``except ValueError`` catches a bad version and ``except FileExistsError`` an output in the way.
Only the command line turns them into exit codes.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Sequence
from typing import TypeVar

T = TypeVar("T")


class ReleaseError(Exception):
    """Root of the family.

    Attributes:
        faults: every fault of the input, each one sentence without a full stop; at least one.
        hint: what to do next, or ``None``.
    """

    def __init__(self, faults: str | Sequence[str], *, hint: str | None = None) -> None:
        self.faults: tuple[str, ...] = (faults,) if isinstance(faults, str) else tuple(faults)
        self.hint = hint
        super().__init__("\n".join(self.faults))

    def __str__(self) -> str:
        return "\n".join(self.faults)


class Faults:
    """Collects what several checks refuse, so that one run names all of it."""

    def __init__(self) -> None:
        self.errors: list[ReleaseError] = []

    def attempt(self, check: Callable[[], T]) -> T | None:
        """What ``check`` returns, or ``None`` where it refuses."""
        try:
            return check()
        except ReleaseError as error:
            self.errors.append(error)
            return None

    def raise_any(self, kind: type[ReleaseError]) -> None:
        """Raise an error of ``kind`` with every fault and hint, if there is any; a single one of that kind as it is."""
        if len(self.errors) == 1 and isinstance(self.errors[0], kind):
            raise self.errors[0]
        if self.errors:
            faults = dict.fromkeys(fault for error in self.errors for fault in error.faults)
            hints = dict.fromkeys(error.hint for error in self.errors if error.hint)
            raise kind(list(faults), hint="; ".join(hints) or None)


class UsageError(ReleaseError, ValueError):
    """The arguments of a command do not go together."""


class VersionError(ReleaseError, ValueError):
    """A text is no version, or a version file does not hold exactly one."""


class WheelNameError(ReleaseError, ValueError):
    """A file name, project name, tag or build tag is not what the specification allows."""


class EditError(ReleaseError, ValueError):
    """A requested edit is invalid or cannot be applied to this wheel."""


class WheelError(ReleaseError, ValueError):
    """A file is not a wheel, or a wheel breaks a rule or disagrees with itself.

    Attributes:
        member: the archive member concerned, or ``None`` where it is the wheel as a whole.
        reason: what is wrong with the member, without its name.
    """

    def __init__(
        self, faults: str | Sequence[str], *, hint: str | None = None, member: str | None = None, reason: str = ""
    ) -> None:
        super().__init__(faults, hint=hint)
        self.member = member
        self.reason = reason or str(self)


class TreeError(ReleaseError, ValueError):
    """An unpacked folder cannot be packed into a wheel."""


class PlanError(ReleaseError, ValueError):
    """``[tool.te-wheel]`` is missing or invalid."""


class IndexingError(ReleaseError, ValueError):
    """A folder of distributions cannot be indexed: two files have one name, or a line of yanked.txt names none."""


class OutputExistsError(ReleaseError, FileExistsError):
    """The output is there already with other bytes, or is the input itself."""


class FileError(ReleaseError, OSError):
    """The operating system refused to read or write a file: ``errno``, ``strerror`` and ``filename`` say why."""

    @classmethod
    def of(cls, action: str, path: str | os.PathLike[str], error: OSError) -> FileError:
        """The error of an ``action`` (``"read"``) on ``path`` that failed with ``error``."""
        where = os.fspath(path)
        kind = MissingFileError if error.errno == errno.ENOENT else cls
        made = kind(f"cannot {action} {where!r}: {error.strerror or error}", hint=_HINTS.get(error.errno or 0))
        made.errno, made.strerror, made.filename = error.errno, error.strerror, where
        return made


class MissingFileError(FileError, FileNotFoundError):
    """A file is not there."""


_HINTS = {
    **dict.fromkeys((errno.ENOSPC, errno.EDQUOT), "free some space, or choose another folder"),
    **dict.fromkeys((errno.EACCES, errno.EPERM, errno.EROFS), "look at its permissions, or choose another folder"),
}


class BuildError(ReleaseError, RuntimeError):
    """The build backend failed, or built something else than the version asks for."""


class ToolError(ReleaseError, RuntimeError):
    """A program that this step needs is missing or could not be run."""
