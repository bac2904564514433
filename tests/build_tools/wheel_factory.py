"""The one place where tests get their wheels from: right ones, odd ones and broken ones.

``make_wheel(folder)`` makes ``demo-1.0-py3-none-any.whl`` in exactly the form that the tool writes, so that
a rename there and back gives the same bytes. Each argument changes one thing::

    make_wheel(folder, name="demo_pkg", files={"demo_pkg/bin/run": Member("#!/bin/sh\\n", mode=0o755)})
    make_wheel(folder, omit=["RECORD"])                      # no RECORD
    make_wheel(folder, archive=Archive(every={"streamed": True}))
"""

from __future__ import annotations

import base64
import csv
import hashlib
import io
import zipfile
from collections.abc import Callable, Collection, Iterable, Mapping
from itertools import product
from pathlib import Path

from tests.build_tools.zip_writer import (
    BZIP2,
    DATE,
    DEFLATED,
    LZMA,
    STORED,
    Archive,
    Member,
    directory,
    local_record,
    symlink,
    write_zip,
)

__all__ = [
    "BZIP2",
    "DATE",
    "DEFLATED",
    "DESCRIPTION",
    "LZMA",
    "PACKAGE",
    "STORED",
    "Archive",
    "Member",
    "digest",
    "directory",
    "local_record",
    "make_wheel",
    "metadata_text",
    "record_row",
    "record_text",
    "symlink",
    "wheel_text",
    "wide_wheel",
]

Content = bytes | str | Member
Files = Mapping[str, Content] | Iterable[tuple[str, Content]]
Rows = list[list[str]]

PACKAGE: dict[str, Content] = {"demo/__init__.py": "VALUE = 1\n"}
DESCRIPTION = "# demo\n\nA small wheel.\n"


def make_wheel(
    folder: Path,
    *,
    name: str = "demo",
    version: str = "1.0",
    tags: str = "py3-none-any",
    build: str = "",
    variant: str = "",
    files: Files | None = None,
    headers: Iterable[str] = (),
    description: str = DESCRIPTION,
    metadata: Content | None = None,
    wheel: Content | None = None,
    record: bytes | str | Callable[[Rows], Rows] | None = None,
    dist_info: str | None = None,
    dist_info_files: Mapping[str, Content] | None = None,
    omit: Collection[str] = (),
    filename: str | None = None,
    archive: Archive | None = None,
) -> Path:
    """Write one wheel into ``folder`` and return its path.

    Args:
        name, version, build, variant: as METADATA and the file name spell them.
        tags: the compressed tag set of the file name; WHEEL has one line for each member of the product.
        files: what stands before ``.dist-info``, in order; pairs allow a name twice. ``None``: ``PACKAGE``.
        headers: more METADATA lines, behind ``Version``.
        description: the METADATA body.
        metadata, wheel: the whole file instead.
        record: the whole file instead, or a function from the right rows to others.
        dist_info: the folder's name instead of the right one.
        dist_info_files: more files in ``.dist-info``, between WHEEL and RECORD.
        omit: files of ``.dist-info`` that are left out (their RECORD rows too).
        filename: the file name instead of the right one.
        archive: what is odd about the zip.
    """
    stem = f"{name.replace('-', '_')}-{version}"
    if files is None:
        files = {path.replace("demo/", f"{name.replace('-', '_')}/"): text for path, text in PACKAGE.items()}
    info = f"{stem}.dist-info" if dist_info is None else dist_info
    inside: dict[str, Content] = {
        "METADATA": metadata_text(name, version, headers, description) if metadata is None else metadata,
        "WHEEL": wheel_text(tags, build) if wheel is None else wheel,
        **(dist_info_files or {}),
    }
    pairs = list(files.items() if isinstance(files, Mapping) else files)
    pairs += [(f"{info}/{file}", content) for file, content in inside.items() if file not in omit]
    members = [(path, content if isinstance(content, Member) else Member(content)) for path, content in pairs]
    if "RECORD" not in omit:
        path = f"{info}/RECORD"
        if record is None or callable(record):
            rows = [record_row(path, member.content) for path, member in members if not path.endswith("/")]
            rows = [*rows, [path, "", ""]]
            record = record_text(rows if record is None else record(rows))
        members.append((path, Member(record)))
    parts = [stem, build, tags, variant]
    target = folder / (filename or "-".join(part for part in parts if part) + ".whl")
    folder.mkdir(parents=True, exist_ok=True)
    target.write_bytes(write_zip(members, archive))
    return target


def wide_wheel(folder: Path, members: int) -> Path:
    """A wheel with so many members, as zipfile writes it."""
    wheel = folder / "demo-1.0-py3-none-any.whl"
    folder.mkdir(parents=True, exist_ok=True)
    info = "demo-1.0.dist-info"
    files = {f"demo/d{number // 1000}/f{number}.txt": b"" for number in range(members - 3)}
    files |= {f"{info}/METADATA": metadata_text().encode(), f"{info}/WHEEL": wheel_text().encode()}
    rows = [[name, digest(data), str(len(data))] for name, data in files.items()]
    files[f"{info}/RECORD"] = record_text([*rows, [f"{info}/RECORD", "", ""]]).encode()
    with zipfile.ZipFile(wheel, "w") as archive:
        for name, data in files.items():
            member = zipfile.ZipInfo(name)
            member.external_attr = 0o100644 << 16
            archive.writestr(member, data)
    return wheel


def metadata_text(
    name: str = "demo", version: str = "1.0", headers: Iterable[str] = (), description: str = DESCRIPTION
) -> str:
    """METADATA of version 2.1, as ``twine check --strict`` wants it."""
    lines = [
        "Metadata-Version: 2.1",
        f"Name: {name}",
        f"Version: {version}",
        "Summary: A small wheel",
        *headers,
        "Description-Content-Type: text/markdown",
    ]
    return "".join(f"{line}\n" for line in lines) + "\n" + description


def wheel_text(tags: str = "py3-none-any", build: str = "") -> str:
    """WHEEL with the tag set expanded and sorted."""
    expanded = ["-".join(atoms) for atoms in product(*(sorted(part.split(".")) for part in tags.split("-")))]
    purelib = "true" if tags.endswith("-none-any") else "false"
    lines = ["Wheel-Version: 1.0", "Generator: wheel_factory", f"Root-Is-Purelib: {purelib}"]
    lines += [f"Build: {build}"] if build else []
    return "".join(f"{line}\n" for line in [*lines, *(f"Tag: {tag}" for tag in expanded)])


def digest(content: bytes, algorithm: str = "sha256") -> str:
    """A digest in the form that RECORD gives it."""
    raw = hashlib.new(algorithm, content).digest()
    return f"{algorithm}={base64.urlsafe_b64encode(raw).rstrip(b'=').decode()}"


def record_row(path: str, content: bytes) -> list[str]:
    return [path, digest(content), str(len(content))]


def record_text(rows: Iterable[Iterable[str]], line_end: str = "\n") -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator=line_end).writerows(rows)
    return text.getvalue()
