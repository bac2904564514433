"""A small wheel with every byte of its records damaged in turn, and what other readers make of the result."""

from __future__ import annotations

import struct
import zipfile
from collections.abc import Iterator
from pathlib import Path

from tests.build_tools.wheel_factory import PACKAGE, STORED, Archive, Member, directory, make_wheel

FORMS = {
    "clean": Archive(),
    "streamed": Archive(every={"streamed": True}),
    "ZIP64": Archive(every={"zip64": True}),
    "with extra fields and comments": Archive(
        every={"extra": b"UT\x05\x00\x01\x00\x00\x00\x00", "comment": b"c"}, comment=b"archive"
    ),
}
"""Archives that differ in their records; all of them are read."""


def small_wheel(folder: Path, form: str) -> Path:
    """A stored and a deflated member, a folder, a name that is not ASCII."""
    files = {**PACKAGE, "demo/é.bin": Member(b"stored", method=STORED), "demo/d/": directory()}
    return make_wheel(folder, files=files, archive=FORMS[form], description="")


def record_bytes(data: bytes) -> list[int]:
    """Where the bytes stand that are no member's data: headers, data descriptors, directory, end record."""
    count, _, start = struct.unpack("<HLL", data[(end := data.rindex(b"PK\5\6")) + 10 : end + 20])
    taken: set[int] = set()
    position = start
    for _ in range(count):
        packed, _, name, extra, comment = struct.unpack("<LL3H", data[position + 20 : position + 34])
        (offset,) = struct.unpack("<L", data[position + 42 : position + 46])
        if packed == 0xFFFFFFFF:
            (packed,) = struct.unpack("<Q", data[position + 46 + name + 12 : position + 46 + name + 20])
        local_name, local_extra = struct.unpack("<HH", data[offset + 26 : offset + 30])
        begin = offset + 30 + local_name + local_extra
        taken |= set(range(begin, begin + packed))
        position += 46 + name + extra + comment
    return [at for at in range(len(data)) if at not in taken]


def damaged(data: bytes, *, thorough: bool) -> Iterator[tuple[str, bytes]]:
    """``data`` with one byte changed, removed or added, or its end cut off; each with what was done."""
    for at in record_bytes(data):
        now = data[at]
        changed = {now ^ 1, now ^ 0x80, now ^ 0xFF, 0, 0xFF} if thorough else {now ^ 1, now ^ 0xFF}
        for byte in sorted(changed - {now}):
            yield f"byte {at} is {byte:#x}", data[:at] + bytes([byte]) + data[at + 1 :]
        yield f"byte {at} is gone", data[:at] + data[at + 1 :]
        yield f"a byte before {at}", data[:at] + b"\0" + data[at:]
    for end in range(len(data)):
        yield f"cut at {end}", data[:end]


def read_by_zipfile(wheel: Path) -> dict[str, bytes]:
    """What :mod:`zipfile`, and with it pip, reads; it raises where it refuses."""
    with zipfile.ZipFile(wheel) as archive:
        assert len(set(archive.namelist())) == len(archive.namelist())
        return {info.filename: archive.read(info) for info in archive.infolist()}
