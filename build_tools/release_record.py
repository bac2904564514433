"""What a release made: its wheels and how each fared, as SHA256SUMS, release.json and a table.

SHA256SUMS lists every file of this run that has not failed, in the format of ``sha256sum``.

release.json holds no time and no folder, so the same sources give the same bytes::

    {"schema": 1,
     "name": "te-pkg", "version": "2.21.0.dev0",
     "source": {"file", "size", "sha256"},            the wheel that the variants are made from
     "sdist": {"file", "size", "sha256"} or null,     null where no build was made
     "artifacts": [{"file", "size", "sha256",
                    "variant": the id, or null for the source wheel itself,
                    "changes": [{"where", "field", "old", "new"}],
                    "findings": [{"code", "severity", "message", "member", "rule", "specification", "hint"}],
                    "smoke": {"install": STATUS, "import": STATUS, "version": STATUS}}],
     "failures": [{"variant", "faults": [...]}],      variants that could not be written
     "edits": {id: {option: value}},                  what the plan asks of each variant that was wanted
     "tools": {"te-build-tools", "python"},           versions of what made it
     "notes": [...]}                                  what is odd about the release as a whole

A STATUS is ``passed``, ``passed, without dependencies``, ``failed: why`` or ``skipped: why``.
"""

from __future__ import annotations

import hashlib
import os
import platform
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from packaging.version import Version

from build_tools import __version__
from build_tools.console import printable
from build_tools.errors import FileError
from build_tools.report import counted, human_size
from build_tools.smoke_result import NO_FILES, NOT_ASKED, Outcome, SmokeResult
from build_tools.variant import Variant
from build_tools.wheels.change import Change
from build_tools.wheels.finding import Finding
from build_tools.wheels.rules import Severity

SCHEMA = 1


@dataclass(frozen=True, slots=True)
class ReleasedFile:
    """A file of the release and its digest."""

    path: Path
    size: int
    sha256: str

    @classmethod
    def of(cls, path: Path) -> ReleasedFile:
        """Read ``path`` once for its digest."""
        try:
            with path.open("rb") as file:
                return cls(path, os.fstat(file.fileno()).st_size, hashlib.file_digest(file, "sha256").hexdigest())
        except OSError as error:
            raise FileError.of("read", path, error) from error

    def at(self, folder: Path) -> ReleasedFile:
        """The same file where it will be: in ``folder``."""
        return replace(self, path=folder / self.path.name)

    @property
    def facts(self) -> dict[str, Any]:
        """The file for programs: ``file``, ``size`` in bytes, ``sha256`` in hex."""
        return {"file": self.path.name, "size": self.size, "sha256": self.sha256}


@dataclass(frozen=True, slots=True)
class Artifact:
    """A wheel of the release: what it is, what was changed, what was found.

    Attributes:
        file: the wheel.
        variant: the id of its variant, or ``None`` for the source wheel itself.
        changes: what differs from the source wheel.
        findings: every rule that it breaks.
        smoke: how its trial ended.
    """

    file: ReleasedFile
    variant: str | None
    changes: tuple[Change, ...]
    findings: tuple[Finding, ...]
    smoke: SmokeResult

    @property
    def errors(self) -> tuple[Finding, ...]:
        """The findings that fail the check."""
        return tuple(finding for finding in self.findings if finding.severity is Severity.ERROR)

    @property
    def check(self) -> str:
        """How the check ended, in short: ``passed`` or ``2 errors``."""
        count = len(self.errors)
        return counted(count, "error") if count else "passed"

    @property
    def failed(self) -> bool:
        """Whether it breaks a rule or failed its trial."""
        return bool(self.errors) or self.smoke.failed


@dataclass(frozen=True, slots=True)
class Failure:
    """A variant that could not be written, why, and what to do next."""

    variant: str
    faults: tuple[str, ...]
    hint: str | None = None


@dataclass(frozen=True, slots=True)
class Release:
    """What a release made.

    Attributes:
        folder: where it is.
        name, version: those of the source wheel.
        source: the wheel that the variants were made from.
        sdist: the sdist, or ``None`` where no build was made.
        artifacts: every wheel in the folder, in the order of the plan.
        failures: the variants that could not be written.
        warnings: what is odd about the release as a whole.
        variants: what was wanted.
    """

    folder: Path
    name: str
    version: Version
    source: ReleasedFile
    sdist: ReleasedFile | None
    artifacts: tuple[Artifact, ...]
    failures: tuple[Failure, ...]
    warnings: tuple[str, ...] = ()
    variants: tuple[Variant, ...] = ()

    @property
    def failed(self) -> bool:
        """Whether a variant could not be written, breaks a rule, or failed its trial."""
        return bool(self.failures) or any(artifact.failed for artifact in self.artifacts)

    @property
    def faults(self) -> tuple[str, ...]:
        """Why it failed: one sentence for each fault, with its variant."""
        lines = [f"variant {failure.variant!r}: {fault}" for failure in self.failures for fault in failure.faults]
        for artifact in self.artifacts:
            name = artifact.file.path.name
            lines += [f"{name}: {finding}" for finding in artifact.errors]
            lines += [
                f"{name}: {part} {status}" for part, status in artifact.smoke.parts if status.outcome is Outcome.FAILED
            ]
        return tuple(lines)

    @property
    def hint(self) -> str | None:
        """What to do about the variants that could not be written."""
        return "; ".join(dict.fromkeys(failure.hint for failure in self.failures if failure.hint)) or None

    @property
    def skipped(self) -> tuple[str, ...]:
        """What could not be tried, and why: one sentence for each wheel and reason; nothing that nobody asked for."""
        lines: list[str] = []
        for artifact in self.artifacts:
            by_reason: dict[str, list[str]] = {}
            for part, status in artifact.smoke.parts:
                if status.outcome is Outcome.SKIPPED and status.why not in (NOT_ASKED, NO_FILES):
                    by_reason.setdefault(status.why, []).append(part)
            lines += [
                f"{artifact.file.path.name}: {', '.join(parts)} skipped: {why}" for why, parts in by_reason.items()
            ]
        return tuple(lines)

    @property
    def facts(self) -> dict[str, Any]:
        """The content of release.json."""
        return {
            "schema": SCHEMA,
            "name": self.name,
            "version": str(self.version),
            "source": self.source.facts,
            "sdist": self.sdist.facts if self.sdist is not None else None,
            "artifacts": [_artifact_facts(artifact) for artifact in self.artifacts],
            "failures": [{"variant": failure.variant, "faults": list(failure.faults)} for failure in self.failures],
            "edits": {variant.id: variant.facts for variant in self.variants},
            "tools": {"te-build-tools": __version__, "python": platform.python_version()},
            "notes": list(self.warnings),
        }

    @property
    def sums(self) -> str:
        """The content of SHA256SUMS."""
        good = [artifact.file for artifact in self.artifacts if not artifact.failed]
        files = good + ([self.sdist] if self.sdist is not None else [])
        return "".join(f"{file.sha256}  {file.path.name}\n" for file in sorted(files, key=lambda file: file.path.name))


def format_table(done: Release) -> str:
    """The wheels of a release as a table, and below it every reason why a part did not pass.

    Example::

        file                                                size  variant  check   install  import
        te_pkg_cu12-2.21.0.dev0-py3-none-manylinux_2_28...  21 kB  cu12    passed  passed   skipped
        te_pkg_cu12-...whl: import skipped: torch==2.13.0 could not be installed
    """
    rows = [("file", "size", "variant", "check", "install", "import")]
    notes: list[str] = []
    for artifact in done.artifacts:
        name = artifact.file.path.name
        install, imported, version = (status for _, status in artifact.smoke.parts)
        decides = version.outcome is not Outcome.SKIPPED and imported.outcome is Outcome.PASSED
        tried = version if decides else imported
        rows.append(
            (
                name,
                human_size(artifact.file.size),
                artifact.variant or "-",
                artifact.check,
                install.outcome,
                tried.outcome,
            )
        )
        notes += [f"{name}: {finding}" for finding in artifact.findings]
        notes += [f"{name}: {part} {status}" for part, status in artifact.smoke.parts if status.why]
    if done.sdist is not None:
        rows.append((done.sdist.path.name, human_size(done.sdist.size), "-", "-", "-", "-"))
    for failure in done.failures:
        rows.append(("(not written)", "-", failure.variant, "failed", "-", "-"))
        notes += [f"variant {failure.variant!r}: {fault}" for fault in failure.faults]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    return "\n".join(map(printable, [*lines, *notes]))


def _artifact_facts(artifact: Artifact) -> dict[str, Any]:
    return {
        **artifact.file.facts,
        "variant": artifact.variant,
        "changes": [change.facts for change in artifact.changes],
        "findings": [finding.facts for finding in artifact.findings],
        "smoke": {part: str(status) for part, status in artifact.smoke.parts},
    }
