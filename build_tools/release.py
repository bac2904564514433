"""The whole release: plan -> built wheel -> rewritten wheels -> checked -> installed -> SHA256SUMS, release.json.

SHA256SUMS lists every file of this run that has not failed, in the format of ``sha256sum``.

release.json holds no time and no folder, so the same sources give the same bytes::

    {"schema": 1,
     "name": "te-pkg", "version": "2.21.0.dev0",
     "source": {"file", "size", "sha256"},            the wheel that the variants are made from
     "sdist": {"file", "size", "sha256"} or null,     null where no build was made
     "artifacts": [{"file", "size", "sha256",
                    "variant": the id, or null for the source wheel itself,
                    "changes": [{"where", "field", "old", "new"}],
                    "findings": [{"code", "severity", "message", "member", "rule"}],
                    "smoke": {"install": STATUS, "import": STATUS, "version": STATUS}}],
     "failures": [{"variant", "faults": [...]}]}      variants that could not be written

A STATUS is ``passed``, ``failed: why`` or ``skipped: why``.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from packaging.version import Version

from build_tools.errors import EditError, FileError, PlanError, ReleaseError, ToolError
from build_tools.plan import Plan, Variant, read_plan
from build_tools.project import build_project, place
from build_tools.report import Report, silent
from build_tools.smoke import Base, SmokeResult, smoke_wheel
from build_tools.version import read_version
from build_tools.wheels.check import check_wheel
from build_tools.wheels.finding import Finding, Severity
from build_tools.wheels.header_edit import Change
from build_tools.wheels.name import WheelName
from build_tools.wheels.output import OutputFile
from build_tools.wheels.rewrite import repack

SCHEMA = 1
SUMS = "SHA256SUMS"
FACTS = "release.json"


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
    def failed(self) -> bool:
        """Whether it breaks a rule or failed its trial."""
        return bool(self.errors) or self.smoke.failed


@dataclass(frozen=True, slots=True)
class Failure:
    """A variant that could not be written."""

    variant: str
    error: ReleaseError


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
    """

    folder: Path
    name: str
    version: Version
    source: ReleasedFile
    sdist: ReleasedFile | None
    artifacts: tuple[Artifact, ...]
    failures: tuple[Failure, ...]

    @property
    def failed(self) -> bool:
        """Whether a variant could not be written, breaks a rule, or failed its trial."""
        return bool(self.failures) or any(artifact.failed for artifact in self.artifacts)

    @property
    def faults(self) -> tuple[str, ...]:
        """Why it failed: one sentence for each fault, with its variant."""
        lines = [f"variant {failure.variant!r}: {fault}" for failure in self.failures for fault in failure.error.faults]
        for artifact in self.artifacts:
            name = artifact.file.path.name
            lines += [f"{name}: {finding}" for finding in artifact.errors]
            lines += [f"{name}: {part} {status}" for part, status in artifact.smoke.parts if status.outcome == "failed"]
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
            "failures": [
                {"variant": failure.variant, "faults": [self._plain(fault) for fault in failure.error.faults]}
                for failure in self.failures
            ],
        }

    @property
    def sums(self) -> str:
        """The content of SHA256SUMS."""
        good = [artifact.file for artifact in self.artifacts if not artifact.failed]
        files = good + ([self.sdist] if self.sdist is not None else [])
        return "".join(f"{file.sha256}  {file.path.name}\n" for file in sorted(files, key=lambda file: file.path.name))

    def _plain(self, text: str) -> str:
        return text.replace(f"{self.folder}{os.sep}", "")


def release(
    project: str | os.PathLike[str] = ".",
    out_dir: str | os.PathLike[str] = "dist",
    *,
    only: Iterable[str] = (),
    wheel: str | os.PathLike[str] | None = None,
    smoke: bool = True,
    force: bool = False,
    verbose: bool = False,
    report: Report = silent,
) -> Release:
    """Make the release of a project: every variant of its plan.

    Args:
        project: the folder with the plan, and with the sources unless ``wheel`` is given.
        out_dir: where all files go; made if missing.
        only: ids of the variants to make; none means all.
        wheel: an existing wheel to start from in place of the build. It stays where it is, and is
            part of the release only where that is ``out_dir``.
        smoke: whether each wheel is installed and imported.
        force: replace files that are there with other bytes.
        verbose: report the output of the build as it comes.
        report: gets each line of talk.

    Returns:
        What was made. Look at :attr:`Release.failed`: a variant that fails does not stop the others.

    Raises:
        PlanError: the plan is missing or invalid, or has no such variant.
        BuildError, ToolError: the project cannot be built.
        WheelError, EditError: a variant cannot be made from this wheel, or two would be one file;
            nothing is written then, and every such variant is named.
        OutputExistsError: the wheel or the sdist is there with other bytes; nothing is written.
        FileError: a file cannot be read or written.
    """
    folder = Path(out_dir).absolute()
    plan = read_plan(project)
    variants = _choose(plan, only)
    if folder.exists() and not folder.is_dir():
        raise FileError(f"{str(out_dir)!r} is no folder, expected the output folder")
    with _source(project, wheel, folder, verbose, report) as (made, sdist):
        beside = wheel is None or made.parent.resolve() == folder.resolve()
        _check_variants(made, folder, variants, beside=beside)
        _compare_version(plan, made, report)
        if wheel is None:
            made = place(made, folder, replace=force)
        released_sdist = ReleasedFile.of(place(sdist, folder, replace=force)) if sdist is not None else None
        source = ReleasedFile.of(made)
    wheels: list[tuple[ReleasedFile, str | None, tuple[Change, ...]]] = []
    if beside:
        wheels.append((source, None, ()))
    failures: list[Failure] = []
    for variant in variants:
        report(f"variant {variant.id}: rewriting {made.name}")
        try:
            repacked = repack(made, folder, variant.edit, force=force)
            wheels.append((ReleasedFile.of(repacked.path), variant.id, repacked.changes))
        except ReleaseError as error:
            failures.append(Failure(variant.id, error))
    findings = [tuple(check_wheel(file.path, hashes=True)) for file, _, _ in wheels]
    results = _try_all([file.path for file, _, _ in wheels], plan, smoke, report)
    name = WheelName.parse(made.name)
    done = Release(
        folder,
        name.name,
        name.version,
        source,
        released_sdist,
        tuple(Artifact(*parts, found, result) for parts, found, result in zip(wheels, findings, results, strict=True)),
        tuple(failures),
    )
    _write(folder / SUMS, done.sums)
    _write(folder / FACTS, json.dumps(done.facts, indent=2, ensure_ascii=False) + "\n")
    return done


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
        check = f"{len(artifact.errors)} errors" if artifact.errors else "passed"
        install, imported, version = (status for _, status in artifact.smoke.parts)
        tried = imported if version.outcome == "skipped" or imported.outcome != "passed" else version
        rows.append((name, _size(artifact.file.size), artifact.variant or "-", check, install.outcome, tried.outcome))
        notes += [f"{name}: {finding}" for finding in artifact.findings]
        notes += [f"{name}: {part} {status}" for part, status in artifact.smoke.parts if status.why]
    if done.sdist is not None:
        rows.append((done.sdist.path.name, _size(done.sdist.size), "-", "-", "-", "-"))
    for failure in done.failures:
        rows.append(("(not written)", "-", failure.variant, "failed", "-", "-"))
        notes += [f"variant {failure.variant!r}: {fault}" for fault in failure.error.faults]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    return "\n".join([*lines, *notes])


def _choose(plan: Plan, only: Iterable[str]) -> tuple[Variant, ...]:
    wanted = list(dict.fromkeys(only))
    known = [variant.id for variant in plan.variants]
    unknown = [id_ for id_ in wanted if id_ not in known]
    if unknown:
        raise PlanError(
            [f"the plan has no variant {id_!r}, expected one of {', '.join(map(repr, known))}" for id_ in unknown]
        )
    return tuple(variant for variant in plan.variants if not wanted or variant.id in wanted)


@contextlib.contextmanager
def _source(
    project: str | os.PathLike[str], wheel: str | os.PathLike[str] | None, folder: Path, verbose: bool, report: Report
) -> Iterator[tuple[Path, Path | None]]:
    """The wheel to start from and its sdist: built outside ``folder``, which is not touched yet."""
    if wheel is not None:
        yield Path(wheel), None
        return
    report("building the wheel and the sdist")
    with tempfile.TemporaryDirectory(prefix="te-wheel-release-") as scratch:
        built = build_project(project, scratch, verbose=verbose, report=report)
        yield built.wheel, built.sdist


def _check_variants(source: Path, folder: Path, variants: Sequence[Variant], *, beside: bool) -> None:
    """Decide every rewrite without writing.

    Args:
        source, folder: the wheel to start from and the output folder.
        variants: what to make of it.
        beside: whether the source wheel itself will stand in the output folder.

    Raises:
        WheelError: the source wheel is none that can be rewritten.
        EditError: an edit does not fit it, or two outputs would be one file; all are named.
    """
    faults: list[str] = []
    hints: list[str] = []
    makers = {source.name: "the wheel that it is made from"} if beside else {}
    for variant in variants:
        try:
            name = repack(source, folder, variant.edit, dry_run=True).path.name
        except EditError as error:
            faults += [f"variant {variant.id!r}: {fault}" for fault in error.faults]
            hints += [error.hint] if error.hint else []
            continue
        if name in makers:
            faults.append(f"variant {variant.id!r} would be {name}, the same file as {makers[name]}")
            hints.append("give it a name, version, local label, build or tag of its own")
        makers.setdefault(name, f"variant {variant.id!r}")
    if faults:
        raise EditError(faults, hint="; ".join(dict.fromkeys(hints)) or None)


def _compare_version(plan: Plan, source: Path, report: Report) -> None:
    """Say where an existing wheel is of another version than the project is now."""
    if plan.version_file is None:
        return
    wanted, found = read_version(plan.version_file), WheelName.parse(source.name).version
    if wanted.public != found.public:
        report(f"note: {source.name} has version {found}, {plan.version_file.name} says {wanted}")


def _try_all(paths: Sequence[Path], plan: Plan, smoke: bool, report: Report) -> list[SmokeResult]:
    """Try each wheel in a layer over one base; what cannot be tried is skipped."""
    if not smoke:
        return [SmokeResult.skip(path.name, "not asked for") for path in paths]
    results: list[SmokeResult] = []
    asked = plan.smoke
    try:
        with Base(asked.requires, report=report) as base:
            for path in paths:
                try:
                    results.append(smoke_wheel(path, imports=asked.imports, run=asked.run, base=base, report=report))
                except ToolError as error:
                    results.append(SmokeResult.skip(path.name, str(error)))
    except ToolError as error:
        results += [SmokeResult.skip(path.name, str(error)) for path in paths[len(results) :]]
    return results


def _artifact_facts(artifact: Artifact) -> dict[str, Any]:
    return {
        **artifact.file.facts,
        "variant": artifact.variant,
        "changes": [change.facts for change in artifact.changes],
        "findings": [finding.facts for finding in artifact.findings],
        "smoke": {part: str(status) for part, status in artifact.smoke.parts},
    }


def _write(path: Path, text: str) -> None:
    """Write a small file that appears only when it is whole."""
    with OutputFile(path) as output:
        with output.stream() as sink:
            sink.write(text.encode())
        output.publish(replace=True, fsync=False)


def _size(count: int) -> str:
    size = float(count)
    for unit in ("B", "kB", "MB"):
        if size < 1000:
            return f"{size:.0f} {unit}" if unit == "B" or size >= 100 else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.1f} GB"
