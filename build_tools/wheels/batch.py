"""Rewrite several wheels: the good ones are written, the bad ones named."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from build_tools.errors import EditError, ReleaseError
from build_tools.wheels.edit import WheelEdit
from build_tools.wheels.repacked import Repacked, repack


def repack_all(
    wheels: Sequence[str | os.PathLike[str]],
    out_dir: str | os.PathLike[str] | None = None,
    edit: WheelEdit | None = None,
    *,
    replace: bool = False,
    force: bool = False,
    fsync: bool = False,
    dry_run: bool = False,
    verify: str = "structure",
) -> Iterator[tuple[Path, Repacked | ReleaseError]]:
    """Rewrite ``wheels`` in order, each as :func:`repack` does; one that fails does not stop the others.

    Raises:
        EditError: two wheels would give one output, before anything is written.
    """
    edit = edit or WheelEdit()
    if len(wheels) > 1:
        _check_outputs(wheels, out_dir, edit)
    for wheel in wheels:
        try:
            made = repack(
                wheel, out_dir, edit, replace=replace, force=force, fsync=fsync, dry_run=dry_run, verify=verify
            )
        except ReleaseError as error:
            yield Path(wheel), error
        else:
            yield Path(wheel), made


def _check_outputs(
    wheels: Sequence[str | os.PathLike[str]], out_dir: str | os.PathLike[str] | None, edit: WheelEdit
) -> None:
    """Refuse two wheels that give one output, and an output that is another wheel of the run."""
    inputs = {os.path.realpath(wheel): os.fspath(wheel) for wheel in wheels}
    sources: dict[str, list[str]] = {}
    faults = []
    for wheel in wheels:
        try:
            target = os.path.realpath(repack(wheel, out_dir, edit, dry_run=True).path)
        except ReleaseError:
            continue  # named when its turn comes
        sources.setdefault(target, []).append(os.fspath(wheel))
        if target in inputs and target != os.path.realpath(wheel):
            faults.append(f"{os.fspath(wheel)!r} would become {inputs[target]!r}, which is an input too")
    faults += [
        f"{' and '.join(map(repr, names))} would both become {target!r}"
        for target, names in sources.items()
        if len(names) > 1
    ]
    if faults:
        raise EditError(faults, hint="nothing was written: choose another folder with -o, or one run for each")
