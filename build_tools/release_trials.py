"""The wheels of a release, each tried in a layer over one base, several at once."""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence
from contextlib import ExitStack, closing
from functools import partial

from build_tools.child import end_all
from build_tools.errors import ReleaseError, ToolError
from build_tools.parallel import in_order
from build_tools.release_memory import Memory
from build_tools.release_record import ReleasedFile
from build_tools.report import Report
from build_tools.smoke import Base, smoke_wheel
from build_tools.smoke_plan import SmokePlan
from build_tools.smoke_result import NO_FILES, NOT_ASKED, SmokeResult


def try_all(
    wheels: Sequence[ReleasedFile],
    bare: Container[ReleasedFile],
    asked: SmokePlan | None,
    memory: Memory,
    report: Report,
    jobs: int | None,
) -> list[SmokeResult]:
    """How the trial of each wheel ended; what cannot be tried, or is ``bare`` of files, is skipped.

    Args:
        wheels: what to try.
        bare: those among them that have no files.
        asked: how to try them; ``None``: not at all.
        memory: what passed in an earlier run is not tried again.
        report: gets the talk of each trial, in the order of the wheels.
        jobs: how many are tried at once; ``None``: one on each core.
    """
    if asked is None:
        return [SmokeResult.skip(wheel.path.name, NOT_ASKED) for wheel in wheels]
    results: dict[ReleasedFile, SmokeResult] = {}
    for wheel in wheels:
        known = SmokeResult.skip(wheel.path.name, NO_FILES) if wheel in bare else memory.find_trial(wheel, asked)
        if known is not None:
            results[wheel] = known
            if wheel not in bare:
                report(f"{wheel.path.name} passed its trial in an earlier run")
    todo = [wheel for wheel in wheels if wheel not in results]
    if todo:
        results |= _try(todo, asked, memory, report, jobs)
    return [results[wheel] for wheel in wheels]


def _try(
    wheels: Sequence[ReleasedFile], asked: SmokePlan, memory: Memory, report: Report, jobs: int | None
) -> dict[ReleasedFile, SmokeResult]:
    results: dict[ReleasedFile, SmokeResult] = {}
    try:
        with ExitStack() as stack:
            base = stack.enter_context(Base(asked.requires, report=report))
            take = partial(_take, asked=asked, base=base, memory=memory)
            tries = in_order(take, wheels, jobs, name=lambda wheel: str(wheel.path), on_error=end_all)
            tried = stack.enter_context(closing(tries))
            for wheel, taken in tried:
                if isinstance(taken, ReleaseError):
                    raise taken
                for line in taken[1]:
                    report(line)
                results[wheel] = taken[0]
    except ToolError as error:
        results |= {w: SmokeResult.skip(w.path.name, str(error)) for w in wheels if w not in results}
    return results


def _take(wheel: ReleasedFile, asked: SmokePlan, base: Base, memory: Memory) -> tuple[SmokeResult, list[str]]:
    """How the trial ended, and what was said meanwhile."""
    said: list[str] = []
    tell: Callable[[str], None] = said.append
    try:
        result = smoke_wheel(wheel.path, imports=asked.imports, run=asked.run, base=base, report=tell)
    except ToolError as error:
        return SmokeResult.skip(wheel.path.name, str(error)), said
    memory.keep_trial(wheel, asked, result)
    return result, said
