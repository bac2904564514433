"""Distributions as files that others install from: wheels and sdists below a folder, and what an index says of each.

Reading one takes its digest, so what was read is worth remembering; a :class:`Stamp` tells whether the
file is still the one that was read.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import NamedTuple, Self

from packaging.version import Version

from build_tools.errors import FileError, ReleaseError, WheelError
from build_tools.sdist import ENDING, Sdist, read_sdist
from build_tools.version import parse_version
from build_tools.wheels.name import NormalizedName, decode_url, normalize_name, stem
from build_tools.wheels.wheel import Wheel

ENDINGS = (".whl", ENDING)
SIDECAR = ".metadata"
"""What the file with the METADATA of a wheel is called behind the wheel's own name (PEP 658)."""


class Stamp(NamedTuple):
    """What changes about a file when its bytes are replaced, whoever sets its times back."""

    size: int
    mtime_ns: int
    ctime_ns: int
    inode: int

    @classmethod
    def of(cls, info: os.stat_result) -> Self:
        """The stamp in a stat."""
        return cls(info.st_size, info.st_mtime_ns, info.st_ctime_ns, info.st_ino)


class Distribution(NamedTuple):
    """One wheel or sdist, as an index tells of it.

    Attributes:
        filename: its name on the disk.
        normal_filename: the file name in normal form; two files that share it are one to an installer.
        project: the project, in normal form.
        version: the version, in normal form.
        tags: the compressed tag set of a wheel, ``""`` for an sdist.
        requires_python: ``Requires-Python``, or ``None``.
        size: bytes.
        sha256: digest of the file, in hex.
        metadata_sha256: digest of a wheel's METADATA, in hex; ``None`` for an sdist.
    """

    filename: str
    normal_filename: str
    project: NormalizedName
    version: str
    tags: str
    requires_python: str | None
    size: int
    sha256: str
    metadata_sha256: str | None


def find_distributions(folder: Path, *, leave: Path | None = None) -> dict[str, Stamp | None]:
    """The wheels and sdists below a folder, in order of their paths relative to it, written with ``/``.

    Hidden files and folders are passed by, and links to folders. What is no file has no stamp.

    Args:
        folder: where to look.
        leave: a folder that is passed by too.

    Raises:
        FileError: a folder is not there, is none or cannot be read.
    """
    found: dict[str, Stamp | None] = {}
    todo = [(folder, "")]
    while todo:
        here, prefix = todo.pop()
        try:
            with os.scandir(here) as entries:
                for entry in entries:
                    if entry.name.startswith("."):
                        continue
                    if entry.is_dir(follow_symlinks=False):
                        if leave is None or not os.path.samefile(entry.path, leave):
                            todo.append((Path(entry.path), f"{prefix}{entry.name}/"))
                    elif entry.name.endswith(ENDINGS):
                        found[prefix + entry.name] = Stamp.of(entry.stat()) if entry.is_file() else None
        except OSError as error:
            raise FileError.of("read", here, error) from error
    return dict(sorted(found.items()))


def read_distribution(path: Path) -> tuple[Distribution, bytes | None]:
    """Read a wheel or an sdist; of a wheel also the bytes of METADATA.

    Raises:
        WheelError, BuildError: it is none, or disagrees with itself: every fault is named.
        FileError: it cannot be read, or changed meanwhile.
    """
    if decode_url(path.name) != path.name:
        raise WheelError(
            f"{path.name}: the file name was saved from a URL, and no index can offer it",
            hint=f"rename it to {decode_url(path.name)!r}",
        )
    try:
        before = Stamp.of(path.stat())
        made = _read_sdist(path) if path.name.endswith(ENDING) else _read_wheel(path)
        if Stamp.of(path.stat()) != before:
            raise FileError(f"{str(path)!r} changed while it was read", hint="try again when it is whole")
    except FileError:
        raise
    except OSError as error:
        raise FileError.of("read", path, error) from error
    return made


def _read_wheel(path: Path) -> tuple[Distribution, bytes]:
    with Wheel.open(path) as opened:
        wheel = opened.require_sound()
        metadata = wheel.metadata.to_bytes()
        return Distribution(
            path.name,
            wheel.name.filename,
            wheel.name.name,
            str(wheel.name.version),
            wheel.name.tag_set,
            _one_line(wheel.metadata.get("Requires-Python")),
            wheel.archive.size,
            _digest(os.dup(wheel.archive.fd)),
            hashlib.sha256(metadata).hexdigest(),
        ), metadata


def read_name(path: Path) -> tuple[NormalizedName, Version]:
    """The project and version of a wheel or an sdist that agrees with itself; no digest is taken.

    Raises:
        WheelError, BuildError, FileError: as :func:`read_distribution`.
    """
    if path.name.endswith(ENDING):
        return _sdist_name(read_sdist(path))
    with Wheel.open(path) as opened:
        name = opened.require_sound().name
        return name.name, name.version


def _sdist_name(sdist: Sdist) -> tuple[NormalizedName, Version]:
    file = sdist.path.name
    faults: list[str] = []
    try:
        project, version = normalize_name(sdist.name), parse_version(sdist.version)
        for where, text in ((file, sdist.stem), (f"{file}: the folder", sdist.folder)):
            name, _, number = text.rpartition("-")
            if (normalize_name(name), str(parse_version(number))) != (project, str(version)):
                faults.append(f"{where} {text!r} disagrees with {sdist.name} {sdist.version} in PKG-INFO")
    except ReleaseError as error:
        faults += [f"{file}: {fault}" for fault in error.faults]
    if faults:
        raise WheelError(faults)
    return project, version


def _read_sdist(path: Path) -> tuple[Distribution, None]:
    sdist = read_sdist(path)
    project, version = _sdist_name(sdist)
    return Distribution(
        path.name,
        f"{stem(project, version)}{ENDING}",
        project,
        str(version),
        "",
        _one_line(sdist.requires_python),
        path.stat().st_size,
        _digest(os.open(path, os.O_RDONLY | getattr(os, "O_BINARY", 0))),
        None,
    ), None


def _digest(fd: int) -> str:
    with open(fd, "rb") as file:
        file.seek(0)
        return hashlib.file_digest(file, "sha256").hexdigest()


def _one_line(value: str | None) -> str | None:
    return " ".join(value.split()) if value is not None else None
