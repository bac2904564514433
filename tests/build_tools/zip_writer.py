"""Writes zip archives byte by byte, so that a test can make each defect on purpose.

Left alone, a member comes out exactly as :mod:`zipfile` writes it to a seekable file.
Nothing here is shared with the tool: it is the other opinion.
"""

from __future__ import annotations

import bz2
import lzma
import stat
import struct
import zlib
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

STORED, DEFLATED, BZIP2, LZMA = 0, 8, 12, 14
DATE = (2024, 5, 6, 7, 8, 10)

_ENCRYPTED, _STREAMED, _UTF8 = 0x1, 0x8, 0x800
_MAX32 = 0xFFFFFFFF


@dataclass(frozen=True, slots=True)
class Member:
    """One member of an archive, and every way in which it can be odd.

    Attributes:
        data: its content; text is written as UTF-8. For a symlink, the target.
        mode: the permission bits.
        kind: the file type bits (``stat.S_IFREG``, ``S_IFLNK``, ``S_IFDIR``, or 0 for none).
        comment, extra: the entry comment and the extra fields of both headers.
        streamed: sizes and CRC stand in a data descriptor behind the data.
        encrypted: the flag alone; the data stays as it is.
        zip64: both headers give the sizes in a ZIP64 extra field.
        utf8: the UTF-8 flag; ``None`` sets it where the name is not ASCII. A name without it is ``encoding``.
        local_name, local_size, local_method, local_encrypted: what the local header says instead of the truth.
        size, crc: what both headers say instead of the truth.
        descriptor: the data descriptor instead of the right one.
        offset: write no local record; the central header points there.
        gap: bytes behind the data that no header claims.
        flags: further flag bits of both headers; local_flags: bits that the local header has otherwise.
        needed: the zip version that both headers say a reader must know, instead of the right one.
    """

    data: bytes | str = b""
    mode: int = 0o644
    kind: int = stat.S_IFREG
    method: int = DEFLATED
    date: tuple[int, int, int, int, int, int] = DATE
    comment: bytes = b""
    extra: bytes = b""
    streamed: bool = False
    encrypted: bool = False
    zip64: bool = False
    utf8: bool | None = None
    encoding: str = "cp437"
    local_name: str | None = None
    local_size: int | None = None
    local_method: int | None = None
    local_encrypted: bool = False
    size: int | None = None
    crc: int | None = None
    descriptor: bytes | None = None
    offset: int | None = None
    gap: bytes = b""
    needed: int | None = None
    flags: int = 0
    local_flags: int = 0

    @property
    def content(self) -> bytes:
        return self.data.encode() if isinstance(self.data, str) else self.data


def symlink(target: str) -> Member:
    return Member(target, mode=0o777, kind=stat.S_IFLNK, method=STORED)


def directory() -> Member:
    return Member(mode=0o755, kind=stat.S_IFDIR, method=STORED)


@dataclass(frozen=True, slots=True)
class Archive:
    """What stands around the members.

    Attributes:
        prefix: bytes before the first member.
        prefix_counted: the offsets count the prefix, as self-extracting archives do.
        comment: the archive comment.
        trailing: bytes behind the end record.
        cut: how many bytes are missing from the end.
        disk: the number of this part of an archive of several.
        every: changes for each member, such as ``{"streamed": True}``.
    """

    prefix: bytes = b""
    prefix_counted: bool = True
    comment: bytes = b""
    trailing: bytes = b""
    cut: int = 0
    disk: int = 0
    every: dict[str, object] = field(default_factory=dict)


def write_zip(members: Iterable[tuple[str, Member]], archive: Archive | None = None) -> bytes:
    """The bytes of an archive that holds ``members`` in this order."""
    archive = archive or Archive()
    body, central = bytearray(archive.prefix), bytearray()
    count = 0
    base = 0 if archive.prefix_counted else len(archive.prefix)
    for name, given in members:
        member = replace(given, **archive.every)  # type: ignore[arg-type]
        offset = len(body) - base if member.offset is None else member.offset
        if member.offset is None:
            body += local_record(name, member) + member.gap
        central += _central_record(name, member, offset)
        count += 1
    start = len(body) - base
    end = struct.pack(
        "<4s4H2LH", b"PK\5\6", archive.disk, archive.disk, count, count, len(central), start, len(archive.comment)
    )
    whole = bytes(body + central + end) + archive.comment + archive.trailing
    return whole[: len(whole) - archive.cut]


def local_record(name: str, member: Member) -> bytes:
    """Local header, data and, where the member is streamed, its data descriptor."""
    packed = _compress(member)
    crc, size = _crc(member), _size(member)
    flags, raw_name = _flags_and_name(member.local_name or name, member)
    flags |= _ENCRYPTED if member.local_encrypted else 0
    flags ^= member.local_flags
    shown = (0, 0, 0) if member.streamed else (crc, len(packed), size)
    if member.local_size is not None:
        shown = (shown[0], shown[1], member.local_size)
    extra = member.extra
    if member.zip64:
        extra = struct.pack("<HHQQ", 1, 16, shown[2], shown[1]) + extra
        shown = (shown[0], _MAX32, _MAX32)
    header = struct.pack(
        "<4s5H3L2H",
        b"PK\3\4",
        _needed(member),
        flags,
        member.method if member.local_method is None else member.local_method,
        *_dos_time(member)[::-1],
        *shown,
        len(raw_name),
        len(extra),
    )
    descriptor = struct.pack("<4s3L", b"PK\7\10", crc, len(packed), size) if member.streamed else b""
    descriptor = descriptor if member.descriptor is None else member.descriptor
    return header + raw_name + extra + packed + descriptor


def _central_record(name: str, member: Member, offset: int) -> bytes:
    packed = _compress(member)
    size, packed_size = _size(member), len(packed)
    flags, raw_name = _flags_and_name(name, member)
    extra = member.extra
    if member.zip64:
        extra = struct.pack("<HHQQ", 1, 16, size, packed_size) + extra
        size = packed_size = _MAX32
    attributes = (member.kind | member.mode) << 16 | (0x10 if stat.S_ISDIR(member.kind) else 0)
    needed = _needed(member)
    header = struct.pack(
        "<4s2B5H3L5H2L",
        b"PK\1\2",
        needed,
        3,
        needed,
        flags,
        member.method,
        *_dos_time(member)[::-1],
        _crc(member),
        packed_size,
        size,
        len(raw_name),
        len(extra),
        len(member.comment),
        0,
        0,
        attributes,
        offset,
    )
    return header + raw_name + extra + member.comment


def _flags_and_name(name: str, member: Member) -> tuple[int, bytes]:
    utf8 = not name.isascii() if member.utf8 is None else member.utf8
    flags = (_ENCRYPTED if member.encrypted else 0) | (_STREAMED if member.streamed else 0) | (_UTF8 if utf8 else 0)
    flags |= member.flags
    return flags, name.encode("utf-8" if utf8 or name.isascii() else member.encoding)


def _compress(member: Member) -> bytes:
    data = member.content
    if member.method == DEFLATED:
        deflate = zlib.compressobj(zlib.Z_DEFAULT_COMPRESSION, zlib.DEFLATED, -15)
        return deflate.compress(data) + deflate.flush()
    if member.method == BZIP2:
        return bz2.compress(data)
    if member.method == LZMA:
        filters = [{"id": lzma.FILTER_LZMA1}]
        properties = lzma._encode_filter_properties(filters[0])  # type: ignore[attr-defined]
        packed = lzma.compress(data, lzma.FORMAT_RAW, filters=filters)
        return struct.pack("<BBH", 9, 4, len(properties)) + properties + packed
    return data


def _crc(member: Member) -> int:
    return zlib.crc32(member.content) if member.crc is None else member.crc


def _size(member: Member) -> int:
    return len(member.content) if member.size is None else member.size


def _needed(member: Member) -> int:
    if member.needed is not None:
        return member.needed
    return {BZIP2: 46, LZMA: 63}.get(member.method, 45 if member.zip64 else 20)


def _dos_time(member: Member) -> tuple[int, int]:
    year, month, day, hour, minute, second = member.date
    return (year - 1980) << 9 | month << 5 | day, hour << 11 | minute << 5 | second // 2
