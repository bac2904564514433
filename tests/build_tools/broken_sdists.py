"""Sdists with one defect each, as in ``broken_wheels``."""

from __future__ import annotations

import gzip
import io
import tarfile
from collections.abc import Callable, Iterable
from pathlib import Path

from tests.build_tools.broken_wheels import Broken
from tests.build_tools.zip_writer import Member, write_zip

INFO = "Metadata-Version: 2.2\nName: demo\nVersion: 1.0\n\ntext\n"
FILES = {"demo-1.0/PKG-INFO": INFO, "demo-1.0/pyproject.toml": "", "demo-1.0/demo.py": "VALUE = 1\n"}


def entry(
    name: str, data: str | bytes = b"", kind: bytes = tarfile.REGTYPE, link: str = ""
) -> tuple[tarfile.TarInfo, bytes]:
    """A member of any kind."""
    content = data.encode() if isinstance(data, str) else data
    info = tarfile.TarInfo(name)
    info.type, info.linkname, info.size, info.mode = kind, link, len(content), 0o644
    return info, content


def make_sdist(
    folder: Path,
    files: dict[str, str] = FILES,
    *,
    more: Iterable[tuple[tarfile.TarInfo, bytes]] = (),
    filename: str = "demo-1.0.tar.gz",
    form: int = tarfile.PAX_FORMAT,
    tail: bytes = b"",
) -> Path:
    """Write one sdist; ``tail`` stands behind the tar, inside the gzip."""
    folder.mkdir(parents=True, exist_ok=True)
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w", format=form) as archive:
        for info, content in [*(entry(name, text) for name, text in files.items()), *more]:
            archive.addfile(info, io.BytesIO(content))
    path = folder / filename
    path.write_bytes(gzip.compress(raw.getvalue() + tail, mtime=0))
    return path


def _sdist(id: str, code: str, *named: str, pypi: bool = False, **description: object) -> Broken:
    return Broken(id, code, lambda folder: make_sdist(folder, **description), named, pypi=pypi)  # type: ignore[arg-type]


def _member(id: str, name: str, kind: bytes = tarfile.REGTYPE, link: str = "") -> Broken:
    return _sdist(id, "sdist-member", name, more=[entry(name, kind=kind, link=link)])


def _bytes(id: str, code: str, change: Callable[[bytes], bytes], filename: str = "demo-1.0.tar.gz") -> Broken:
    def make(folder: Path) -> Path:
        path = make_sdist(folder)
        data = change(path.read_bytes())
        path.unlink()
        target = folder / filename
        target.write_bytes(data)
        return target

    return Broken(id, code, make)


def _zip(_: bytes) -> bytes:
    return write_zip((name, Member(text)) for name, text in FILES.items())


def _moved(folder: str) -> dict[str, str]:
    return {name.replace("demo-1.0", folder): text for name, text in FILES.items()}


def _info(old: str, new: str) -> dict[str, str]:
    return {**FILES, "demo-1.0/PKG-INFO": INFO.replace(old, new)}


def _without(file: str) -> dict[str, str]:
    return {name: text for name, text in FILES.items() if not name.endswith(file)}


SDISTS = [
    _sdist("an sdist without a version", "sdist-filename", "demo.tar.gz"[:4], filename="demo.tar.gz"),
    _sdist("an sdist of a version that is none", "sdist-filename", "x.y", filename="demo-x.y.tar.gz"),
    _sdist("an sdist in capitals", "sdist-filename-spelling", files=_moved("Demo-1.0"), filename="Demo-1.0.tar.gz"),
    _sdist("a raw version of an sdist", "sdist-filename-spelling", filename="demo-1.0.0-dev0.tar.gz"),
    _bytes("a zip sdist", "sdist-format", _zip, "demo-1.0.zip"),
    _bytes("a tar that is not packed", "sdist-format", gzip.decompress, "demo-1.0.tar"),
    _bytes("a text", "sdist-format", lambda data: b"<!DOCTYPE html>\n"),
    _bytes("an empty sdist file", "sdist-format", lambda data: b""),
    _bytes("an sdist cut by one byte", "sdist-format", lambda data: data[:-1]),
    _bytes("an sdist cut in half", "sdist-format", lambda data: data[: len(data) // 2]),
    _bytes("an sdist of another CRC", "sdist-format", lambda data: data[:-8] + b"\0\0\0\1" + data[-4:]),
    _bytes("bytes behind an sdist", "sdist-format", lambda data: data + b"x"),
    _sdist("bytes behind the tar", "sdist-format", "behind", tail=b"hidden"),
    _sdist("a tar in GNU format", "sdist-tar-format", "GNU", form=tarfile.GNU_FORMAT),
    _sdist("two top folders", "sdist-folder", "other", files={**FILES, "other/x": ""}),
    _sdist("another top folder", "sdist-folder", "demo-1.1", files=_moved("demo-1.1")),
    _sdist("a file at the top", "sdist-folder", "setup.py", files={**FILES, "setup.py": ""}),
    _sdist("no PKG-INFO", "sdist-pkg-info", "demo-1.0/PKG-INFO", files=_without("PKG-INFO")),
    _sdist("no pyproject.toml", "sdist-pyproject", files=_without("pyproject.toml")),
    _sdist("a member twice", "sdist-duplicate", "demo-1.0/demo.py", more=[entry("demo-1.0/demo.py")]),
    _sdist("PKG-INFO of 2.1", "sdist-metadata-version", files=_info("2.2", "2.1")),
    _sdist(
        "PKG-INFO of another version",
        "metadata-version-field",
        "1.1",
        files=_info("1.0", "1.1"),
    ),
    _sdist(
        "PKG-INFO of another name",
        "metadata-name",
        "x",
        files=_info("demo", "x"),
    ),
    _sdist(
        "a bad requirement in PKG-INFO",
        "metadata-value",
        ">>",
        files=_info("\n\n", "\nRequires-Dist: a>>1\n\n"),
    ),
    *(
        _member(f"an sdist member {name!r}", name)
        for name in ("/etc/passwd", "demo-1.0/../../x", "C:/x", "demo-1.0/a\\..\\b")
    ),
    _member("a symlink out of the sdist", "demo-1.0/link", tarfile.SYMTYPE, "../../etc/passwd"),
    _member("a hard link to nothing", "demo-1.0/link", tarfile.LNKTYPE, "/etc/passwd"),
    _member("a device in an sdist", "demo-1.0/null", tarfile.CHRTYPE),
    _member("a pipe in an sdist", "demo-1.0/pipe", tarfile.FIFOTYPE),
    _sdist("an sdist that PyPI calls otherwise", "pypi-filename", "demo-1.0", filename="Demo-1.0.tar.gz", pypi=True),
]
