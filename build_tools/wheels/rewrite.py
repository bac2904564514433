"""Wheel + WheelEdit -> wheel, in one pass and at the speed of a file copy.

What changes is decided first (:class:`Rewrite`, no byte written), then the output is written:
members that stay are taken over as compressed bytes, METADATA, WHEEL and RECORD are spliced.
"""

from __future__ import annotations

import hashlib
import stat
import zlib
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple, TypeAlias

from build_tools.errors import EditError, Faults, FileError, WheelError
from build_tools.version import parse_version, with_local
from build_tools.wheels import zip_format as fmt
from build_tools.wheels.archive_writer import ArchiveWriter, Content
from build_tools.wheels.change import Change, WheelFile, file_change, header_changes
from build_tools.wheels.deflate import Piece, Summary, deflate_files, file_blocks
from build_tools.wheels.edit import WheelEdit, is_protected, pattern_regex, split_file
from build_tools.wheels.header_edit import edit_metadata, edit_wheel
from build_tools.wheels.headers import Headers
from build_tools.wheels.limits import MAX_SBOM
from build_tools.wheels.member import Member
from build_tools.wheels.member_names import DATA_SCHEMES, check_names, is_data_path
from build_tools.wheels.mended import Mended
from build_tools.wheels.name import WheelName, parse_tag_set
from build_tools.wheels.record import Row, digest_text
from build_tools.wheels.times import epoch_dos_time
from build_tools.wheels.wheel import SIGNATURES
from build_tools.wheels.zip_format import Entry

_PIECE = 64 << 10
"""Bytes of RECORD that are made at a time."""


class _Added(NamedTuple):
    """A file that goes into the wheel."""

    path: Path
    entry: Entry
    row: Row


_Item: TypeAlias = Member | Content | _Added


class Rewrite:
    """What one edit makes of one wheel, sound or mended: decided, not yet written.

    Attributes:
        name: the name of the output.
        changes: all that differs: file name, folders, METADATA, WHEEL, files.

    Raises:
        EditError: the edit cannot be applied to this wheel; every reason is named.
        FileError: a file to add cannot be read.
    """

    def __init__(self, mended: Mended, edit: WheelEdit) -> None:
        wheel = self._wheel = mended.wheel
        self._members = mended.members
        self._edit = edit
        self._epoch = epoch_dos_time()
        faults = Faults()
        self.name = faults.attempt(partial(self._new_name, wheel.name)) or wheel.name
        # A file that is added may stand in a .data folder that the wheel does not have yet.
        self._folders = dict.fromkeys((wheel.name.dist_info, wheel.dist_info), self.name.dist_info)
        self._folders |= dict.fromkeys((wheel.name.data, *wheel.data), self.name.data)
        self._tops = tuple(self._folders)
        metadata = faults.attempt(partial(edit_metadata, wheel.metadata, wheel.name, self.name, edit))
        self._gone = faults.attempt(self._removed) or {}
        added = faults.attempt(self._added) or {}
        faults.raise_any(FileError if all(isinstance(error, FileError) for error in faults.errors) else EditError)
        headers = {"METADATA": (mended.metadata, metadata or wheel.metadata)}
        headers["WHEEL"] = (mended.header, edit_wheel(wheel.wheel, self.name))
        self._contents = {
            wheel.member(file): after.to_bytes() for file, (before, after) in headers.items() if after != before
        }
        self.notes: list[str] = []
        sboms = self._followed_sboms(mended.metadata, (headers["METADATA"][1].get("Name") or "").strip())
        self._contents |= sboms
        self._items = self._new_items(added)
        changes = [Change("filename", "name", wheel.path.name, self.name.filename)]
        changes += [Change("folder", "dist-info", wheel.dist_info, self.name.dist_info)]
        if wheel.data and any(self._name_of(item).startswith(f"{self.name.data}/") for item in self._items):
            changes += [Change("folder", "data", folder, self.name.data) for folder in wheel.data]
        for file, (before, after) in headers.items():
            changes += header_changes(file, before, after)
        changes += self._file_changes(added, sboms)
        changes += mended.changes
        self.changes = tuple(change for change in changes if change.old != change.new)

    def _file_changes(self, added: dict[str, _Added], edited: dict[str, bytes]) -> list[Change]:
        """The files that go, in the order of the wheel, then those that come or change, in the order of the output."""
        will = {name: WheelFile.of(item.entry, item.row.digest) for name, item in added.items()}
        for old, data in edited.items():
            row, mode = Row.of(self._rename(old), data), self._wheel.archive.by_name[old].mode
            will[row.path] = WheelFile(mode, len(data), zlib.crc32(data), row.digest)
        if not self._gone and not will:
            return []
        digests = {
            row.path: row.digest
            for row in self._wheel.record
            if row.path in self._gone or self._rename(row.path) in will
        }
        gone: list[Change] = []
        was: dict[str, WheelFile] = {}
        for member in self._wheel.archive.members:
            name = self._rename(member.name)
            if name in will:
                was[name] = WheelFile.of(member.entry, digests.get(member.name, ""))
                if was[name].contradicts(will[name]):
                    was[name] = WheelFile.read(self._wheel.archive, member)
            elif member.name in self._gone and not member.is_dir:
                file = WheelFile.of(member.entry, digests.get(member.name, ""))
                gone.append(file_change(member.name, file, None))
        names = map(self._name_of, self._items)
        return gone + [file_change(name, was.get(name), will[name]) for name in names if name in will]

    def _followed_sboms(self, metadata: Headers, project: str) -> dict[str, bytes]:
        """The documents of ``.dist-info/sboms`` that speak of the wheel itself, as they will be."""
        inside = f"{self._wheel.dist_info}/sboms/"
        members = [member for member in self._members if member.name.startswith(inside) and not member.is_dir]
        if not members:
            return {}
        from build_tools.wheels.sbom import follow_sbom, identities  # few wheels have any

        followed: dict[str, bytes] = {}
        for member in members:
            if member.name in self._gone or not member.name.endswith(".json"):
                continue
            try:
                before = self._wheel.archive.read(member, MAX_SBOM)
                after = follow_sbom(before, identities(self._wheel.name, metadata), self.name, project)
            except WheelError as error:
                self.notes.append(f"{member.name} stays as it is: {error.reason}")
                continue
            if after != before:
                followed[member.name] = after
        return followed

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
        if not member.startswith(self._tops):
            return member
        top, slash, rest = member.partition("/")
        return self._folders.get(top, top) + slash + rest

    def _name_of(self, item: _Item) -> str:
        """What an item of the output is called there."""
        return self._rename(item.name) if isinstance(item, Member) else item.entry.name

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

    def _new_items(self, added: dict[str, _Added]) -> list[_Item]:
        """Every member of the output but RECORD, in order: .dist-info last."""
        wheel = self._wheel
        own, inside = wheel.member("RECORD"), f"{wheel.dist_info}/"
        body: list[_Item] = []
        info: list[_Item] = []
        # The folders that are renamed may become one, and a file may be added in place of another.
        places: dict[str, tuple[list[_Item], int]] = {}
        for member in self._members:
            name = member.name
            if name in self._gone or name == own:
                continue
            part = info if name.startswith(inside) else body
            data = self._contents.get(name)
            item = member if data is None else Content.make(self._entry(member, self._rename(name)), data)
            if added or name.startswith(self._tops):
                _place(places, self._rename(name), item, part)
            else:
                part.append(item)
        for name, file in added.items():
            _place(places, name, file, info if name.startswith(f"{self.name.dist_info}/") else body)
        items = [*body, *info]
        if added:
            self._check_added(added, [self._name_of(item) for item in items])
        return items

    def _added(self) -> dict[str, _Added]:
        metadata = self._wheel.archive.by_name[self._wheel.member("METADATA")]
        time = metadata.entry.dos_time if self._epoch is None else self._epoch
        added: dict[str, _Added] = {}
        faults = Faults()
        pairs = [split_file(pair) for pair in self._edit.add_file]
        pairs += [(Path(file), f"{self._wheel.dist_info}/sboms/{Path(file).name}") for file in self._edit.sbom_add]
        for path, target in pairs:
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
        pieces = _compressed([item for item in self._items if isinstance(item, _Added)])
        for item in self._items:
            if isinstance(item, Member):
                writer.keep(archive, item, self._rename(item.name))
            elif isinstance(item, Content):
                writer.add(item)
            else:
                _write_added(writer, item, pieces)
                rows[item.entry.name] = item.row
        self._write_record(writer, rows)
        return writer.finish()

    def _write_record(self, writer: ArchiveWriter, rows: dict[str, Row]) -> None:
        archive = self._wheel.archive
        own = archive.by_name.get(self._wheel.member("RECORD"))
        name = f"{self.name.dist_info}/RECORD"
        # Made twice, as it may be long: the header, which stands first, needs to know its size.
        new = Summary.of(self._record_pieces(rows))
        if own is not None and own.size == new.size and Summary.of(archive.chunks(own)) == new:
            writer.keep(archive, own, name)
            return
        entry = self._entry(own or archive.by_name[self._wheel.member("METADATA")], name)
        writer.add_pieces(entry._replace(crc=new.crc, size=new.size), self._record_pieces(rows))

    def _record_pieces(self, changed: dict[str, Row]) -> Iterator[bytes]:
        """The bytes of the new RECORD: the lines of the old one, but for the rows whose path or file is another."""
        record = self._wheel.record
        own = self._wheel.member("RECORD")
        todo = dict(changed)
        tops = {top.encode() for top in self._tops}
        concerned = {path.encode() for path in (own, *self._gone, *todo)}
        # RECORD's own row: where it is the last, new rows stand before it.
        held = b""
        piece = bytearray()
        for line in record.lines():
            path = line.partition(b",")[0]
            if path in concerned or path.partition(b"/")[0] in tops or path.startswith(b'"'):
                row = record.row(line)
                if row.path in self._gone:
                    continue
                name = self._rename(row.path)
                if name in todo:
                    line = record.line(todo.pop(name))
                elif name != row.path:
                    line = record.line(row._replace(path=name, raw=None))
                if row.path == own:
                    held = line
                    continue
            piece += held + line
            held = b""
            if len(piece) >= _PIECE:
                yield bytes(piece)
                piece.clear()
        yield bytes(piece) + b"".join(map(record.line, todo.values())) + held


def _place(places: dict[str, tuple[list[_Item], int]], name: str, item: _Item, part: list[_Item]) -> None:
    """Put an item last in its part, or in place of the one that has its name."""
    if name in places:
        part, at = places[name]
        part[at] = item
    else:
        places[name] = (part, len(part))
        part.append(item)


def _read_added(path: Path, name: str, time: int) -> _Added:
    """A file on the disk as the member ``name``: its digest, its size, whether it is executable."""
    try:
        info = path.stat()
        if not stat.S_ISREG(info.st_mode):
            raise FileError(f"{str(path)!r} is no regular file, so it cannot be added")
        digest, crc = hashlib.sha256(), 0
        for data in file_blocks(path):
            digest.update(data)
            crc = zlib.crc32(data, crc)
    except FileError:
        raise
    except OSError as error:
        raise FileError.of("read", path, error) from error
    entry = Entry(
        name=name,
        method=fmt.DEFLATED,
        crc=crc,
        compressed_size=0,
        size=info.st_size,
        dos_time=time,
        external_attr=(stat.S_IFREG | (0o755 if info.st_mode & 0o111 else 0o644)) << 16,
    )
    return _Added(path, entry, Row(name, digest_text("sha256", digest.digest()), info.st_size))


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
