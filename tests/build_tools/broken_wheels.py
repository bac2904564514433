"""A corpus of broken wheels: one entry, one defect, and the code that names it.

Every rule that is checked has at least one entry here; a test holds the two lists together.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tests.build_tools.wheel_factory import (
    BZIP2,
    LZMA,
    PACKAGE,
    STORED,
    Archive,
    Member,
    digest,
    local_record,
    make_wheel,
    metadata_text,
    record_row,
    record_text,
    symlink,
    wheel_text,
)

INFO = "demo-1.0.dist-info"
ALL = ("METADATA", "WHEEL", "RECORD")


@dataclass(frozen=True, slots=True)
class Broken:
    """A wheel with one defect.

    Attributes:
        code: the rule that it breaks.
        make: makes it in a folder.
        named: what a message must hold besides the code: the member, the texts that disagree.
        hashes: the defect shows only when the data is read (``--hashes``).
        pypi: only PyPI refuses it (``--pypi``).
    """

    id: str
    code: str
    make: Callable[[Path], Path]
    named: tuple[str, ...] = ()
    hashes: bool = False
    pypi: bool = False

    @property
    def options(self) -> dict[str, bool]:
        """The arguments of a check that shows the defect."""
        return {"hashes": self.hashes, "pypi": self.pypi}

    @property
    def flags(self) -> list[str]:
        """The options of the command line that show it."""
        return [f"--{option}" for option, on in self.options.items() if on]


def broken_wheel(
    id: str, code: str, *named: str, hashes: bool = False, pypi: bool = False, **description: Any
) -> Broken:
    return Broken(id, code, lambda folder: make_wheel(folder, **description), named, hashes, pypi)


_wheel = broken_wheel


def _file(id: str, code: str, content: bytes, *named: str) -> Broken:
    def make(folder: Path) -> Path:
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / "demo-1.0-py3-none-any.whl"
        path.write_bytes(content)
        return path

    return Broken(id, code, make, named)


def _member(id: str, code: str, name: str, member: Member | str = "x = 1\n", **rest: Any) -> Broken:
    return _wheel(id, code, name, files={**PACKAGE, name: member}, **rest)


def _metadata(id: str, code: str, old: str, new: str, *named: str) -> Broken:
    text = metadata_text()
    assert old in text
    return _wheel(id, code, f"{INFO}/METADATA", *named, metadata=text.replace(old, new, 1))


def _wheel_file(id: str, code: str, old: str, new: str, *named: str) -> Broken:
    text = wheel_text()
    assert old in text
    return _wheel(id, code, f"{INFO}/WHEEL", *named, wheel=text.replace(old, new, 1))


def _row(
    id: str,
    code: str,
    edit: Callable[[list[str]], list[str]],
    *named: str,
    path: str = "demo/__init__.py",
    hashes: bool = False,
) -> Broken:
    """RECORD with the row of ``path`` changed."""

    def record(rows: list[list[str]]) -> list[list[str]]:
        return [edit(row) if row[0] == path else row for row in rows]

    return _wheel(id, code, *named, hashes=hashes, record=record)


def _overlap(folder: Path) -> Path:
    inner = local_record("demo/b.py", Member("x = 1\n", method=STORED))
    outer = Member(inner, method=STORED)
    start = 30 + len("demo/a.py")
    b = Member("x = 1\n", method=STORED, offset=start)
    return make_wheel(folder, files=[("demo/a.py", outer), ("demo/b.py", b)])


def _overlap_by_one(folder: Path) -> Path:
    """The last byte of the first member is the first of the second one's header."""
    b = Member("x = 1\n", method=STORED)
    a = Member(b"data, then P", method=STORED, gap=local_record("demo/b.py", b)[1:])
    start = 30 + len("demo/a.py") + len(a.content) - 1
    return make_wheel(folder, files=[("demo/a.py", a), ("demo/b.py", replace(b, offset=start))])


def _two_archives(folder: Path) -> Path:
    """The directory of another archive stands just where the end record of this one says."""
    first = make_wheel(folder / "other", files={"demo/__init__.py": "VALUE = 2\n"}).read_bytes()
    wheel = make_wheel(folder)
    wheel.write_bytes(first[:-22] + wheel.read_bytes())
    return wheel


def _overlap_central(folder: Path) -> Path:
    """The last member claims the first bytes of the central directory for its own."""
    wheel = make_wheel(folder)
    blob = bytearray(wheel.read_bytes())
    start = int.from_bytes(blob[-6:-2], "little")
    last = blob.rindex(b"PK\1\2")
    local = int.from_bytes(blob[last + 42 : last + 46], "little")
    for at in (last + 20, local + 18):
        size = int.from_bytes(blob[at : at + 4], "little")
        blob[at : at + 4] = (size + 4).to_bytes(4, "little")
    assert blob[start : start + 4] == b"PK\1\2"
    wheel.write_bytes(blob)
    return wheel


ARCHIVE = [
    _file("a text file", "zip-not-a-zip", b"<!DOCTYPE html>\n<title>404</title>\n"),
    _file("an empty file", "zip-not-a-zip", b"", "empty"),
    _wheel("one byte cut", "zip-truncated", archive=Archive(cut=1)),
    _wheel("half of it", "zip-truncated", archive=Archive(cut=400)),
    _wheel("one byte added", "zip-trailing-data", archive=Archive(trailing=b"\n")),
    _wheel("a prefix", "zip-prefix", archive=Archive(prefix=b"#!/bin/sh\n")),
    _wheel(
        "a prefix that no offset counts", "zip-prefix", archive=Archive(prefix=b"#!/bin/sh\n", prefix_counted=False)
    ),
    _wheel("bytes between members", "zip-gap", "6 unclaimed", files={"demo/a.py": Member("x = 1\n", gap=b"hidden")}),
    Broken("members that share bytes", "zip-overlap", _overlap, ("demo/",)),
    Broken("members that share one byte", "zip-overlap", _overlap_by_one, ("demo/b.py",)),
    _wheel("the same member twice", "zip-duplicate", "demo/a.py", files=[("demo/a.py", "1"), ("demo/a.py", "2")]),
    _member("another local name", "zip-header-mismatch", "demo/a.py", Member("x", local_name="demo/b.py")),
    _member("another local size", "zip-header-mismatch", "demo/a.py", Member("x", local_size=2)),
    _member("another local method", "zip-header-mismatch", "demo/a.py", Member("x", local_method=STORED)),
    _member("a local encryption flag", "zip-header-mismatch", "demo/a.py", Member("x", local_encrypted=True)),
    _member("a stored member of two sizes", "zip-header-mismatch", "demo/a.py", Member("x", method=STORED, size=2)),
    _member(
        "a data descriptor of other numbers",
        "zip-header-mismatch",
        "demo/a.py",
        Member("x", streamed=True, descriptor=b"PK\7\10" + bytes(12)),
    ),
    _member("no local header", "zip-header-mismatch", "demo/a.py", Member("x", offset=3)),
    _member("an encrypted member", "zip-encrypted", "demo/a.py", Member("x", encrypted=True)),
    _member("a bzip2 member", "zip-method", "demo/a.py", Member("x", method=BZIP2)),
    _member("an LZMA member", "zip-method", "demo/a.py", Member("x", method=LZMA)),
    _member("a name in cp437", "zip-name-encoding", "demo/é.py", Member("x", utf8=False)),
    _member("UTF-8 that is not flagged", "zip-name-encoding", "demo/é.py", Member("x", utf8=False, encoding="utf-8")),
    *(
        _member(f"a member {name!r}", "zip-unsafe-name", name)
        for name in ("../evil.py", "/etc/x", "C:\\x", "C:/x", "a\\b.py", "demo/..data/../../x", "demo//x", "./x")
    ),
    *(
        _wheel(f"a member {name!r}", "zip-unsafe-name", files={**PACKAGE, name: "x"})
        for name in (
            "demo/a\nb.py",
            "demo/\x00.py",
            "demo/\x7f",
            "demo/./x",
            "demo/..",
            "demo/x.",
            "demo/x /y",
            "demo/x ",
        )
    ),
    _wheel("one part of several", "zip-not-a-zip", archive=Archive(disk=1)),
    Broken("a member that reaches into the central directory", "zip-overlap", _overlap_central, (f"{INFO}/RECORD",)),
    _wheel(
        "a file and a folder of one name",
        "zip-name-conflict",
        "demo/a",
        files={**PACKAGE, "demo/a": "x", "demo/a/": Member(kind=0o040000, mode=0o755, method=STORED)},
    ),
    _member("a file below a file", "zip-name-conflict", "demo/__init__.py/x"),
    *(
        _member(f"a symlink to {target[:20]}", "zip-symlink-escape", "demo/link", symlink(target))
        for target in ("../../etc/passwd", "/etc/passwd", "../..", "link", "C:\\x", "a/" * 300 + "x")
    ),
    _wheel(
        "two symlinks that leave together",
        "zip-symlink-escape",
        "demo/b",
        files={**PACKAGE, "demo/a": symlink(".."), "demo/b": symlink("a/../x")},
    ),
    _wheel("METADATA with a wrong CRC", "zip-data", f"{INFO}/METADATA", metadata=Member(metadata_text(), crc=1)),
    _member("a file with a wrong CRC", "zip-data", "demo/a.py", Member("x", crc=1), hashes=True),
    _wheel(
        "names that differ by case",
        "zip-case-collision",
        "demo/a.py",
        files={**PACKAGE, "Demo/a.py": "", "demo/a.py": ""},
    ),
    _wheel(
        "names that differ by composition",
        "zip-case-collision",
        files={**PACKAGE, "demo/\u00e9.py": "", "demo/E\u0301.py": ""},
    ),
    _member("patched data", "zip-method", "0x20", Member("x", flags=0x20)),
    _member("a streaming flag in one header alone", "zip-flags", "demo/a.py", Member("x", flags=8, local_flags=8)),
    _member("an UTF-8 flag in one header alone", "zip-flags", "demo/\u00e9.py", Member("x", local_flags=0x800)),
    _member("a ZIP64 field that no number needs", "zip-extra", "demo/a.py", Member("x", extra=b"\1\0\10\0" + bytes(8))),
    _member("an extra field that is cut", "zip-extra", "demo/a.py", Member("x", extra=b"UT\x09\0\1")),
    _member(
        "another name in a Unicode path field",
        "zip-name-encoding",
        "demo/a.py",
        Member("x", extra=b"up\x0e\0\1" + bytes(4) + b"demo/b.py"),
    ),
    _wheel("an invisible character in a name", "zip-odd-name", "200b", files={**PACKAGE, "demo/a\u200b.py": ""}),
    _member("a part of 256 bytes in a name", "zip-odd-name", f"demo/{'x' * 253}.py"),
    _wheel("a name of 5,000 bytes", "zip-unsafe-name", "demo/x/x", files={**PACKAGE, "demo/" + "x/" * 2500 + "x": ""}),
    _member("a folder that holds data", "zip-name-conflict", "demo/d/", Member("x", kind=0o040000, method=STORED)),
    Broken("a second archive before the first", "zip-prefix", _two_archives, ("bytes stand before",)),
    _member("a zip version that no reader knows", "zip-version", "demo/a.py", Member("x", needed=64)),
    _wheel("data descriptors", "zip-not-clean", archive=Archive(every={"streamed": True})),
    _wheel("an archive comment", "zip-not-clean", archive=Archive(comment=b"x")),
    _member("a symlink", "zip-symlink", "demo/link", symlink("__init__.py")),
]

NAMES = [
    _wheel("three parts", "filename", "demo-1.0-any.whl", filename="demo-1.0-any.whl"),
    _wheel("a build tag without a digit", "filename", filename="demo-1.0-x+1-py3-none-any.whl"),
    _wheel("capitals", "filename-spelling", filename="Demo-1.0-py3-none-any.whl"),
    _wheel("%2B", "filename-spelling", version="1.0+cu1", filename="demo-1.0%2Bcu1-py3-none-any.whl"),
    _wheel("a second dist-info", "dist-info-count", INFO, "bar-1.dist-info", files={"bar-1.dist-info/METADATA": "x"}),
    _wheel("no dist-info", "dist-info-count", files={**PACKAGE, "demo/x.dist-info/METADATA": "x"}, omit=ALL),
    *(_wheel(f"no {file}", "dist-info-file", file, INFO, omit=[file]) for file in ALL),
    _wheel("another project's dist-info", "dist-info-name", "bar-1.0.dist-info", INFO, dist_info="bar-1.0.dist-info"),
    _wheel("another version's dist-info", "dist-info-name", "demo-1.1.dist-info", INFO, dist_info="demo-1.1.dist-info"),
    _wheel("a raw version", "dist-info-name", version="1.0.dev0", dist_info="demo-1.0-dev0.dist-info"),
    _wheel("a dist-info in capitals", "dist-info-spelling", "Demo-1.0.dist-info", dist_info="Demo-1.0.dist-info"),
    _wheel("dist-info first", "dist-info-order", INFO, files={f"{INFO}/LICENSE": "x", **PACKAGE}),
    _wheel("another version's data", "data-name", "demo-1.1.data", files={**PACKAGE, "demo-1.1.data/scripts/x": "x"}),
    _wheel("another project's data", "data-name", "bar-1.0.data", files={**PACKAGE, "bar-1.0.data/scripts/x": "x"}),
    _wheel("data in capitals", "data-spelling", "Demo-1.0.data", files={**PACKAGE, "Demo-1.0.data/scripts/x": "x"}),
]

HEADERS = [
    _wheel(
        "METADATA not UTF-8",
        "metadata-invalid",
        "UTF-8",
        metadata=b"Metadata-Version: 2.1\nName: demo\nVersion: 1.0\nAuthor: \xe9\n",
    ),
    _metadata("a line that is no header", "metadata-invalid", "Summary:", "Summary", "Summary A small wheel"),
    _metadata("no Metadata-Version", "metadata-version", "Metadata-Version: 2.1\n", "", "missing"),
    _metadata("two Metadata-Versions", "metadata-version", "Name:", "Metadata-Version: 2.2\nName:", "'2.1'", "'2.2'"),
    _metadata("Metadata-Version 3.0", "metadata-version", "2.1", "3.0", "3.0"),
    _metadata("Metadata-Version 2.x", "metadata-version", "2.1", "2.x", "2.x"),
    _metadata("Metadata-Version 2.9", "metadata-version-new", "2.1", "2.9", "2.9"),
    _metadata("no Name", "metadata-name", "Name: demo\n", "", "missing"),
    _metadata("an empty Name", "metadata-name", "Name: demo", "Name: ", "empty"),
    _metadata("two Names", "metadata-name", "Name: demo", "Name: demo\nname: demo", "2 times"),
    _metadata("another Name", "metadata-name", "Name: demo", "Name: other", "other"),
    _metadata("an invalid Name", "metadata-name", "Name: demo", "Name: de mo", "de mo"),
    _metadata("no Version", "metadata-version-field", "Version: 1.0\n", "", "missing"),
    _metadata("two Versions", "metadata-version-field", "Version: 1.0", "Version: 1.0\nVersion: 1.1", "'1.0'", "'1.1'"),
    _metadata("another Version", "metadata-version-field", "Version: 1.0", "Version: 1.1", "1.1", "1.0"),
    _metadata("an invalid Version", "metadata-version-field", "Version: 1.0", "Version: 1.0_1", "1.0_1"),
    _metadata("a raw Version", "metadata-version-spelling", "Version: 1.0", "Version: v1.0", "v1.0"),
    _metadata(
        "a requirement cut short", "metadata-value", "Summary:", "Requires-Dist: foo (>=1.0\nSummary:", "foo (>=1.0"
    ),
    _metadata(
        "a requirement with a brace",
        "metadata-value",
        "Summary:",
        "Requires-Dist: foo; {x == 'a'\nSummary:",
        "{x == 'a'",
    ),
    _metadata("a bad Requires-Python", "metadata-value", "Summary:", "Requires-Python: >>3\nSummary:", ">>3"),
    _member("an unknown scheme", "data-scheme", "demo-1.0.data/bogus/x"),
    _member("a file right below .data", "data-scheme", "demo-1.0.data/top"),
    _member("a file called .data", "data-scheme", "demo-1.0.data"),
    _member("a file called .dist-info", "dist-info-count", "x.dist-info"),
    _wheel("a dist-info that is a file", "dist-info-file", files={**PACKAGE, INFO: "x"}, omit=ALL),
    _wheel("METADATA as a symlink", "dist-info-file", "symlink", metadata=symlink("../demo/__init__.py")),
    _metadata("two Summaries", "metadata-field-repeated", "Summary:", "Summary: x\nSummary:", "Summary"),
    _wheel("WHEEL not UTF-8", "wheel-invalid", "UTF-8", wheel=b"Wheel-Version: 1.0\nGenerator: \xe9\n"),
    _wheel_file("no Wheel-Version", "wheel-invalid", "Wheel-Version: 1.0\n", "", "missing"),
    _wheel_file("Wheel-Version 2.0", "wheel-invalid", "1.0", "2.0", "2.0"),
    _wheel_file("another tag", "wheel-tags", "py3-none-any", "py2-none-any", "py2-none-any", "py3-none-any"),
    _wheel_file("no tag", "wheel-tags", "Tag: py3-none-any\n", ""),
    _wheel_file("a tag of two parts", "wheel-tags", "py3-none-any", "py3-none", "py3-none"),
    _wheel_file("a blank tag", "wheel-tags-spelling", "Tag:", "Tag: \nTag:"),
    _wheel_file("a tag twice", "wheel-tags-spelling", "Tag:", "Tag: py3-none-any\nTag:"),
    _wheel_file("a build tag in WHEEL alone", "wheel-build", "Tag:", "Build: 7\nTag:", "7"),
    _wheel("a build tag in the file name alone", "wheel-build", "7", filename="demo-1.0-7-py3-none-any.whl"),
    _wheel_file("no Root-Is-Purelib", "wheel-root", "Root-Is-Purelib: true\n", "", "missing"),
    _wheel_file("Root-Is-Purelib: perhaps", "wheel-root", "true", "perhaps", "perhaps"),
]

_SHORT = "sha256=" + digest(b"VALUE = 1\n").removeprefix("sha256=")[:-1]
_PADDED = digest(b"VALUE = 1\n") + "="
_OTHER = digest(b"other")

RECORDS = [
    _wheel("RECORD not UTF-8", "record-invalid", "UTF-8", record=b"\xe9,,\n"),
    _wheel("a blank line", "record-blank-line", "row 2", record=lambda rows: [rows[0], [], *rows[1:]]),
    _row("a row of 2 fields", "record-invalid", lambda row: row[:2], "demo/__init__.py"),
    _row("a row of 5 fields", "record-invalid", lambda row: [*row, "", ""], "demo/__init__.py"),
    _wheel("an absolute path", "record-path", "/etc/x", record=lambda rows: [["/etc/x", _OTHER, "5"], *rows]),
    _wheel("a path that leaves", "record-path", "../x", record=lambda rows: [["../x", _OTHER, "5"], *rows]),
    _wheel("a path twice", "record-duplicate", "demo/__init__.py", record=lambda rows: [rows[0], *rows]),
    _wheel("a member without a row", "record-missing-row", "demo/__init__.py", record=lambda rows: rows[1:]),
    _wheel("RECORD without a row", "record-missing-row", f"{INFO}/RECORD", record=lambda rows: rows[:-1]),
    _wheel(
        "a row without a member",
        "record-missing-member",
        "demo/x",
        record=lambda rows: [record_row("demo/x", b""), *rows],
    ),
    _wheel(
        "a row for a folder",
        "record-directory",
        "demo/sub/",
        files={**PACKAGE, "demo/sub/": Member(mode=0o755, kind=0o040000, method=STORED)},
        record=lambda rows: [["demo/sub/", "", ""], *rows],
    ),
    _row("no digest", "record-no-digest", lambda row: [row[0], "", row[2]], "demo/__init__.py"),
    *(
        _row(f"a digest by {weak}", "record-weak-digest", lambda row, weak=weak: [row[0], f"{weak}=x", row[2]], weak)  # type: ignore[misc]
        for weak in ("md5", "sha1", "sha224", "crc32")
    ),
    _row("a short digest", "record-digest-form", lambda row: [row[0], _SHORT, row[2]], "demo/__init__.py"),
    _row("a padded digest", "record-digest-form", lambda row: [row[0], _PADDED, row[2]], "demo/__init__.py"),
    _row("another size", "record-size", lambda row: [*row[:2], "11"], "demo/__init__.py", "11", "10"),
    _row("no size", "record-no-size", lambda row: [*row[:2], ""], "demo/__init__.py"),
    _row("a size that is no number", "record-size", lambda row: [*row[:2], "ten"], "demo/__init__.py", "ten"),
    _row("a digest of RECORD", "record-own-row", lambda row: [row[0], _OTHER, "5"], path=f"{INFO}/RECORD"),
    _row("another digest", "record-digest", lambda row: [row[0], _OTHER, row[2]], "demo/__init__.py", hashes=True),
    _wheel(
        "a signature",
        "record-signature",
        "RECORD.jws",
        dist_info_files={"RECORD.jws": "{}"},
        record=lambda rows: [row for row in rows if "jws" not in row[0]],
    ),
]

BROKEN = [*ARCHIVE, *NAMES, *HEADERS, *RECORDS]

MANY_RECORD_FAULTS = record_text(
    [
        ["demo/__init__.py", "md5=x", "10"],
        ["/etc/x", _OTHER, "5"],
        ["demo/two", _OTHER],
        ["demo/gone", _OTHER, "5"],
        ["demo/five", _OTHER, "5", "", ""],
        [f"{INFO}/METADATA", "", ""],
        [f"{INFO}/RECORD", "", ""],
    ]
)
"""RECORD of the plain wheel with seven faults: X9 in one run (WHEEL has no row)."""
