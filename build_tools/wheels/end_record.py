"""The end record of a zip archive, which says where its central directory is, and its ZIP64 form.

Source: PKWARE APPNOTE 6.3.9.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, TypeAlias

from build_tools.wheels import zip_format as fmt

ReadAt: TypeAlias = Callable[[int, int], bytes]
"""Gives up to so many bytes (second argument) from an offset (first)."""


class EndRecord(NamedTuple):
    """What the end of an archive says of its central directory.

    Attributes:
        entries: how many members it has.
        central_size, central_offset: its bytes, and where it should start.
        central_end: where it must end.
    """

    entries: int
    central_size: int
    central_offset: int
    central_end: int


def read_whole(read_at: ReadAt, offset: int, length: int) -> bytes:
    """``length`` bytes from ``offset``, however many reads that takes; fewer at the end of the file."""
    parts = []
    while length and (part := read_at(offset, length)):
        parts.append(part)
        offset, length = offset + len(part), length - len(part)
    return b"".join(parts)


def read_end(read_at: ReadAt, file_size: int, find: Callable[[str, str], None]) -> EndRecord | None:
    """What the end of an archive of ``file_size`` bytes says; its faults go to ``find``. ``None``: it says nothing."""
    base = max(0, file_size - fmt.END.size - fmt.LIMIT_16)
    tail = read_whole(read_at, base, file_size - base)
    # An end record without a comment first: its own numbers may hold the bytes of a signature.
    at = len(tail) - fmt.END.size
    if not (tail.startswith(fmt.END_SIGNATURE, max(at, 0)) and tail.endswith(b"\0\0")):
        at = tail.rfind(fmt.END_SIGNATURE)
    if at < 0 or len(tail) - at < fmt.END.size:
        head = read_at(0, 4)
        if at >= 0 or head in (fmt.LOCAL_SIGNATURE, fmt.END_SIGNATURE):
            find("zip-truncated", "the archive is cut: it has no whole end record")
        else:
            what = "the file is empty" if not file_size else f"the file starts with {read_at(0, 16)!r}"
            if head.startswith(fmt.GZIP_SIGNATURE):
                what = "it is gzip, as an sdist is"
            find("zip-not-a-zip", f"not a zip archive: {what}")
        return None
    _, disk, central_disk, here, entries, size, offset, comment = fmt.END.unpack_from(tail, at)
    end = base + at
    extra = file_size - end - fmt.END.size - comment
    if extra < 0:
        find("zip-truncated", f"the archive is cut: {-extra} bytes of its comment are missing")
    elif extra:
        find("zip-trailing-data", f"{extra} bytes follow the end record")
    elif comment:
        find("zip-not-clean", f"the archive has a comment of {comment} bytes")
    if at >= fmt.LOCATOR.size and tail.startswith(fmt.LOCATOR_SIGNATURE, at - fmt.LOCATOR.size):
        end64 = _read_end64(read_at, find, end - fmt.LOCATOR.size, fmt.LOCATOR.unpack_from(tail, at - fmt.LOCATOR.size))
        if end64 is None:
            # Where its own numbers are whole, the members can be read all the same.
            whole = entries < fmt.LIMIT_16 and size < fmt.LIMIT_32 and offset < fmt.LIMIT_32
            return EndRecord(entries, size, offset, offset + size) if whole else None
        for short, limit, long in zip(
            (entries, size, offset), (fmt.LIMIT_16, fmt.LIMIT_32, fmt.LIMIT_32), end64, strict=False
        ):
            if short not in (limit, long):
                find("zip-header-mismatch", f"the end record says {short}, the ZIP64 end record {long}")
        return end64
    if disk or central_disk or here != entries:
        find("zip-not-a-zip", "the archive is one part of several")
    return EndRecord(entries, size, offset, end)


def _read_end64(
    read_at: ReadAt, find: Callable[[str, str], None], position: int, locator: tuple[int, ...]
) -> EndRecord | None:
    """As :func:`read_end`, from the record that stands right before its locator."""
    _, locator_disk, offset, disks = locator
    at = position - fmt.END64.size
    record = read_at(at, fmt.END64.size) if at >= 0 else b""
    if len(record) < fmt.END64.size or not record.startswith(fmt.END64_SIGNATURE):
        find("zip-truncated", "the ZIP64 end record is not right before its locator")
        return None
    if locator_disk or disks != 1 or offset != at:
        find(
            "zip-header-mismatch",
            f"the ZIP64 locator says byte {offset}, disk {locator_disk} of {disks}; "
            f"the record is at byte {at}, disk 0 of 1",
        )
    _, length, _, _, disk, central_disk, here, entries, size, offset = fmt.END64.unpack(record)
    if disk or central_disk or here != entries or length != fmt.END64.size - 12:
        find("zip-not-a-zip", "the ZIP64 end record is of several parts or of an unknown version")
        return None
    return EndRecord(entries, size, offset, at)
