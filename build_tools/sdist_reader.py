"""What stands in a source distribution: its members and PKG-INFO, read once from start to end in bounded memory.

Nothing is unpacked. The whole file is inflated, so that length and CRC at its end are proven.
"""

from __future__ import annotations

import gzip
import tarfile
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, cast

from build_tools.errors import FileError, WheelError
from build_tools.parallel import require_running
from build_tools.wheels import zip_format as fmt
from build_tools.wheels.archive import Archive
from build_tools.wheels.finding import Findings
from build_tools.wheels.limits import Limits
from build_tools.wheels.member_names import is_too_long

_GNU = b"ustar  \0"
_BLOCK = 1 << 20
_MAX_READ = 16 << 20
"""Bytes that one header (a long name, a pax header) may have; tarfile reads it in one piece."""
_FAULTS = (tarfile.TarError, EOFError, zlib.error, gzip.BadGzipFile, ValueError, OverflowError, RecursionError)


@dataclass(slots=True)
class SdistContents:
    """The members of an sdist.

    Attributes:
        files, folders: their names, folders without ``/``.
        links: symlinks with their targets.
        pkg_info: the bytes of PKG-INFO in the first top folder that has one, by its name.
    """

    files: set[str] = field(default_factory=set)
    folders: set[str] = field(default_factory=set)
    links: dict[str, str] = field(default_factory=dict)
    pkg_info: dict[str, bytes] = field(default_factory=dict)

    @property
    def names(self) -> set[str]:
        """Everything that it holds."""
        return self.files | self.folders | set(self.links)


class _Exceeded(Exception):
    """The sdist holds more than is read."""


class _Info(tarfile.TarInfo):
    """Remembers in which dialect of tar a member is written."""

    magic = b""

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> _Info:
        info = super().frombuf(buf, encoding, errors)
        info.magic = bytes(buf[257:265])
        return info


class _Stream:
    """An inflated stream that is read forwards and knows when it has given enough."""

    def __init__(self, source: IO[bytes], limit: int) -> None:
        self._source = source
        self._limit = limit
        self._position = 0
        self.last = b""

    def read(self, size: int = -1) -> bytes:
        if not 0 <= size <= _MAX_READ:
            raise _Exceeded(f"a header of {size} bytes, at most {_MAX_READ} are read")
        require_running()
        self.last = self._source.read(size)
        self._position += len(self.last)
        if self._position > self._limit:
            raise _Exceeded(f"it inflates to more than {self._limit} bytes")
        return self.last

    def seek(self, position: int) -> int:
        if position < self._position:
            raise tarfile.ReadError("a member starts before the one in front of it ends")
        while self._position < position and self.read(min(_BLOCK, position - self._position)):
            pass
        return self._position

    def tell(self) -> int:
        return self._position

    def drain(self) -> bool:
        """Read to the end; whether all of it was zero."""
        zero = not any(self.last)
        while data := self.read(_BLOCK):
            zero = zero and data.count(0) == len(data)
        return zero


def read_tar(path: Path, limits: Limits, found: Findings) -> SdistContents:
    """Read a gzipped tar; what is wrong with its form and its members goes to ``found``.

    Raises:
        FileError: it cannot be read.
    """
    contents = SdistContents()
    try:
        with gzip.open(path) as unpacked:
            stream = _Stream(cast("IO[bytes]", unpacked), limits.unpacked)
            # tarfile asks for no more than read, seek and tell.
            with tarfile.open(fileobj=cast("IO[bytes]", stream), mode="r:", tarinfo=_Info) as archive:
                _read_members(archive, contents, limits.members, limits.metadata, found.add)
            if not stream.drain():
                found.add("sdist-format", "bytes that are no member stand behind the last one")
    except _Exceeded as error:
        found.add("limit-exceeded", str(error))
    except _FAULTS as error:
        found.add("sdist-format", f"not a whole .tar.gz file: {error or type(error).__name__}")
    except OSError as error:
        raise FileError.of("read", path, error) from error
    return contents


def _read_members(
    archive: tarfile.TarFile, contents: SdistContents, limit: int, max_info: int, find: Callable[..., None]
) -> None:
    count = 0
    gnu = False
    while (member := archive.next()) is not None:
        archive.members.clear()  # type: ignore[attr-defined]  # they are not looked at again
        count += 1
        if count > limit:
            raise _Exceeded(f"it holds more than {limit} members")
        gnu = gnu or getattr(member, "magic", b"") == _GNU
        name = member.name
        if is_too_long(name):
            find(
                "sdist-member",
                f"its name has {len(name)} characters and {name.count('/') + 1} parts",
                f"{name[:200]}...",
            )
            continue
        if name in contents.files or name in contents.links:
            find("sdist-duplicate", "the member stands twice", name)
        if member.issparse():
            find("sdist-tar-format", "a sparse member, which PyPI refuses", name)
        if member.isdir():
            contents.folders.add(name)
        elif member.issym():
            contents.links[name] = member.linkname
        elif member.islnk():
            if member.linkname not in contents.files:
                find(
                    "sdist-member", f"a hard link to {member.linkname[:200]!r}, which no file before it is called", name
                )
            contents.files.add(name)
        elif member.isreg():
            contents.files.add(name)
            if _is_pkg_info(name):
                stream = archive.extractfile(member)
                if member.size > max_info:
                    find("limit-exceeded", f"it holds {member.size} bytes, at most {max_info} are read", name)
                elif stream is not None:
                    contents.pkg_info[name] = stream.read()
        else:
            find("sdist-member", "a device, a pipe or something else that is no file, folder or link", name)
    if gnu:
        find("sdist-tar-format", "the tar is in GNU format, expected pax")


def read_zip(path: Path, limits: Limits, found: Findings) -> SdistContents:
    """Read a legacy zip sdist.

    Raises:
        FileError: it cannot be read.
    """
    contents = SdistContents()
    with Archive.open(path, limits) as archive:
        found.extend(finding for finding in archive.findings if finding.blocks)
        for member in archive.members:
            if is_too_long(member.name):
                continue
            if member.is_dir:
                contents.folders.add(member.name.removesuffix("/"))
                continue
            contents.files.add(member.name)
            if _is_pkg_info(member.name) and member.entry.method in (fmt.STORED, fmt.DEFLATED):
                try:
                    contents.pkg_info[member.name] = archive.read(member, limits.metadata)
                except WheelError as error:
                    found.add("zip-data", error.reason, member.name)
    return contents


def _is_pkg_info(name: str) -> bool:
    return name.count("/") == 1 and name.endswith("/PKG-INFO")
