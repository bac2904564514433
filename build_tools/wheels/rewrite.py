"""Wheel + WheelEdit -> wheel, in one pass and at the speed of a file copy.

What changes is decided first (:class:`Rewrite`, no byte written), then the output is written:
members that stay are taken over as compressed bytes, METADATA, WHEEL and RECORD are spliced.
"""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from functools import cached_property, partial
from pathlib import Path
from typing import NamedTuple

from build_tools.errors import EditError, Faults, FileError, OutputExistsError, WheelError
from build_tools.version import parse_version, with_local
from build_tools.wheels import zip_format as fmt
from build_tools.wheels.archive_writer import ArchiveWriter, Content
from build_tools.wheels.central_directory import Member
from build_tools.wheels.deflate import Piece, deflate_files, file_blocks
from build_tools.wheels.edit import WheelEdit, is_protected, pattern_regex, split_file
from build_tools.wheels.finding import Finding
from build_tools.wheels.header_edit import Change, edit_metadata, edit_wheel, header_changes
from build_tools.wheels.member_names import DATA_SCHEMES, check_names, is_data_path
from build_tools.wheels.name import WheelName, parse_tag_set
from build_tools.wheels.output import OutputFile, identity, is_same_file, require_unchanged
from build_tools.wheels.record import Record, Row, digest_text
from build_tools.wheels.times import epoch_dos_time
from build_tools.wheels.wheel import SIGNATURES, SoundWheel, Wheel
from build_tools.wheels.zip_format import Entry


class _Repacked(NamedTuple):
    source: Path
    path: Path
    changes: tuple[Change, ...]
    written: bool
    size: int | None
    findings: tuple[Finding, ...] = ()


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
    """

    @cached_property
    def sha256(self) -> str | None:
        """The SHA-256 of the output in hex, read from the file when first asked for; ``None`` in a dry run."""
        if self.size is None:
            return None
        with open(self.path, "rb") as file:
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
    path = Path(wheel)
    before = identity(path)
    with ExitStack() as stack:
        # The input is closed and forgotten before the output is read: each may take much memory.
        draft, output = _draft(path, out_dir, edit or WheelEdit(), stack, dry_run=dry_run)
        if output is None:
            return draft
        in_place = is_same_file(path, draft.path)
        # The proof: the output is read as any wheel is, before it gets its name.
        with Wheel.open(output.temporary, filename=draft.path.name) as proof:
            proof.require_sound()
            findings = tuple(proof.findings)
        try:
            written = output.publish(
                replace=replace if in_place else force,
                fsync=fsync or replace,
                last_look=partial(require_unchanged, path, before) if replace else None,
            )
        except OutputExistsError:
            if not in_place:
                raise
            raise OutputExistsError(
                f"{str(draft.path)!r} is the input itself",
                hint="give --replace to replace it, or -o for another folder",
            ) from None
    if replace and not is_same_file(path, draft.path):
        require_unchanged(path, before)
        try:
            path.unlink()
        except OSError as error:
            raise FileError.of(f"remove (the output {str(draft.path)!r} is written)", path, error) from error
    return draft._replace(written=written, findings=findings)


def _draft(
    path: Path, out_dir: str | os.PathLike[str] | None, edit: WheelEdit, stack: ExitStack, *, dry_run: bool
) -> tuple[Repacked, OutputFile | None]:
    """What the rewrite of ``path`` makes, and the output with all its bytes; ``None`` for it in a dry run."""
    with Wheel.open(path) as source:
        plan = Rewrite(source.require_sound(), edit)
        target = (path.parent if out_dir is None else Path(out_dir)) / plan.name.filename
        if dry_run:
            return Repacked(path, target, plan.changes, written=False, size=None), None
        before = os.fstat(source.archive.fd)
        mode = stat.S_IMODE(before.st_mode) if is_same_file(path, target) else None
        output = stack.enter_context(OutputFile(target, mode=mode))
        size = plan.write(output.fd)
        after = os.fstat(source.archive.fd)
        if (before.st_size, before.st_mtime_ns) != (after.st_size, after.st_mtime_ns):
            raise WheelError(f"{path.name}: the file changed while it was read")
    return Repacked(path, target, plan.changes, written=False, size=size), output


class _Added(NamedTuple):
    """A file that goes into the wheel."""

    path: Path
    entry: Entry
    row: Row


def _row_text(row: Row | None) -> str | None:
    return None if row is None else f"{row.size} bytes, {row.digest}"


class Rewrite:
    """What one edit makes of one sound wheel: decided, not yet written.

    Attributes:
        name: the name of the output.
        changes: all that differs: file name, folders, METADATA, WHEEL, files.

    Raises:
        EditError: the edit cannot be applied to this wheel; every reason is named.
        FileError: a file to add cannot be read.
    """

    def __init__(self, wheel: SoundWheel, edit: WheelEdit) -> None:
        self._wheel = wheel
        self._edit = edit
        self._epoch = epoch_dos_time()
        faults = Faults()
        self.name = faults.attempt(partial(self._new_name, wheel.name)) or wheel.name
        # A file that is added may stand in a .data folder that the wheel does not have yet.
        self._folders = {wheel.dist_info: self.name.dist_info, wheel.name.data: self.name.data}
        self._folders |= dict.fromkeys(wheel.data, self.name.data)
        metadata = faults.attempt(partial(edit_metadata, wheel.metadata, wheel.name, self.name, edit))
        self._gone = faults.attempt(self._removed) or {}
        added = faults.attempt(self._added) or {}
        faults.raise_any(FileError if all(isinstance(error, FileError) for error in faults.errors) else EditError)
        headers = {"METADATA": (wheel.metadata, metadata or wheel.metadata)}
        headers["WHEEL"] = (wheel.wheel, edit_wheel(wheel.wheel, self.name))
        self._contents = {
            wheel.member(file): after.to_bytes() for file, (before, after) in headers.items() if after != before
        }
        self._items = self._new_items(added)
        changes = [Change("filename", "name", wheel.path.name, self.name.filename)]
        changes += [Change("folder", "dist-info", wheel.dist_info, self.name.dist_info)]
        changes += [Change("folder", "data", folder, self.name.data) for folder in wheel.data]
        for file, (before, after) in headers.items():
            changes += header_changes(file, before, after)
        changes += [Change("files", name, why, None) for name, why in self._gone.items()]
        rows = {self._rename(row.path): row for row in wheel.record.rows}
        changes += [
            Change("files", name, _row_text(rows.get(name)), _row_text(item.row)) for name, item in added.items()
        ]
        self.changes = tuple(change for change in changes if change.old != change.new)

    # -- deciding -----------------------------------------------------------------------------

    def _new_name(self, old: WheelName) -> WheelName:
        edit = self._edit
        version = old.version if edit.version is None else parse_version(edit.version)
        if edit.local is not None:
            version = with_local(version, edit.local)
        return WheelName(
            project=edit.name or self._wheel.project,
            version=version,
            build=old.build if edit.build is None else edit.build,
            python=old.python if edit.python_tag is None else parse_tag_set(edit.python_tag, "python"),
            abi=old.abi if edit.abi_tag is None else parse_tag_set(edit.abi_tag, "abi"),
            platform=old.platform if edit.platform_tag is None else parse_tag_set(edit.platform_tag, "platform"),
            variant=old.variant,
        )

    def _rename(self, member: str) -> str:
        top, slash, rest = member.partition("/")
        return self._folders.get(top, top) + slash + rest

    def _removed(self) -> dict[str, str]:
        """The members that go, each with the reason."""
        wheel = self._wheel
        gone = {
            name: "a signature that is wrong after any rewrite"
            for name in map(wheel.member, SIGNATURES)
            if name in wheel.archive.by_name
        }
        faults = []
        for pattern in self._edit.remove_file:
            regex = pattern_regex(pattern)
            matched = [name for name in wheel.archive.by_name if regex.match(name)]
            protected = [name for name in matched if is_protected(name)]
            if not matched:
                faults.append(f"no member matches the pattern {pattern!r}")
            elif protected:
                faults.append(f"the pattern {pattern!r} matches {protected[0]}, which a wheel must have")
            gone |= dict.fromkeys(matched, f"matches {pattern}")
        if faults:
            raise EditError([f"{wheel.path.name}: {fault}" for fault in faults])
        return gone

    def _new_items(self, added: dict[str, _Added]) -> list[tuple[str, Member | Content | _Added]]:
        """Every member of the output but RECORD, in order: .dist-info last."""
        wheel = self._wheel
        body: dict[str, Member | Content | _Added] = {}
        info: dict[str, Member | Content | _Added] = {}
        for member in wheel.archive.members:
            if member.name in self._gone or member.name == wheel.member("RECORD"):
                continue
            name = self._rename(member.name)
            part = info if wheel.in_dist_info(member) else body
            data = self._contents.get(member.name)
            part[name] = member if data is None else Content.make(self._entry(member, name), data)
        for name, item in added.items():
            part = info if name.startswith(f"{self.name.dist_info}/") else body
            part[name] = item
        if added:
            self._check_added(added, [*body, *info])
        return [*body.items(), *info.items()]

    def _added(self) -> dict[str, _Added]:
        metadata = self._wheel.archive.by_name[self._wheel.member("METADATA")]
        time = metadata.entry.dos_time if self._epoch is None else self._epoch
        added: dict[str, _Added] = {}
        faults = Faults()
        for pair in self._edit.add_file:
            path, target = split_file(pair)
            name = self._rename(target)
            if name in added:
                fault = f"{target} is added twice, from {str(added[name].path)!r} and {str(path)!r}"
                faults.errors.append(EditError(fault))
            item = faults.attempt(partial(_read_added, path, name, time))
            if item is not None:
                added[name] = item
        faults.raise_any(FileError)
        return added

    def _check_added(self, added: dict[str, _Added], names: list[str]) -> None:
        # Any new trouble counts, also where it is a member of the wheel that gets in the way of the file.
        before = set(check_names(name for name in names if name not in added))
        faults = [str(finding) for finding in check_names(names) if finding not in before]
        for name in added:
            top, _, rest = name.partition("/")
            if top.endswith((".dist-info", ".data")) and top not in (self.name.dist_info, self.name.data):
                faults.append(f"{name}: {top} is not this wheel's folder, expected {self.name.stem}{Path(top).suffix}")
            elif top == self.name.dist_info and not rest:
                faults.append(f"{name}: a file, and {top} is a folder")
            elif top == self.name.data and not is_data_path(rest):
                faults.append(f"{name}: expected {top}/SCHEME/..., with a scheme of {', '.join(DATA_SCHEMES)}")
        if faults:
            raise EditError(faults)

    def _entry(self, member: Member, name: str) -> Entry:
        """The headers of new content in place of ``member``."""
        time = member.entry.dos_time if self._epoch is None else self._epoch
        return member.entry._replace(name=name, dos_time=time)

    # -- writing ------------------------------------------------------------------------------

    def write(self, fd: int) -> int:
        """Write the output to ``fd`` from its start; return its size in bytes."""
        writer = ArchiveWriter(fd)
        archive = self._wheel.archive
        rows = {self._rename(name): Row.of(self._rename(name), data) for name, data in self._contents.items()}
        pieces = _compressed([item for _, item in self._items if isinstance(item, _Added)])
        for name, item in self._items:
            if isinstance(item, Member):
                writer.keep(archive, item, name)
            elif isinstance(item, Content):
                writer.add(item)
            else:
                _write_added(writer, item, pieces)
                rows[name] = item.row
        own = archive.by_name[self._wheel.member("RECORD")]
        data = self._new_record(rows).to_bytes()
        name = self._rename(own.name)
        if data == archive.read(own, own.size):
            writer.keep(archive, own, name)
        else:
            writer.add(Content.make(self._entry(own, name), data))
        return writer.finish()

    def _new_record(self, changed: dict[str, Row]) -> Record:
        rows: list[Row] = []
        todo = dict(changed)
        own = self._rename(self._wheel.member("RECORD"))
        for row in self._wheel.record.rows:
            if row.path in self._gone:
                continue
            name = self._rename(row.path)
            if name in todo:
                rows.append(todo.pop(name))
            else:
                rows.append(row if name == row.path else row._replace(path=name, raw=None))
        at = len(rows) - 1 if rows and rows[-1].path == own else len(rows)
        rows[at:at] = todo.values()
        return Record(tuple(rows), self._wheel.record.line_end)


def _read_added(path: Path, name: str, time: int) -> _Added:
    """A file on the disk as the member ``name``: its digest, its size, whether it is executable."""
    try:
        info = path.stat()
        if not stat.S_ISREG(info.st_mode):
            raise FileError(f"{str(path)!r} is no regular file, so it cannot be added")
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").digest()
    except FileError:
        raise
    except OSError as error:
        raise FileError.of("read", path, error) from error
    entry = Entry(
        name=name,
        method=fmt.DEFLATED,
        crc=0,
        compressed_size=0,
        size=info.st_size,
        dos_time=time,
        external_attr=(stat.S_IFREG | (0o755 if info.st_mode & 0o111 else 0o644)) << 16,
    )
    return _Added(path, entry, Row(name, digest_text("sha256", digest), info.st_size))


def _compressed(added: Sequence[_Added]) -> Iterator[Piece[_Added]]:
    """The compressed bytes of the files, one after the other."""
    return deflate_files(added, lambda item: file_blocks(item.path))


def _write_added(writer: ArchiveWriter, item: _Added, pieces: Iterator[Piece[_Added]]) -> None:
    writer.begin(item.entry)
    for piece in pieces:
        writer.write(piece.data)
        if piece.summary:
            writer.end(piece.summary.crc, piece.summary.size)
            if digest_text("sha256", piece.summary.sha256) != item.row.digest:
                raise FileError(f"{str(item.path)!r} changed while it was read")
            return
