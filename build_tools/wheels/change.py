"""One thing that differs between two wheels: a name, a header or a file."""

from __future__ import annotations

import hashlib
import stat
from itertools import zip_longest
from typing import NamedTuple

from build_tools.errors import WheelError
from build_tools.wheels.archive import Archive
from build_tools.wheels.headers import Headers
from build_tools.wheels.member import Member
from build_tools.wheels.record import digest_text
from build_tools.wheels.zip_format import Entry


class Change(NamedTuple):
    """One thing that a rewrite changes, or in which two wheels differ.

    Attributes:
        where: ``filename``, ``folder``, ``METADATA``, ``PKG-INFO``, ``WHEEL``, ``files``, ``RECORD`` or ``archive``.
        field: the header, the member, or the rule that the archive broke.
        old, new: what stood there before and after; ``None`` for nothing.
    """

    where: str
    field: str
    old: str | None
    new: str | None

    @property
    def facts(self) -> dict[str, str | None]:
        """The change for programs: ``where``, ``field``, ``old`` and ``new``."""
        return {"where": self.where, "field": self.field, "old": self.old, "new": self.new}

    def __str__(self) -> str:
        head = f"{self.where} {self.field}"
        if self.old is None:
            return f"{head}: + {self.new}"
        if self.new is None:
            return f"{head}: - {self.old}"
        return f"{head}: {self.old} -> {self.new}"


def header_changes(where: str, before: Headers, after: Headers) -> list[Change]:
    """What differs between two header blocks, field by field."""
    changes = []
    names = {field.name.lower(): field.name for field in (*after.fields, *before.fields)}
    was, will = before.by_name(), after.by_name()
    for lower in dict.fromkeys([*was, *will]):
        old, new = was.get(lower, []), will.get(lower, [])
        if old == new:
            continue
        if len(old) == len(new) == 1:
            changes.append(Change(where, names[lower], old[0], new[0]))
            continue
        from difflib import SequenceMatcher  # costly, and few edits change a field of several lines

        for kind, a, b, c, d in SequenceMatcher(a=old, b=new, autojunk=False).get_opcodes():
            if kind != "equal":
                changes += [Change(where, names[lower], *pair) for pair in zip_longest(old[a:b], new[c:d])]
    return changes


class WheelFile(NamedTuple):
    """A file of a wheel as a user meets it.

    Attributes:
        mode: Unix mode with its file type; 0 where the archive holds none.
        size: in bytes.
        crc: CRC-32 of its data.
        digest: what RECORD says, or the data itself, as ``algorithm=text``; ``""`` for nothing.
    """

    mode: int
    size: int
    crc: int
    digest: str

    @classmethod
    def of(cls, entry: Entry, digest: str) -> WheelFile:
        """The file of a member."""
        return cls(entry.mode, entry.size, entry.crc, digest)

    @classmethod
    def read(cls, archive: Archive, member: Member) -> WheelFile:
        """The file of a member with the digest of its data, whatever RECORD says; without one where that is damaged."""
        digest = hashlib.sha256()
        try:
            for data in archive.chunks(member):
                digest.update(data)
        except WheelError:
            return cls.of(member.entry, "")
        return cls.of(member.entry, digest_text("sha256", digest.digest()))

    def contradicts(self, other: WheelFile) -> bool:
        """Whether digests and checksums are of two minds about the two being the same: RECORD may be wrong."""
        same = (self.size, self.crc) == (other.size, other.crc)
        return _algorithm(self) == _algorithm(other) != "" and same != (self.digest == other.digest)

    def __str__(self) -> str:
        """``-rw-r--r-- 12 bytes sha256=...``, as ``ls`` would show it."""
        return f"{stat.filemode(self.mode)} {self.size} bytes {self.digest or f'crc32={self.crc:08x}'}"


def file_change(name: str, old: WheelFile | None, new: WheelFile | None) -> Change:
    """The change of one file; its ``old`` and ``new`` are equal where a user would notice nothing."""
    if old is not None and new is not None and _algorithm(old) != _algorithm(new):
        # Two kinds of digest cannot be compared, the checksums of the archive can.
        old, new = old._replace(digest=""), new._replace(digest="")
    return Change("files", name, old and str(old), new and str(new))


def _algorithm(file: WheelFile) -> str:
    return file.digest.partition("=")[0]
