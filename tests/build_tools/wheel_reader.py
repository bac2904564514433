"""Reads wheels for tests, strictly and without the tool: what was really written, byte by byte."""

from __future__ import annotations

import csv
import io
import stat
import struct
import zipfile
import zlib
from dataclasses import dataclass
from email import message_from_string, policy
from email.message import Message
from pathlib import Path

from tests.build_tools.wheel_factory import DEFLATED, STORED, record_row


@dataclass(frozen=True, slots=True)
class Read:
    """One member as the two headers and the data give it."""

    name: str
    method: int
    crc: int
    size: int
    packed: bytes
    """The data as it stands in the archive."""
    mode: int
    """File type and permission bits."""
    date: tuple[int, int, int, int, int, int]

    @property
    def data(self) -> bytes:
        return zlib.decompress(self.packed, -15) if self.method == DEFLATED else self.packed

    @property
    def is_symlink(self) -> bool:
        return stat.S_ISLNK(self.mode)


def read_clean(wheel: Path) -> dict[str, Read]:
    """Read an archive in the only form that the tool may write; anything else fails the test.

    No prefix, no gap, no trailing byte, no comments, no extra fields, no data descriptors, equal headers, no name
    twice, the UTF-8 flag exactly where it is needed, stored or deflated, and no ZIP64 where nothing needs it.
    """
    blob = wheel.read_bytes()
    signature, *disks, count, total, length, start, comment = struct.unpack("<4s4H2LH", blob[-22:])
    assert (signature, disks, comment) == (b"PK\5\6", [0, 0], 0), "the end record is the last 22 bytes"
    assert count == total
    assert start + length == len(blob) - 22, "the end record follows the central directory"
    members: dict[str, Read] = {}
    position, expected = start, 0
    for _ in range(count):
        fields = struct.unpack("<4s2B5H3L5H2L", blob[position : position + 46])
        assert fields[0] == b"PK\1\2"
        needed, flags, method, time, day, crc, packed_size, size = fields[3:11]
        name_length, extra, entry_comment, disk, _internal, attributes, offset = fields[11:]
        raw_name = blob[position + 46 : position + 46 + name_length]
        name = raw_name.decode("utf-8")
        position += 46 + name_length
        assert (extra, entry_comment, disk) == (0, 0, 0), f"{name}: extra fields or a comment"
        assert flags == (0 if name.isascii() else 0x800), f"{name}: flags {flags:#x}"
        assert method in (STORED, DEFLATED), f"{name}: method {method}"
        assert name not in members, f"{name}: stands twice"
        assert offset == expected, f"{name}: {offset - expected} unclaimed bytes before it"
        local = struct.unpack("<4s5H3L2H", blob[offset : offset + 30])
        right = (b"PK\3\4", needed, flags, method, time, day, crc, packed_size, size, name_length, 0)
        assert local == right, f"{name}: local and central header disagree"
        begin = offset + 30 + name_length
        assert blob[offset + 30 : begin] == raw_name
        expected = begin + packed_size
        year_month_day = ((day >> 9) + 1980, day >> 5 & 15, day & 31)
        hour_minute_second = (time >> 11, time >> 5 & 63, (time & 31) * 2)
        members[name] = Read(
            name,
            method,
            crc,
            size,
            blob[begin:expected],
            attributes >> 16,
            (*year_month_day, *hour_minute_second),
        )
        assert (zlib.crc32(members[name].data), len(members[name].data)) == (crc, size), f"{name}: CRC or size"
    assert (position, expected) == (start + length, start)
    return members


def read_right(wheel: Path) -> dict[str, Read]:
    """Read a wheel that agrees with itself in every part; anything else fails the test."""
    members = read_clean(wheel)
    name, version, *rest = wheel.name.removesuffix(".whl").split("-")
    info = f"{name}-{version}.dist-info"
    metadata, described = headers(members[f"{info}/METADATA"].data), headers(members[f"{info}/WHEEL"].data)
    assert metadata["Name"].replace("-", "_").replace(".", "_").lower() == name
    assert metadata["Version"] == version
    assert described.get("Build", "") == (rest[0] if len(rest) == 4 else "")
    sets = [part.split(".") for part in rest[-3:]]
    assert all(part == sorted(set(part)) for part in sets), "tag sets are sorted"
    assert sorted(described.get_all("Tag", [])) == sorted(
        f"{py}-{abi}-{plat}" for py in sets[0] for abi in sets[1] for plat in sets[2]
    )
    names = list(members)
    assert {top for top in (path.split("/")[0] for path in names) if top.endswith((".dist-info", ".data"))} <= {
        info,
        f"{name}-{version}.data",
    }
    inside = [path.startswith(f"{info}/") for path in names]
    assert inside == sorted(inside), ".dist-info stands last"
    assert names[-1] == f"{info}/RECORD", "RECORD stands last of all"
    assert_record_right(members)
    return members


def assert_record_right(members: dict[str, Read]) -> None:
    """RECORD has one right row for each file, a bare one for itself, and no other."""
    (path,) = (name for name in members if name.endswith(".dist-info/RECORD") and name.count("/") == 1)
    rows = record_rows(members)
    expected = [record_row(name, read.data) for name, read in members.items() if not name.endswith("/")]
    assert sorted(rows) == sorted([path, "", ""] if row[0] == path else row for row in expected)


def record_rows(members: dict[str, Read]) -> list[list[str]]:
    (path,) = (name for name in members if name.endswith(".dist-info/RECORD") and name.count("/") == 1)
    return list(csv.reader(io.StringIO(members[path].data.decode(), newline="")))


def headers(data: bytes) -> Message:
    """Header lines as the parser of record reads them."""
    return message_from_string(data.decode(), policy=policy.compat32)


def content(members: dict[str, Read], ending: str) -> bytes:
    """The bytes of the one member whose path ends like this."""
    (read,) = (read for name, read in members.items() if name.endswith(ending))
    return read.data


def read_any(wheel: Path) -> list[Read]:
    """Members of any archive that zipfile reads, with their compressed bytes."""
    blob = wheel.read_bytes()
    members = []
    with zipfile.ZipFile(wheel) as archive:
        for info in archive.infolist():
            name_length, extra = struct.unpack("<2H", blob[info.header_offset + 26 : info.header_offset + 30])
            begin = info.header_offset + 30 + name_length + extra
            packed = blob[begin : begin + info.compress_size]
            mode = info.external_attr >> 16
            members.append(
                Read(info.filename, info.compress_type, info.CRC, info.file_size, packed, mode, info.date_time)
            )
    return members
