"""Read a zip archive and name everything that is wrong with it.

Faults of its records and names are collected as findings, never raised, so that one look reports
them all; what can still be read is read.
"""

from __future__ import annotations

import os
import stat
import zlib
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Self

from build_tools.errors import FileError, WheelError
from build_tools.parallel import require_running
from build_tools.wheels import zip_format as fmt
from build_tools.wheels.central_directory import CentralDirectory
from build_tools.wheels.finding import Finding
from build_tools.wheels.inflater import ZLIB, Inflater
from build_tools.wheels.limits import LIMITS, MAX_SYMLINK, MAX_SYMLINKS, Limits
from build_tools.wheels.member import LAYOUT, Member
from build_tools.wheels.member_names import check_names, leaves_tree

CHUNK = 1 << 20
_READ = 64 << 10
"""Bytes that are read at a time: with more, what is inflated leaves the cache, which costs a tenth."""


class Archive:
    """An open zip archive: its members in the order of the central directory, and its faults.

    Use as a context manager; the file stays open until :meth:`close`.
    """

    def __init__(self, path: Path, fd: int, size: int, limits: Limits = LIMITS) -> None:
        self.path = path
        self.fd = fd
        self.size = size
        self.limits = limits
        directory = CentralDirectory(self.read_at, size, limits)
        self.members = directory.members
        self._found = directory.found
        self.by_name = directory.by_name
        self._check_names(directory.odd)

    @classmethod
    def open(cls, path: str | os.PathLike[str], limits: Limits = LIMITS) -> Self:
        """Open and read ``path``, within ``limits``.

        Raises:
            FileError: there is no such file, it is a folder or a device, or it cannot be read.
        """
        where = os.fspath(path)
        fd = -1
        try:
            # O_NONBLOCK: opening a pipe would wait for its writer.
            flags = os.O_RDONLY | getattr(os, "O_BINARY", 0) | getattr(os, "O_CLOEXEC", 0)
            fd = os.open(where, flags | getattr(os, "O_NONBLOCK", 0))
            info = os.fstat(fd)
            if stat.S_ISDIR(info.st_mode):
                raise FileError(f"{where!r} is a folder, expected a wheel file")
            if not stat.S_ISREG(info.st_mode):
                raise FileError(f"{where!r} is no regular file, expected a wheel file")
            return cls(Path(where), fd, info.st_size, limits)
        except OSError as error:
            if fd >= 0:
                os.close(fd)
            if isinstance(error, FileError):
                raise
            raise FileError.of("read", where, error) from error
        except BaseException:
            if fd >= 0:
                os.close(fd)
            raise

    @property
    def findings(self) -> list[Finding]:
        """Every fault of its records and names."""
        return self._found.all()

    def close(self) -> None:
        """Close the file; the members stay."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def read_at(self, offset: int, length: int) -> bytes:
        """``length`` bytes from ``offset``; fewer at the end of the file."""
        require_running()
        if offset >= self.size:  # what a header claims may be more than the system takes
            return b""
        try:
            if hasattr(os, "pread"):
                return os.pread(self.fd, length, offset)
            os.lseek(self.fd, offset, os.SEEK_SET)
            return os.read(self.fd, length)
        except OSError as error:
            raise FileError.of("read", self.path, error) from error

    # -- data ---------------------------------------------------------------------------------

    def chunks(self, member: Member) -> Iterator[bytes]:
        """The uncompressed data of ``member`` in pieces of at most a megabyte.

        Raises:
            WheelError: the data is cut, does not inflate, or has another size or CRC than its
                header says. Raised as soon as it is seen: never more than ``member.size`` bytes
                come out.
        """
        crc = 0
        for data in self.pieces(member):
            crc = zlib.crc32(data, crc)
            yield data
        if crc != member.crc:
            raise self._data_error(member, self.crc_fault(member, crc))

    def crc_fault(self, member: Member, crc: int) -> str:
        """What is to say of data whose CRC is not the one of its header."""
        return f"its CRC is {crc:08x}, its header says {member.crc:08x}"

    def pieces(self, member: Member, inflater: Inflater = ZLIB, length: int = CHUNK) -> Iterator[bytes]:
        """As :meth:`chunks`, in pieces of at most ``length`` bytes whose CRC the caller looks after."""
        if member.size < length and (whole := self._whole(member, inflater)) is not None:
            yield whole
            return
        if member.method not in (fmt.STORED, fmt.DEFLATED):
            raise self._data_error(member, f"its compression method {member.method} is not allowed in a wheel")
        size = 0
        raw = self._raw(member, min(length, _READ))
        for data in self._inflate(member, raw, inflater, length) if member.method == fmt.DEFLATED else raw:
            size += len(data)
            if size > member.size:
                raise self._data_error(member, f"it inflates to more than the {member.size} bytes of its header")
            yield data
        if size != member.size:
            raise self._data_error(member, f"it inflates to {size} bytes, its header says {member.size}")

    def _whole(self, member: Member, inflater: Inflater) -> bytes | None:
        """The data of a small member, read in one step; ``None`` where it is not as its header says."""
        size, compressed, _, start, *_, method, _ = LAYOUT.unpack(member.packed)
        if compressed > _READ or method not in (fmt.STORED, fmt.DEFLATED):
            return None
        raw = self.read_at(start, compressed)
        if method == fmt.STORED:
            return raw if len(raw) == size == compressed else None
        stream = inflater.decompressobj(-zlib.MAX_WBITS)
        try:
            data: bytes = stream.decompress(raw, size + 1)
        except inflater.error:
            return None
        right = len(raw) == compressed and len(data) == size and stream.eof and not stream.unused_data
        return data if right else None

    def _raw(self, member: Member, length: int) -> Iterator[bytes]:
        offset = member.data_offset
        while offset < member.end:
            data = self.read_at(offset, min(length, member.end - offset))
            if not data:
                raise self._data_error(member, "its data is cut")
            offset += len(data)
            yield data

    def _inflate(self, member: Member, raw: Iterator[bytes], program: Inflater, length: int) -> Iterator[bytes]:
        inflater = program.decompressobj(-zlib.MAX_WBITS)
        try:
            for piece in raw:
                todo = piece
                while todo and not inflater.eof:
                    yield inflater.decompress(todo, length)
                    todo = inflater.unconsumed_tail
                if inflater.eof and (inflater.unused_data or next(raw, b"")):
                    raise self._data_error(member, "bytes follow its deflate stream")
            # The last bytes may wait inside, where the piece before them was full.
            while not inflater.eof and (data := inflater.decompress(b"", length)):
                yield data
        except program.error as error:
            raise self._data_error(member, f"its data does not inflate ({error})") from error
        if not inflater.eof:
            raise self._data_error(member, "its deflate stream is cut")

    def read(self, member: Member, limit: int) -> bytes:
        """The whole data of ``member``.

        Raises:
            WheelError: as :meth:`chunks`, or the member is larger than ``limit`` bytes.
        """
        if member.size > limit:
            raise self._data_error(member, f"it holds {member.size} bytes, at most {limit} are read")
        return b"".join(self.chunks(member))

    def _data_error(self, member: Member, why: str) -> WheelError:
        return WheelError(f"{self.path.name}: {member.name}: {why}", member=member.name, reason=why)

    # -- names --------------------------------------------------------------------------------

    def _find(self, code: str, message: str, member: str) -> None:
        self._found.add(code, message, member)

    def _check_names(self, odd: list[Member]) -> None:
        self._found.extend(check_names([member.name for member in self.members]))
        links: dict[str, str] = {}
        count = 0
        for member in odd:
            if member.is_dir and member.size:
                self._find("zip-name-conflict", f"a folder, yet it holds {member.size} bytes", member.name)
            if member.is_symlink:
                self._find("zip-symlink", "it is a symlink, which pip and uv unpack as a text file", member.name)
                count += 1
                if count > MAX_SYMLINKS:
                    continue
                target = self._link_target(member)
                if target is not None:
                    links[member.name] = target
        if count > MAX_SYMLINKS:
            self._found.add("limit-exceeded", f"{count} symlinks, at most {MAX_SYMLINKS} are followed")
        for name, target in links.items():
            if leaves_tree(name, links):
                self._find("zip-symlink-escape", f"the symlink to {target!r} leaves the archive", name)

    def _link_target(self, member: Member) -> str | None:
        try:
            return self.read(member, MAX_SYMLINK).decode()
        except WheelError as error:
            self._find("zip-data", f"the symlink cannot be read: {error.reason}", member.name)
        except UnicodeDecodeError:
            self._find("zip-symlink-escape", "the target of the symlink is not UTF-8", member.name)
        return None
