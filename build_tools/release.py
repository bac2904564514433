"""The whole release: plan -> built wheel -> rewritten wheels -> checked -> installed -> SHA256SUMS, release.json."""

from __future__ import annotations

import contextlib
import json
import os
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path

from packaging.version import Version

from build_tools.errors import EditError, FileError, PlanError, ReleaseError, WheelError
from build_tools.metapackage import is_named, read_metapackage
from build_tools.parallel import in_order
from build_tools.pins import Pin
from build_tools.plan import OWN_NAME_HINT, Plan, read_plan, require_distinct_from_source
from build_tools.project import build_project, place
from build_tools.release_memory import Memory
from build_tools.release_placing import place_all, require_free
from build_tools.release_record import Artifact, Failure, Release, ReleasedFile
from build_tools.release_trials import try_all
from build_tools.report import Report, silent
from build_tools.variant import Variant
from build_tools.version import read_version
from build_tools.wheels.change import Change
from build_tools.wheels.check import check_wheel
from build_tools.wheels.name import WheelName, normal_form
from build_tools.wheels.output import OutputFile, OutputFolder
from build_tools.wheels.repacked import repack

SUMS = "SHA256SUMS"
FACTS = "release.json"


def release(
    project: str | os.PathLike[str] = ".",
    out_dir: str | os.PathLike[str] = "dist",
    *,
    only: Iterable[str] = (),
    wheel: str | os.PathLike[str] | None = None,
    smoke: bool = True,
    force: bool = False,
    fresh: bool = False,
    jobs: int | None = None,
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
        fresh: do everything again that an earlier run, which did not end, has done.
        jobs: how many variants are made, and tried, at once; ``None``: one on each core.
        verbose: report the output of the build as it comes.
        report: gets each line of talk.

    Returns:
        What was made. Look at :attr:`Release.failed`: a variant that fails does not stop the others.

    Raises:
        PlanError: the plan is missing or invalid, has no such variant, or is of another project than ``wheel``.
        BuildError, ToolError: the project cannot be built.
        WheelError, EditError: a variant cannot be made from this wheel, or two would be one file: every
            such variant is named. Nothing is written then but the wheel that was built, which took its time.
        OutputExistsError: wheels or the sdist are there with other bytes: each is named, nothing is written.
        FileError: a file cannot be read or written.

    Everything is made, checked and tried in a hidden folder inside ``out_dir``. The files get their
    places at the end, all or none; a run that is interrupted leaves what was there before, and the next one
    goes on from there (:mod:`build_tools.release_memory`).
    """
    folder = Path(out_dir).absolute()
    plan = read_plan(project)
    variants = _choose(plan, only)
    if folder.exists() and not folder.is_dir():
        raise FileError(f"{str(out_dir)!r} is no folder, expected the output folder")
    beside = wheel is None or Path(wheel).resolve().parent == folder.resolve()
    expected = read_version(plan.version_file) if plan.version_file is not None else None
    if wheel is None:
        require_distinct_from_source(variants, plan.name, expected)
    else:
        _check_project(Path(wheel), plan)
        _check_place(Path(wheel), plan, beside=beside)
        _check_variants(Path(wheel), folder, variants, plan, beside=beside)
    with _working_folder(folder) as work:
        memory = Memory(folder, fresh=fresh)
        sdist: Path | None = None
        if wheel is None:
            report("building the wheel and the sdist")
            built = build_project(project, work, verbose=verbose, report=report, memory=memory)
            made, sdist = built.wheel, built.sdist
            if _replacing(plan, made) is not None:
                (work / "source").mkdir()
                made = made.rename(work / "source" / made.name)
            _check_built(made, Path(out_dir), variants, plan, force=force)
        else:
            made = Path(wheel)
        name = WheelName.parse(made.name)
        wheels: list[_Made] = [(made, None, ())] if beside and _replacing(plan, made) is None else []
        failures: list[Failure] = []
        pins = _pins(made, folder, variants, plan)
        make = partial(_make, made, work, pins=pins)
        with contextlib.closing(in_order(make, variants, jobs, name=lambda variant: variant.id)) as outcomes:
            for variant, outcome in outcomes:
                if isinstance(outcome, ReleaseError):
                    faults = tuple(fault.replace(f"{work}{os.sep}", "") for fault in outcome.faults)
                    failures.append(Failure(variant.id, faults, outcome.hint))
                else:
                    report(f"variant {variant.id}: {outcome[0].name} from {made.name}")
                    wheels.append(outcome)
        _drop_untied(wheels, failures, variants)
        empty = {variant.id for variant in variants if variant.is_metapackage}
        paths = [path for path, _, _ in wheels]
        outputs = [path.name for path in [*paths, *([sdist] if sdist is not None else [])] if path.parent == work]
        if not force:
            require_free(work, folder, outputs)
        findings = [tuple(check_wheel(path, hashes=True)) for path in paths]
        files = [ReleasedFile.of(path) for path in paths]
        bare = {file for file, (_, id_, _) in zip(files, wheels, strict=True) if id_ in empty}
        results = try_all(files, bare, plan.smoke if smoke else None, memory, report, jobs)
        done = Release(
            folder,
            name.name,
            name.version,
            ReleasedFile.of(made).at(folder),
            ReleasedFile.of(sdist).at(folder) if sdist is not None else None,
            tuple(
                Artifact(file.at(folder), id_, changes, found, result)
                for file, (_, id_, changes), found, result in zip(files, wheels, findings, results, strict=True)
            ),
            tuple(failures),
            tuple(_odd_version(name, expected, plan)),
            variants,
        )
        (work / SUMS).write_text(done.sums, encoding="utf-8", newline="\n")
        text = json.dumps(done.facts, indent=2, ensure_ascii=False) + "\n"
        (work / FACTS).write_text(text, encoding="utf-8", newline="\n", errors="backslashreplace")
        place_all(work, folder, outputs, (SUMS, FACTS), force=force)
        memory.forget()
    return done


def _choose(plan: Plan, only: Iterable[str]) -> tuple[Variant, ...]:
    wanted = list(dict.fromkeys(only))
    known = [variant.id for variant in plan.variants]
    unknown = [id_ for id_ in wanted if id_ not in known]
    if unknown:
        raise PlanError(
            [f"the plan has no variant {id_!r}, expected one of {', '.join(map(repr, known))}" for id_ in unknown]
        )
    return tuple(variant for variant in plan.variants if not wanted or variant.id in wanted)


def _check_project(wheel: Path, plan: Plan) -> None:
    """Refuse a wheel that is not the project's.

    Raises:
        PlanError: it bears another name.
        FileError: it is not there.
    """
    try:
        wheel.stat()
    except OSError as error:
        raise FileError.of("read", wheel, error) from error
    found = WheelName.parse(wheel.name)
    if plan.name is not None and normal_form(plan.name) != found.name:
        raise PlanError(
            f"{wheel.name} is a wheel of {found.project!r}, expected one of {plan.name!r}, "
            "the project that the plan belongs to",
            hint="give the wheel that was built from this project, or the folder of that one's project",
        )


def _check_place(wheel: Path, plan: Plan, *, beside: bool) -> None:
    """Refuse a wheel that would lie beside the metapackage which takes its place.

    Raises:
        EditError: with both.
    """
    if beside and (tied := _replacing(plan, wheel)) is not None:
        raise EditError(
            f"{wheel.name} lies in the output folder, and the metapackage {tied.id!r} bears its name",
            hint="choose another folder with -o, or move the wheel",
        )


def _replacing(plan: Plan, source: Path) -> Variant | None:
    """The metapackage that takes the place of the source wheel in the release, if there is one."""
    name = WheelName.parse(source.name).name
    return next((variant for variant in plan.variants if is_named(variant, name)), None)


def _odd_version(name: WheelName, expected: Version | None, plan: Plan) -> Iterator[str]:
    """Say where an existing wheel is of another version than the project is now."""
    if plan.version_file is not None and expected is not None and name.version.public != expected.public:
        yield f"{name.filename} has version {name.version}, {plan.version_file.name} says {expected}"


@contextlib.contextmanager
def _working_folder(folder: Path) -> Iterator[Path]:
    """A hidden folder in the output folder, which is made if missing, and goes again if this fails."""
    missing = [path for path in (folder, *folder.parents) if not path.exists()]
    work, unseen = folder, folder / f"release-{os.getpid()}"
    try:
        with OutputFile(folder / SUMS):
            pass  # that nothing can be written there is better known before an hour of building
        with OutputFolder(unseen) as output:
            work = output.temporary
            yield work
    except BaseException as error:
        if isinstance(error, ReleaseError):  # what nobody will find again is no name to tell
            error.faults = tuple(
                fault.replace(str(work), str(folder)).replace(str(unseen), str(folder)) for fault in error.faults
            )
        for path in missing:
            with contextlib.suppress(OSError):
                path.rmdir()
        raise


_Made = tuple[Path, str | None, tuple[Change, ...]]


def _make(source: Path, work: Path, variant: Variant, pins: Mapping[str, Pin]) -> _Made:
    if variant.is_metapackage:
        tied = read_metapackage(source, variant, pins)
        return tied.write(work), variant.id, tied.changes
    repacked = repack(source, work, variant.edit)
    return repacked.path, variant.id, repacked.changes


def _pins(source: Path, folder: Path, variants: Iterable[Variant], plan: Plan) -> dict[str, Pin]:
    """The pins of the variants that metapackages among ``variants`` name, whether those are made now or not."""
    wanted = {id_ for variant in variants for id_ in variant.parts}
    pins: dict[str, Pin] = {}
    for variant in plan.variants:
        if variant.id in wanted:
            name = WheelName.parse(repack(source, folder, variant.edit, dry_run=True).path.name)
            pins[variant.id] = Pin(name.name, name.version)
    return pins


def _drop_untied(wheels: list[_Made], failures: list[Failure], variants: Iterable[Variant]) -> None:
    """Take back the metapackages that require a variant which could not be written."""
    failed = {failure.variant for failure in failures}
    for variant in variants:
        missing = [id_ for id_ in variant.parts if id_ in failed]
        if missing and variant.id not in failed:
            wheels[:] = [made for made in wheels if made[1] != variant.id]
            said = f"it requires {', '.join(map(repr, missing))}, which could not be written"
            failures.append(Failure(variant.id, (said,)))


def _check_variants(source: Path, folder: Path, variants: Sequence[Variant], plan: Plan, *, beside: bool) -> None:
    """Decide every rewrite without writing.

    Args:
        source, folder: the wheel to start from and the output folder.
        variants: what to make of it.
        plan: where they stand.
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
            if variant.is_metapackage:
                name = read_metapackage(source, variant, _pins(source, folder, [variant], plan)).name.filename
            else:
                name = repack(source, folder, variant.edit, dry_run=True).path.name
        except EditError as error:
            faults += [f"variant {variant.id!r}: {fault}" for fault in error.faults]
            hints += [error.hint] if error.hint else []
            continue
        if name in makers:
            faults.append(f"variant {variant.id!r} would be {name}, the same file as {makers[name]}")
            hints.append(OWN_NAME_HINT)
        makers.setdefault(name, f"variant {variant.id!r}")
    if faults:
        raise EditError(faults, hint="; ".join(dict.fromkeys(hints)) or None)


def _check_built(built: Path, folder: Path, variants: Sequence[Variant], plan: Plan, *, force: bool) -> None:
    """Decide every rewrite of what was built; where one does not fit, keep the wheel for another run.

    Raises:
        WheelError, EditError: as :func:`_check_variants`, with what to do next.
    """
    try:
        _check_variants(built, folder, variants, plan, beside=_replacing(plan, built) is None)
    except (EditError, WheelError) as error:
        try:
            kept = place(built, folder, replace=force)
        except ReleaseError:  # the plan is what is wrong
            raise error from None
        hint = f"the built wheel is kept: mend the plan, then give --wheel {shlex.quote(str(kept))}"
        raise type(error)(error.faults, hint="; ".join(filter(None, (error.hint, hint)))) from error
