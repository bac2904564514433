"""Write a clean zip archive; take unchanged members over as compressed bytes.

A run of members that stay as they are, name and all, moves as one block through the kernel's
file copy (``copy_file_range``): nothing is inflated and nothing passes through this process.
"""

from __future__ import annotations

import errno
import os
import zlib
from collections.abc import Iterable
from typing import NamedTuple

from build_tools.errors import WheelError
from build_tools.parallel import require_running
from build_tools.wheels import zip_format as fmt
from build_tools.wheels.archive import Archive
from build_tools.wheels.deflate import deflate, deflater
from build_tools.wheels.member import LAYOUT, Member
from build_tools.wheels.zip_format import Entry

_STEP = 64 << 20
"""Bytes for one system call: small enough that an interrupt is answered soon."""
_CHUNK = 1 << 20
_NO_KERNEL_COPY = {
    getattr(errno, name)
    for name in ("ENOSYS", "EXDEV", "EINVAL", "EOPNOTSUPP", "ENOTSUP", "EPERM", "EBADF", "ETXTBSY", "EOVERFLOW")
}


class Content(NamedTuple):
    """New data for a member: its header facts and its compressed bytes."""

    entry: Entry
    compressed: bytes

    @classmethod
    def make(cls, entry: Entry, data: bytes) -> Content:
        """Compress ``data`` as ``entry.method`` says; sizes and CRC of ``entry`` are replaced."""
        compressed = deflate(data) if entry.method == fmt.DEFLATED else data
        sized = entry._replace(crc=zlib.crc32(data), compressed_size=len(compressed), size=len(data))
        return cls(sized, compressed)


class ArchiveWriter:
    """Writes members one after the other to the file ``fd``, from its start.

    Call :meth:`keep`, :meth:`add`, :meth:`add_pieces` or :meth:`begin`, :meth:`write`, :meth:`end` in the order that
    the archive shall have, then :meth:`finish`.
    """

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._position = 0
        self._pending = bytearray()
        self._run: tuple[Archive, int, int] | None = None
        self._central = bytearray()
        self._entries = 0
        self._open: tuple[Entry, int]

    def keep(self, archive: Archive, member: Member, name: str) -> None:
        """Take ``member`` over under ``name``, its compressed bytes as they are."""
        size, compressed, header, data, crc, time, external, internal, made_by, needed, method, clean = LAYOUT.unpack(
            member.packed
        )
        self._central += fmt.pack_central(
            name, self._position, made_by, needed, method, time, crc, compressed, size, internal, external
        )
        self._entries += 1
        if not clean or member.name != name:
            self._append(fmt.pack_local(name, needed, method, time, crc, compressed, size))
            header = data
        self._copy(archive, header, data + compressed)

    def add(self, content: Content) -> None:
        """Write a member with new data."""
        header = fmt.local_header(content.entry)
        self._enter(content.entry, self._position)
        self._append(header)
        self._append(content.compressed)

    def add_pieces(self, entry: Entry, pieces: Iterable[bytes]) -> None:
        """Write a member with new data that comes in pieces; the size and CRC of ``entry`` must be right already."""
        self.begin(entry)
        compressor = deflater() if entry.method == fmt.DEFLATED else None
        for piece in pieces:
            self.write(compressor.compress(piece) if compressor else piece)
        if compressor:
            self.write(compressor.flush())
        self.end(entry.crc, entry.size)

    def begin(self, entry: Entry) -> None:
        """Start a member whose compressed bytes come in pieces; its ``size`` must be right already."""
        self._open = (entry, self._position)
        self._append(fmt.local_header(entry))

    def write(self, compressed: bytes) -> None:
        """The next compressed bytes of the member that was begun."""
        self._append(compressed)

    def end(self, crc: int, size: int) -> None:
        """Close the member that was begun, now that its CRC and size are known.

        Raises:
            WheelError: the file had another size when the member was begun.
        """
        entry, start = self._open
        room = len(fmt.local_header(entry))
        entry = entry._replace(crc=crc, compressed_size=self._position - start - room, size=size)
        header = fmt.local_header(entry)
        if len(header) != room:
            raise WheelError(f"{entry.name}: the file changed its size while it was read")
        written = self._position - len(self._pending)
        if start >= written:
            self._pending[start - written : start - written + room] = header
        else:
            self._flush_pending()
            os.lseek(self._fd, start, os.SEEK_SET)
            write_all(self._fd, header)
            os.lseek(self._fd, 0, os.SEEK_END)
        self._enter(entry, start)

    def finish(self) -> int:
        """Write the central directory and the end record; return the size of the archive."""
        self._flush_run()
        self._flush_pending()
        records = fmt.end_records(self._entries, self._position, len(self._central))
        for data in (self._central, records):
            write_all(self._fd, data)
            self._position += len(data)
        return self._position

    # ``_position`` counts everything that was entered, pending bytes and the open run included.

    def _enter(self, entry: Entry, position: int) -> None:
        self._central += fmt.central_header(entry, position)
        self._entries += 1

    def _append(self, data: bytes) -> None:
        self._flush_run()
        self._pending += data
        self._position += len(data)
        if len(self._pending) >= _CHUNK:
            self._flush_pending()

    def _copy(self, archive: Archive, start: int, end: int) -> None:
        run = self._run
        if run and run[2] == start and run[0] is archive:
            self._run = (archive, run[1], end)
        else:
            self._flush_run()
            self._run = (archive, start, end)
        self._position += end - start

    def _flush_pending(self) -> None:
        write_all(self._fd, self._pending)
        self._pending.clear()

    def _flush_run(self) -> None:
        if self._run:
            archive, start, end = self._run
            self._run = None
            self._flush_pending()
            copy_range(archive, start, end, self._fd)


def write_all(fd: int, data: bytes | bytearray) -> None:
    """Write all of ``data``, however many calls that takes."""
    view = memoryview(data)
    try:
        while view:
            written = os.write(fd, view)
            rest = view[written:]
            view.release()
            view = rest
    finally:
        view.release()


def copy_range(archive: Archive, start: int, end: int, target: int) -> None:
    """Append the bytes ``start .. end`` of an archive's file to ``target``.

    By the kernel where it can (no copy through this process, on some file systems no copy at
    all), else through a buffer of one megabyte.

    Raises:
        WheelError: the file became shorter meanwhile.
    """
    position = start
    if hasattr(os, "copy_file_range"):
        try:
            while position < end:
                require_running()
                copied = os.copy_file_range(archive.fd, target, min(_STEP, end - position), position)
                if not copied:
                    break
                position += copied
        except OSError as error:
            if error.errno not in _NO_KERNEL_COPY:
                raise
    while position < end:
        data = archive.read_at(position, min(_CHUNK, end - position))
        if not data:
            raise WheelError(f"{archive.path.name}: the file became shorter while it was read")
        write_all(target, data)
        position += len(data)
