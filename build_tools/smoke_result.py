"""How the trial of a wheel ended, part by part. What could not be tried is skipped, never passed."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Self

NOT_ASKED = "not asked for"
"""Why a trial that nobody wanted did not take place."""
NO_FILES = "a metapackage has no files"
"""Why there is nothing to try."""


class Outcome(StrEnum):
    """How a part of a trial ended."""

    PASSED = "passed"
    FAILED = "failed"
    SKIPPED = "skipped"


@dataclass(frozen=True, slots=True)
class Status:
    """How one part of the trial ended, and why; or, where it passed, under which condition.

    >>> str(Status.skipped("torch==2.13.0 could not be installed"))
    'skipped: torch==2.13.0 could not be installed'
    >>> str(Status.passed("without dependencies"))
    'passed, without dependencies'
    """

    outcome: Outcome
    why: str = ""

    @classmethod
    def passed(cls, condition: str = "") -> Self:
        """It was tried, and held."""
        return cls(Outcome.PASSED, condition)

    @classmethod
    def failed(cls, why: str) -> Self:
        """It was tried, and did not hold."""
        return cls(Outcome.FAILED, why)

    @classmethod
    def skipped(cls, why: str) -> Self:
        """It could not be tried."""
        return cls(Outcome.SKIPPED, why)

    def __str__(self) -> str:
        separator = ", " if self.outcome is Outcome.PASSED else ": "
        return f"{self.outcome}{separator}{self.why}" if self.why else str(self.outcome)


@dataclass(frozen=True, slots=True)
class SmokeResult:
    """How the trial of one wheel ended.

    Attributes:
        wheel: its file name.
        install: the installation, with dependencies.
        imported: every import and the snippet.
        version: the version of the installed metadata, and ``__version__`` of the modules imported
            that the wheel holds, against the file name.
    """

    wheel: str
    install: Status
    imported: Status
    version: Status

    @classmethod
    def skip(cls, wheel: str, why: str) -> Self:
        """The result of a trial that did not take place."""
        return cls(wheel, *(Status.skipped(why),) * 3)

    @property
    def parts(self) -> tuple[tuple[str, Status], ...]:
        """The parts in order, each with its name."""
        return (("install", self.install), ("import", self.imported), ("version", self.version))

    @property
    def failed(self) -> bool:
        """Whether any part failed; a skipped one has not."""
        return any(status.outcome is Outcome.FAILED for _, status in self.parts)
