"""The records of a zip archive, as this tooling writes them.

Source: PKWARE APPNOTE 6.3.9. Written clean: no data descriptors, no comments, no extra field but
ZIP64, and ZIP64 only where a number does not fit.
"""

from __future__ import annotations

import stat
import struct
from typing import NamedTuple

STORED, DEFLATED = 0, 8

ENCRYPTED = 0x0001 | 0x0040 | 0x2000
"""Flag bits: encrypted, strong encryption, masked headers."""
DATA_DESCRIPTOR = 0x0008
UTF8 = 0x0800
KNOWN_FLAGS = ENCRYPTED | DATA_DESCRIPTOR | UTF8 | 0x0006
"""Bits 1 and 2 tell how hard deflate tried; any other would change what the data means."""

LIMIT_16, LIMIT_32 = 0xFFFF, 0xFFFFFFFF
ZIP64_EXTRA = 0x0001
UNICODE_PATH_EXTRA = 0x7075
ZIP64_VERSION = 45

LOCAL_SIGNATURE = b"PK\x03\x04"
CENTRAL_SIGNATURE = b"PK\x01\x02"
DESCRIPTOR_SIGNATURE = b"PK\x07\x08"
GZIP_SIGNATURE = b"\x1f\x8b"
END_SIGNATURE = b"PK\x05\x06"
END64_SIGNATURE = b"PK\x06\x06"
LOCATOR_SIGNATURE = b"PK\x06\x07"

# signature, needed, flags, method, time+date, crc, compressed, size, name length, extra length
LOCAL = struct.Struct("<4sHHHLLLLHH")
# signature, made by, needed, flags, method, time+date, crc, compressed, size, name length,
# extra length, comment length, disk, internal attributes, external attributes, header offset
CENTRAL = struct.Struct("<4sHHHHLLLLHHHHHLL")
# signature, disk, central disk, entries here, entries, central size, central offset, comment length
END = struct.Struct("<4sHHHHLLH")
# signature, record size, made by, needed, disk, central disk, entries here, entries, size, offset
END64 = struct.Struct("<4sQHHLLQQQQ")
# signature, disk, offset of END64, disks
LOCATOR = struct.Struct("<4sLQL")

_UNIX = 3 << 8


class Entry(NamedTuple):
    """What the headers of one archive member say.

    Attributes:
        method: ``STORED`` or ``DEFLATED`` (another number in an archive that is being read).
        crc: CRC-32 of the uncompressed data.
        compressed_size, size: in bytes.
        dos_time: MS-DOS date (upper 16 bits) and time (lower), in local time of the writer.
        made_by: upper byte the system (3 is Unix), lower byte the zip version.
        needed: the zip version that a reader must know, ZIP64 apart.
        external_attr: upper 16 bits the Unix mode, lower ones MS-DOS attributes.
    """

    name: str
    method: int
    crc: int
    compressed_size: int
    size: int
    dos_time: int
    made_by: int = _UNIX | 20
    needed: int = 20
    internal_attr: int = 0
    external_attr: int = (stat.S_IFREG | 0o644) << 16

    @property
    def mode(self) -> int:
        """The Unix mode with its file type, or 0 where the archive holds none."""
        return self.external_attr >> 16


def is_symlink_mode(mode: int) -> bool:
    """Whether a Unix mode is that of a symlink."""
    return stat.S_ISLNK(mode)


def local_header(entry: Entry) -> bytes:
    """The clean local header of ``entry``, its name included."""
    return pack_local(
        entry.name, entry.needed, entry.method, entry.dos_time, entry.crc, entry.compressed_size, entry.size
    )


def pack_local(name: str, needed: int, method: int, dos_time: int, crc: int, compressed_size: int, size: int) -> bytes:
    """A clean local header from its numbers, as in :class:`Entry`."""
    raw, flags = _encode(name)
    extra = b""
    if compressed_size >= LIMIT_32 or size >= LIMIT_32:
        needed, extra = ZIP64_VERSION, struct.pack("<HHQQ", ZIP64_EXTRA, 16, size, compressed_size)
        compressed_size = size = LIMIT_32
    header = LOCAL.pack(
        LOCAL_SIGNATURE, needed, flags, method, dos_time, crc, compressed_size, size, len(raw), len(extra)
    )
    return header + raw + extra


def central_header(entry: Entry, offset: int) -> bytes:
    """The clean central header of ``entry``, whose local header stands at ``offset``."""
    return pack_central(
        entry.name, offset, entry.made_by, entry.needed, entry.method, entry.dos_time, entry.crc,
        entry.compressed_size, entry.size, entry.internal_attr, entry.external_attr,
    )  # fmt: skip


def pack_central(
    name: str, offset: int, made_by: int, needed: int, method: int, dos_time: int, crc: int, compressed_size: int,
    size: int, internal_attr: int, external_attr: int,
) -> bytes:  # fmt: skip
    """A clean central header from the place of its local header and its numbers, in the order of the format.

    By their places, as each member of a large archive comes here.
    """
    raw, flags = _encode(name)
    extra = b""
    if size >= LIMIT_32 or compressed_size >= LIMIT_32 or offset >= LIMIT_32:
        large = [number for number in (size, compressed_size, offset) if number >= LIMIT_32]
        needed, extra = ZIP64_VERSION, struct.pack(f"<HH{len(large)}Q", ZIP64_EXTRA, 8 * len(large), *large)
        size, compressed_size, offset = min(size, LIMIT_32), min(compressed_size, LIMIT_32), min(offset, LIMIT_32)
    header = CENTRAL.pack(
        CENTRAL_SIGNATURE, made_by, needed, flags, method, dos_time, crc, compressed_size, size, len(raw), len(extra),
        0, 0, internal_attr, external_attr, offset,
    )  # fmt: skip
    return header + raw + extra


def end_records(entries: int, central_offset: int, central_size: int) -> bytes:
    """The end of an archive: ZIP64 end record and locator where a number needs them, then the end record."""
    records = b""
    if entries >= LIMIT_16 or max(central_offset, central_size) >= LIMIT_32:
        end64 = END64.pack(
            END64_SIGNATURE,
            END64.size - 12,
            _UNIX | ZIP64_VERSION,
            ZIP64_VERSION,
            0,
            0,
            entries,
            entries,
            central_size,
            central_offset,
        )
        records = end64 + LOCATOR.pack(LOCATOR_SIGNATURE, 0, central_offset + central_size, 1)
    count = min(entries, LIMIT_16)
    return records + END.pack(
        END_SIGNATURE, 0, 0, count, count, min(central_size, LIMIT_32), min(central_offset, LIMIT_32), 0
    )


def _encode(name: str) -> tuple[bytes, int]:
    return name.encode(), 0 if name.isascii() else UTF8
