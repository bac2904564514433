"""Rewrite several wheels and sdists: the good ones are written, the bad ones named."""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

from build_tools.errors import EditError, ReleaseError
from build_tools.parallel import in_order
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
    jobs: int | None = 1,
    watch: Callable[[Path], AbstractContextManager[object]] = nullcontext,
) -> Generator[tuple[Path, Repacked | ReleaseError], None, None]:
    """Rewrite ``wheels``, each as :func:`repack` does; one that fails does not stop the others.

    Args:
        wheels: wheels, and sdists, which :func:`repack_sdist` rewrites.
        out_dir, edit, replace, force, fsync, dry_run, verify: as for :func:`repack`.
        jobs: how many wheels are worked on at once; ``None``: one on each core.
        watch: a context manager for each wheel while it is worked on, in the thread that does it.

    Returns:
        Each wheel with what was made of it, or with the error that it ended in; in the order of ``wheels``.

    Raises:
        EditError: two wheels would give one output, before anything is written.
    """
    edit = edit or WheelEdit()
    paths = [Path(wheel) for wheel in wheels]

    def work(wheel: Path) -> Repacked:
        with watch(wheel):
            options = {"replace": replace, "force": force, "fsync": fsync, "dry_run": dry_run}
            return _repack(wheel, out_dir, edit, verify, **options)

    if len(paths) > 1:
        _check_outputs(paths, out_dir, edit)
    return in_order(work, paths, jobs)


def _check_outputs(
    wheels: Sequence[str | os.PathLike[str]], out_dir: str | os.PathLike[str] | None, edit: WheelEdit
) -> None:
    """Refuse two wheels that give one output, and an output that is another wheel of the run."""
    inputs = {os.path.realpath(wheel): os.fspath(wheel) for wheel in wheels}
    sources: dict[str, list[str]] = {}
    faults = []
    for wheel in wheels:
        try:
            target = os.path.realpath(_repack(Path(wheel), out_dir, edit, dry_run=True).path)
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


def _repack(
    path: Path, out_dir: str | os.PathLike[str] | None, edit: WheelEdit, verify: str = "structure", **options: bool
) -> Repacked:
    if not path.name.endswith(".tar.gz"):
        return repack(path, out_dir, edit, verify=verify, **options)
    from build_tools.sdist_rewrite import repack_sdist  # tarfile is costly, and most runs have wheels

    return repack_sdist(path, out_dir, edit, **options)  # it has no digests, and its one checksum is always compared
