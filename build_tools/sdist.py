"""A source distribution: what it says of itself, and the same bytes whatever the clock.

Source: Source distribution format (PyPA),
<https://packaging.python.org/specifications/source-distribution-format/>: a file
``{name}-{version}.tar.gz`` with one top folder ``{name}-{version}/`` that holds ``PKG-INFO``.
"""

from __future__ import annotations

import gzip
import tarfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from build_tools.errors import BuildError, FileError, ReleaseError
from build_tools.input_file import open_input
from build_tools.wheels.headers import Headers

ENDING = ".tar.gz"
_MAX_HEADERS = 32 << 20
_MAX_TIME = 0xFFFF_FFFF


@dataclass(frozen=True, slots=True)
class Sdist:
    """What one source distribution says of itself, as it spells it.

    Attributes:
        path: where it is.
        folder: its one top folder.
        name, version: what PKG-INFO says; ``""`` where it says nothing.
        requires_python: ``Requires-Python`` of PKG-INFO, or ``None``.
    """

    path: Path
    folder: str
    name: str
    version: str
    requires_python: str | None = None

    @property
    def stem(self) -> str:
        """The file name without its ending."""
        return self.path.name.removesuffix(ENDING)


def read_sdist(path: Path) -> Sdist:
    """Read an sdist.

    Raises:
        BuildError: it is no gzipped tar, has not exactly one top folder, or no PKG-INFO there.
        FileError: it cannot be read.
    """
    try:
        with open_tar_gz(path) as (archive, unpacked):
            members = archive.getmembers()
            tops = sorted({member.name.split("/", 1)[0] for member in members})
            if len(tops) != 1:
                raise BuildError(f"{path.name}: expected one top folder, found {', '.join(map(repr, tops)) or 'none'}")
            where = f"{tops[0]}/PKG-INFO"
            member = next((member for member in members if member.name == where and member.isreg()), None)
            stream = archive.extractfile(member) if member is not None else None
            if stream is None:
                raise BuildError(f"{path.name}: holds no {where}")
            headers = Headers.parse(stream.read(_MAX_HEADERS), where)
            while unpacked.read(1 << 20):
                pass  # to the end, where length and CRC stand
    except (BuildError, FileError):
        raise
    except ReleaseError as error:
        raise BuildError([f"{path.name}: {fault}" for fault in error.faults], hint=error.hint) from error
    except OSError as error:
        raise FileError.of("read", path, error) from error
    name, version = ((headers.get(field) or "").strip() for field in ("Name", "Version"))
    return Sdist(path, tops[0], name, version, headers.get("Requires-Python"))


@contextmanager
def open_tar_gz(path: Path) -> Iterator[tuple[tarfile.TarFile, gzip.GzipFile]]:
    """The archive in a ``.tar.gz`` file, and the inflated bytes that it is read from.

    Raises:
        BuildError: it is no gzipped tar, or not a whole one; also what is found while it is read.
        FileError: it cannot be read.
    """
    try:
        # Not tarfile's own "r:gz", to which a file that cannot be read is none in gzip's format.
        with (
            open_input(path) as file,
            gzip.open(file) as unpacked,
            tarfile.open(fileobj=unpacked, mode="r:") as archive,
        ):
            yield archive, unpacked
    except (tarfile.TarError, EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise BuildError(f"{path.name}: not a whole .tar.gz file: {error}") from error


def settle_sdist(path: Path, when: int) -> None:
    """Rewrite an sdist so that the same files always give the same bytes.

    Every time becomes ``when``, owners go, modes become 0755 or 0644; names, order and contents stay.

    Args:
        path: the sdist; it is replaced.
        when: seconds since 1970.
    """
    settled = path.with_name(f"{path.name}.settled")
    when = min(max(when, 0), _MAX_TIME)
    with (
        tarfile.open(path, "r:gz") as source,
        settled.open("wb") as raw,
        gzip.GzipFile(filename="", mode="wb", fileobj=raw, mtime=when) as packed,
        tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as target,
    ):
        for member in source:
            stream = source.extractfile(member) if member.isreg() else None
            member.mtime = when
            member.uid = member.gid = 0
            member.uname = member.gname = ""
            member.mode = 0o755 if member.isdir() or member.mode & 0o111 else 0o644
            member.pax_headers = {}
            target.addfile(member, stream)
    settled.replace(path)


def unpack_sdist(path: Path, folder: Path) -> Path:
    """Unpack an sdist into ``folder``; its one top folder.

    Times and modes are those of the archive, and nothing lands outside ``folder``.

    Raises:
        BuildError: it is no gzipped tar, has not exactly one top folder, or a member leaves it.
        FileError: the operating system refuses.
    """
    top = folder / read_sdist(path).folder
    try:
        with tarfile.open(path, "r:gz") as archive:
            archive.extractall(folder, filter="data")
    except tarfile.TarError as error:
        raise BuildError(f"{path.name}: cannot be unpacked: {error}") from error
    except OSError as error:
        raise FileError.of("unpack", path, error) from error
    return top
