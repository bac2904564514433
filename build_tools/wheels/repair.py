"""Mend what a wheel itself tells how to mend; what would take a guess is left, with the reason.

What is read of the members is what must be: those that stand twice, and those whose row in RECORD cannot be
right.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable

from build_tools.errors import ReleaseError, WheelError
from build_tools.wheels import zip_format as fmt
from build_tools.wheels.change import Change
from build_tools.wheels.core_metadata import is_repeatable
from build_tools.wheels.finding import Finding
from build_tools.wheels.headers import Headers
from build_tools.wheels.member import Member
from build_tools.wheels.member_names import check_names
from build_tools.wheels.mending import REWRITTEN
from build_tools.wheels.name import WheelName, parse_stem
from build_tools.wheels.record import Record, Row, digest_text, is_sound_digest
from build_tools.wheels.wheel import SIGNATURES, Wheel

_CHUNK = 1 << 20
_ONCE_IN_WHEEL = {"wheel-version", "generator", "root-is-purelib", "build"}
_LOST_ROWS = {"record-invalid", "record-path", "record-duplicate", "record-blank-line"}


def repair_metadata(headers: Headers) -> Headers:
    """METADATA with one line of each field that stands once at most, where several say the same."""
    return _once(headers, {field for field in headers.by_name() if not is_repeatable(field)})


def repair_wheel(headers: Headers, name: WheelName | None) -> Headers:
    """WHEEL with one line of what stands once, and with the tags and build tag of ``name`` where it says none."""
    headers = _once(headers, _ONCE_IN_WHEEL)
    if name is not None:
        for field, values in (("Tag", name.tags), ("Build", [name.build] if name.build else [])):
            if not any(value.strip() for value in headers.get_all(field)):
                headers = headers.with_values(field, values)
    return headers


def _once(headers: Headers, fields: Iterable[str]) -> Headers:
    values = headers.by_name()
    for field in fields:
        if len(values.get(field, ())) > 1 and len({value.strip() for value in values[field]}) == 1:
            headers = headers.with_values(field, values[field][:1])
    return headers


class Repair:
    """The members and RECORD of a wheel whose archive can be read.

    Attributes:
        members: what stays: of files that stand twice with the same bytes, the first.
        record: one right row for each file, those that were right as they stood.
        changes: what differs from the wheel, METADATA and WHEEL apart.
        findings: what cannot be mended without a guess.
    """

    def __init__(self, wheel: Wheel, *, hashes: bool) -> None:
        self._wheel = wheel
        self._hashes = hashes
        self.findings: list[Finding] = []
        self.changes = [
            Change("archive", finding.code, finding.message, None)
            for finding in wheel.findings
            if finding.code in REWRITTEN
        ]
        self._check_prefix()
        self.members = self._without_copies()
        self._check_data()
        self.record = self._new_record()

    # -- the archive --------------------------------------------------------------------------

    def _check_prefix(self) -> None:
        """Refuse a second archive before the first: readers differ over which of the two is meant."""
        archive = self._wheel.archive
        end = min(member.header_offset for member in archive.members)
        position, before = 0, b""
        while position < end:
            data = archive.read_at(position, min(_CHUNK, end - position))
            if not data:
                return
            if fmt.CENTRAL_SIGNATURE in before + data or fmt.END_SIGNATURE in before + data:
                self.findings.append(Finding("zip-prefix", f"the {end} bytes before the first member hold an archive"))
                return
            position, before = position + len(data), data[-3:]

    def _without_copies(self) -> tuple[Member, ...]:
        members = self._wheel.archive.members
        counts = Counter(member.name for member in members)
        twice = [name for name, count in counts.items() if count > 1]
        if not twice:
            return tuple(members)
        for name in twice:
            copies = [member for member in members if member.name == name]
            digests = {self._digest(member, "sha256") for member in copies}
            if None in digests:
                continue
            if len(digests) > 1 or len({member.mode for member in copies}) > 1:
                what = "bytes" if len(digests) > 1 else "modes"
                self.findings.append(
                    Finding("zip-duplicate", f"the member stands {len(copies)} times with other {what}", name)
                )
                continue
            self.changes.append(Change("archive", name, f"stands {len(copies)} times, the same bytes", "once"))
        first: dict[str, Member] = {}
        for member in members:
            first.setdefault(member.name, member)
        return tuple(first.values())

    def _check_data(self) -> None:
        """Refuse ``.data`` folders that are not one folder in several spellings, or that hold one path twice."""
        folders = self._wheel.data
        if len(folders) < 2:
            return
        try:
            stems = {tuple(map(str, parse_stem(folder.removesuffix(".data")))) for folder in folders}
        except ReleaseError as error:
            self.findings += [Finding("data-name", fault) for fault in error.faults]
            return
        if len(stems) > 1:
            self.findings.append(Finding("data-name", f"{', '.join(folders)} are the folders of several wheels"))
            return
        merged = [
            f"{folders[0]}/{rest}" if top in folders else name
            for name, (top, _, rest) in ((member.name, member.name.partition("/")) for member in self.members)
        ]
        before = set(check_names(member.name for member in self.members))
        for name, count in Counter(name for name in merged if not name.endswith("/")).items():
            if count > 1:
                message = f"it stands in {count} of {', '.join(folders)}, which are one folder"
                self.findings.append(Finding("data-name", message, name))
        self.findings += [finding for finding in check_names(merged) if finding not in before]

    # -- RECORD -------------------------------------------------------------------------------

    def _new_record(self) -> Record:
        wheel = self._wheel
        record = wheel.record or Record(())
        own = wheel.member("RECORD")
        files = {member.name: member for member in self.members if not member.is_dir}
        if own not in files:
            self.changes.append(Change("files", own, None, "made from the members"))
        left_out = {own, *map(wheel.member, SIGNATURES)}
        lost = [finding for finding in wheel.findings if finding.code in _LOST_ROWS]
        self.changes += [Change("RECORD", finding.member or own, finding.message, None) for finding in lost]
        doubtful = {finding.member for finding in lost if finding.code == "record-duplicate"}
        doubt_all = None in doubtful  # too many to name each
        rows: list[Row] = []
        for row in record:
            new: Row | None = row
            if row.path == own:
                new = Row(own) if row.digest or row.size is not None else row
            elif row.path not in files:
                new = None
            elif row.path not in left_out:
                new = self._row(files[row.path], row, doubt=doubt_all or row.path in doubtful)
            self._note(row, new)
            rows += [] if new is None else [new]
        listed = {row.path for row in rows}
        missing = [self._row(files[name]) for name in files if name not in listed and name not in left_out]
        missing += [] if own in listed else [Row(own)]
        for row in missing:
            self._note(None, row)
        at = len(rows) - 1 if rows and rows[-1].path == own else len(rows)
        rows[at:at] = missing
        return Record(tuple(rows), record.line_end)

    def _row(self, member: Member, row: Row | None = None, *, doubt: bool = False) -> Row:
        """The right row of ``member``: the one that is there, unless it is wrong or all are to be verified."""
        sound = row is not None and is_sound_digest(row.digest)
        algorithm = row.digest.partition("=")[0] if row and sound else "sha256"
        if row and sound and not (self._hashes or doubt) and row.size in (None, member.size):
            digest: str | None = row.digest
        else:
            digest = self._digest(member, algorithm)
        new = Row(member.name, digest or "", member.size)
        return row if row and (row.digest, row.size) == (new.digest, new.size) else new

    def _digest(self, member: Member, algorithm: str) -> str | None:
        digest = hashlib.new(algorithm)
        try:
            for data in self._wheel.archive.chunks(member):
                digest.update(data)
        except WheelError as error:
            self.findings.append(Finding("zip-data", error.reason, member.name))
            return None
        return digest_text(algorithm, digest.digest())

    def _note(self, old: Row | None, new: Row | None) -> None:
        if old != new:
            path = (old or new or Row("")).path
            self.changes.append(Change("RECORD", path, _row_text(old), _row_text(new)))


def _row_text(row: Row | None) -> str | None:
    if row is None:
        return None
    size = "no size" if row.size is None else f"{row.size} bytes"
    return f"{size}, {row.digest or 'no digest'}"
