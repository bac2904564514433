"""A member of an archive that was read; it takes little memory, as an archive may have a hundred thousand."""

from __future__ import annotations

import struct
from typing import NamedTuple

from build_tools.wheels.zip_format import Entry, is_symlink_mode

# size, compressed size, header offset, data offset, crc, time+date, external and internal attributes, made by,
# needed, method, clean
LAYOUT = struct.Struct("<4Q3L4H?")
MAX_OFFSET = (1 << 63) - 1
"""The largest offset that a file can have: one beyond it is kept as this, and is found to be outside the file."""
# Where in LAYOUT: size 0, CRC 32, external attributes 40, method 50.
_SIZE = struct.Struct("<Q")
_CRC = struct.Struct("<32xL")
_METHOD = struct.Struct("<50xH")
_ATTRIBUTES = struct.Struct("<40xL")


class Member(NamedTuple):
    """A member of an archive that was read.

    Attributes:
        name: its path in the archive.
        packed: everything else, as :data:`LAYOUT` packs it: a fifth of what the numbers would take as objects.
    """

    name: str
    packed: bytes

    @classmethod
    def of(cls, entry: Entry, header_offset: int, data_offset: int, *, clean: bool) -> Member:
        """The member of a central header.

        Args:
            entry: what its central header says.
            header_offset: where its local header starts.
            data_offset: where its compressed data starts.
            clean: its local header is byte for byte what this tooling writes, with the data right
                behind it, so header and data can be copied as one.
        """
        packed = LAYOUT.pack(
            entry.size, entry.compressed_size, min(header_offset, MAX_OFFSET), min(data_offset, MAX_OFFSET), entry.crc,
            entry.dos_time, entry.external_attr, entry.internal_attr, entry.made_by, entry.needed, entry.method, clean,
        )  # fmt: skip
        return cls(entry.name, packed)

    @property
    def entry(self) -> Entry:
        """What its central header says."""
        size, compressed, _, _, crc, time, external, internal, made_by, needed, method, _ = LAYOUT.unpack(self.packed)
        return Entry(self.name, method, crc, compressed, size, time, made_by, needed, internal, external)

    @property
    def size(self) -> int:
        """Its bytes, uncompressed."""
        size: int = _SIZE.unpack_from(self.packed)[0]
        return size

    @property
    def crc(self) -> int:
        """The CRC-32 of its data, uncompressed."""
        crc: int = _CRC.unpack_from(self.packed)[0]
        return crc

    @property
    def method(self) -> int:
        """How it is compressed, as in :class:`~build_tools.wheels.zip_format.Entry`."""
        method: int = _METHOD.unpack_from(self.packed)[0]
        return method

    @property
    def mode(self) -> int:
        """Its Unix mode with the file type, or 0 where the archive holds none."""
        attributes: int = _ATTRIBUTES.unpack_from(self.packed)[0]
        return attributes >> 16

    @property
    def is_dir(self) -> bool:
        """Whether it is a directory entry."""
        return self.name.endswith("/")

    @property
    def is_symlink(self) -> bool:
        """Whether its mode says that its data is the target of a symlink."""
        return is_symlink_mode(self.mode)

    @property
    def header_offset(self) -> int:
        """Where its local header starts."""
        offset: int = LAYOUT.unpack(self.packed)[2]
        return offset

    @property
    def data_offset(self) -> int:
        """Where its compressed data starts."""
        offset: int = LAYOUT.unpack(self.packed)[3]
        return offset

    @property
    def end(self) -> int:
        """Where its compressed data ends."""
        packed = LAYOUT.unpack(self.packed)
        end: int = packed[3] + packed[1]
        return end

    @property
    def clean(self) -> bool:
        """Whether its local header is as this tooling writes it, see :meth:`of`."""
        clean: bool = LAYOUT.unpack(self.packed)[-1]
        return clean
