"""One wheel read, rewritten, proved and published: what ``te-wheel repack`` does to each of its wheels."""

from __future__ import annotations

import hashlib
import os
import stat
from contextlib import ExitStack
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

from build_tools.errors import EditError, WheelError
from build_tools.input_file import open_input
from build_tools.wheels.change import Change
from build_tools.wheels.edit import WheelEdit
from build_tools.wheels.file_identity import identity, is_same_file
from build_tools.wheels.finding import Finding
from build_tools.wheels.mended import mend
from build_tools.wheels.output import OutputFile
from build_tools.wheels.rewrite import Rewrite
from build_tools.wheels.wheel import Wheel

VERIFICATIONS = ("structure", "hashes")
"""How closely a wheel is looked at when it is read and when it is proved."""


class _Repacked(NamedTuple):
    source: Path
    path: Path
    changes: tuple[Change, ...]
    written: bool
    size: int | None
    findings: tuple[Finding, ...] = ()
    notes: tuple[str, ...] = ()


class Repacked(_Repacked):
    """What a rewrite made.

    Attributes:
        source: the wheel that was read.
        path: the wheel that was written (or would be, in a dry run).
        changes: what differs between the two; empty where nothing does.
        written: whether ``path`` has new bytes now; false in a dry run, and where the same bytes
            were there already.
        size: bytes of the output; ``None`` in a dry run.
        findings: what `te-wheel check` says of the output, none of it blocking; empty in a dry run.
        notes: what a person should know of what was not changed.
    """

    @cached_property
    def sha256(self) -> str | None:
        """The SHA-256 of the output in hex, read from the file when first asked for; ``None`` in a dry run.

        Raises:
            FileError: it cannot be read, or is there no more.
        """
        if self.size is None:
            return None
        with open_input(self.path) as file:
            return hashlib.file_digest(file, "sha256").hexdigest()


def repack(
    wheel: str | os.PathLike[str],
    out_dir: str | os.PathLike[str] | None = None,
    edit: WheelEdit | None = None,
    *,
    replace: bool = False,
    force: bool = False,
    fsync: bool = False,
    dry_run: bool = False,
    verify: str = "structure",
) -> Repacked:
    """Rewrite one wheel.

    Args:
        wheel: the wheel to read. It is never changed, unless ``replace`` says so.
        out_dir: where the output goes, made if missing; ``None`` for the wheel's own folder.
        edit: what to change; nothing for a pass that brings the wheel into normal form.
        replace: remove the input once the output is safe on the disk; needed where the output
            would have the very path of the input.
        force: replace an output that is there with other bytes.
        fsync: return only when the output is on the disk.
        dry_run: decide everything, write nothing.
        verify: how closely input and output are read: ``"structure"`` (the archive, RECORD against members
            and sizes), or ``"hashes"`` (the CRC and digest of every member too).

    Returns:
        The path of the output, what changed, and whether anything was written.

    Raises:
        FileError: a file cannot be read or written.
        WheelError: the file is no wheel, or breaks a rule (all breaches are named).
        EditError: the edit cannot be applied to this wheel.
        OutputExistsError: the output is there with other bytes, or is the input.

    The same input and edit always give the same bytes. Members that are not edited keep their
    compressed bytes, modes, times and order. See wheel specifications: Binary distribution
    format, Recording installed projects.
    """
    if verify not in VERIFICATIONS:
        raise EditError(f"verify is {verify!r}, expected {' or '.join(map(repr, VERIFICATIONS))}")
    path, edit, hashes = Path(wheel), edit or WheelEdit(), verify == "hashes"
    before = identity(path)
    with ExitStack() as stack:
        # The input is closed and forgotten before the output is read: each may take much memory.
        draft, output = _draft(path, out_dir, edit, stack, dry_run=dry_run, hashes=hashes)
        if output is None:
            return draft
        findings = _prove(output.temporary, draft.path.name, repaired=edit.repair, hashes=hashes)
        written = output.succeed(path, before, replace=replace, force=force, fsync=fsync)
    return draft._replace(written=written, findings=findings)


def _draft(
    path: Path,
    out_dir: str | os.PathLike[str] | None,
    edit: WheelEdit,
    stack: ExitStack,
    *,
    dry_run: bool,
    hashes: bool,
) -> tuple[Repacked, OutputFile | None]:
    """What the rewrite of ``path`` makes, and the output with all its bytes; ``None`` for it in a dry run."""
    with Wheel.open(path) as source:
        plan = Rewrite(mend(source, edit, hashes=hashes), edit)
        target = (path.parent if out_dir is None else Path(out_dir)) / plan.name.filename
        if dry_run:
            return Repacked(path, target, plan.changes, written=False, size=None, notes=tuple(plan.notes)), None
        before = os.fstat(source.archive.fd)
        mode = stat.S_IMODE(before.st_mode) if is_same_file(path, target) else None
        output = stack.enter_context(OutputFile(target, mode=mode))
        size = plan.write(output.fd)
        after = os.fstat(source.archive.fd)
        if (before.st_size, before.st_mtime_ns) != (after.st_size, after.st_mtime_ns):
            raise WheelError(f"{path.name}: the file changed while it was read")
    return Repacked(path, target, plan.changes, written=False, size=size, notes=tuple(plan.notes)), output


def _prove(output: Path, filename: str, *, repaired: bool, hashes: bool) -> tuple[Finding, ...]:
    """Read the output as any wheel is read, before it gets its name; what was repaired may have no error at all."""
    with Wheel.open(output, filename=filename) as proof:
        proof.require_sound()
        findings = proof.findings
        if repaired or hashes:
            from build_tools.wheels.check import all_findings  # needed by few runs

            findings = all_findings(proof, hashes=hashes)
            proof.refuse(findings)
        errors = [finding for finding in findings if repaired and finding.severity == "error"]
        if errors:
            raise WheelError(
                [f"{filename}: {finding}" for finding in errors],
                hint="--repair makes no guess: say in the same run what to --set, --remove or --remove-file",
            )
        return tuple(findings)
