"""Hypothesis strategies for whole wheels: right ones with everything that a wheel may hold, and odd ones."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from hypothesis import strategies as st
from packaging.version import Version

from build_tools.wheels import WheelName
from tests.build_tools.test_properties import Wanted, wheels
from tests.build_tools.wheel_factory import STORED, Archive, Member, directory, metadata_text, symlink

HELLO = Member("#!python\nprint('hello')\n", mode=0o755)
ENTRY_POINTS = "[console_scripts]\ndemo-run = demo:main\n\n[demo.plugins]\na.b = demo:VALUE\n"

Description = dict[str, Any]
Oddity = Callable[[Description, str], Description]
"""Changes the description of a wheel whose ``{name}-{version}`` is the second argument."""


def _file(path: str, content: Member | str = "x = 1\n") -> Oddity:
    return lambda wheel, stem: {**wheel, "files": {**wheel["files"], path.format(stem=stem): content}}


def _info(file: str, content: str | bytes) -> Oddity:
    return lambda wheel, stem: {**wheel, "dist_info_files": {**wheel.get("dist_info_files", {}), file: content}}


def _headers(*lines: str) -> Oddity:
    def change(wheel: Description, stem: str) -> Description:
        text = wheel["metadata"]
        end = "\r\n" if "\r\n" in text.split("Name:")[0] else "\n"
        head, name, rest = text.partition(f"Name: {wheel['name']}{end}")
        return {**wheel, "metadata": head + name + "".join(f"{line}{end}" for line in lines) + rest}

    return change


def _archive(**every: object) -> Oddity:
    return lambda wheel, stem: {**wheel, "archive": Archive(every=every)}


def _set(**description: Any) -> Oddity:
    return lambda wheel, stem: {**wheel, **description}


def _rows(change: Callable[[list[list[str]]], list[list[str]]]) -> Oddity:
    return lambda wheel, stem: {**wheel, "record": change}


ALLOWED: dict[str, Oddity] = {
    "a script": _file("{stem}.data/scripts/hello", HELLO),
    "a header": _file("{stem}.data/headers/demo.h"),
    "data": _file("{stem}.data/data/share/demo/x.txt"),
    "purelib": _file("{stem}.data/purelib/demo/more.py"),
    "platlib": _file("{stem}.data/platlib/demo/more.py"),
    "entry points": _info("entry_points.txt", ENTRY_POINTS),
    "a license": _info("licenses/LICENSE", "MIT\n"),
    "top_level.txt": _info("top_level.txt", "demo\n"),
    "direct_url.json": _info("direct_url.json", "{}"),
    "a vendored dist-info": _file("demo/_vendor/bar-2.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: bar\n"),
    "a folder": _file("demo/folder/", directory()),
    "an empty file": _file("demo/empty.txt", ""),
    "a stored empty file": _file("demo/empty.txt", Member(b"", method=STORED)),
    "a file without a mode": _file("demo/plain.py", Member("x = 2\n", mode=0, kind=0)),
    "a setuid file": _file("demo/suid.py", Member("x = 3\n", mode=0o4755)),
    "blanks in a name": _file("demo/a b c.txt"),
    "a comma in a name": _file('demo/a,"b".txt'),
    "a name in Chinese": _file("demo/\u4e2d\u6587.txt"),
    "a name in two forms": _file("demo/E\u0301.txt"),
    "a name of 255 bytes": _file("demo/" + "n" * 251 + ".txt"),
    "many folders": _file("demo/" + "d/" * 40 + "x.txt"),
    "a hidden file": _file("demo/.hidden"),
    "a name with a percent sign": _file("demo/100%2B.txt"),
    "a name with a colon": _file("demo/a:b.txt"),
    "a name that is a device elsewhere": _file("demo/aux.txt"),
    "a dash before the name": _file("demo/-rf.txt"),
    "a tilde": _file("demo/~x.txt"),
    "requirements": _headers("Requires-Dist: numpy>=1; extra == 'a'", "Provides-Extra: a", "Requires-Python: >=3.8"),
    "a requirement by URL": _headers("Requires-Dist: foo @ https://example.org/foo-1.0.tar.gz"),
    "a folded header": _headers("License: MIT", "        and more"),
    "an author in UTF-8": _headers("Author: Jürgen Größe"),
    "an empty header": _headers("Keywords: "),
}
"""What a wheel may hold."""
DOUBTFUL: dict[str, Oddity] = {
    "streamed": _archive(streamed=True),
    "ZIP64": _archive(zip64=True),
    "extra fields": _archive(extra=b"UT\x05\x00\x01\x00\x00\x00\x00"),
    "entry comments": _archive(comment=b"c"),
    "bytes between members": _archive(gap=b"gap"),
    "a CRC that is wrong": _file("demo/a.py", Member("x = 4\n", crc=1)),
    "a size that is wrong": _file("demo/a.py", Member("x = 5\n", size=3)),
    "another local name": _file("demo/a.py", Member("x = 6\n", local_name="demo/b.py")),
    "a symlink": _file("demo/link.py", symlink("__init__.py")),
    "an invisible character": _file("demo/a\u200b.txt"),
    "a name that differs by case": _file("demo/__INIT__.py"),
    "an unknown scheme": _file("{stem}.data/bogus/x"),
    "a part of 256 bytes": _file("demo/" + "n" * 256),
    "a trailing dot": _file("demo/a."),
    "a second dist-info": _file("bar-1.dist-info/METADATA"),
    "an invalid requirement": _headers("Requires-Dist: foo (>=1.0"),
    "an invalid Requires-Python": _headers("Requires-Python: >>3"),
    "two Summaries": _headers("Summary: a", "Summary: b"),
    "a row missing": _rows(lambda rows: rows[1:]),
    "a row without a digest": _rows(lambda rows: [[rows[0][0], "", ""], *rows[1:]]),
    "a row without a size": _rows(lambda rows: [[*rows[0][:2], ""], *rows[1:]]),
    "a wrong digest": _rows(lambda rows: [[rows[0][0], rows[1][1], rows[0][2]], *rows[1:]]),
    "an md5 digest": _rows(lambda rows: [[rows[0][0], "md5=x", rows[0][2]], *rows[1:]]),
    "a row of a file that is not there": _rows(lambda rows: [["demo/gone.py", *rows[0][1:]], *rows]),
    "no WHEEL": _set(omit=["WHEEL"]),
    "WHEEL without a root": _set(wheel="Wheel-Version: 1.0\nGenerator: x\nTag: py3-none-any\n"),
    "no METADATA": _set(omit=["METADATA"]),
}
"""What only some readers take, or none."""


@st.composite
def whole_wheels(draw: st.DrawFn) -> Wanted:
    """A wheel with up to four oddities that break no rule and, at times, one that may."""
    wanted = draw(wheels())
    description = dict(wanted.description)
    if draw(st.booleans()):  # else every other wheel is of this machine's kind alone
        tags = description["tags"]
        description["filename"] = description["filename"].replace(
            WheelName.parse(f"a-1-{tags}.whl").filename[4:-4], "py3-none-any"
        )
        description["tags"] = "py3-none-any"
    stem = WheelName(wanted.name, Version(wanted.version)).stem
    for oddity in draw(st.lists(st.sampled_from(sorted(ALLOWED)), max_size=4, unique=True)):
        description = ALLOWED[oddity](description, stem)
    if not draw(st.integers(0, 3)):
        description = DOUBTFUL[draw(st.sampled_from(sorted(DOUBTFUL)))](description, stem)
    return replace(wanted, description=description)


@st.composite
def publishable(draw: st.DrawFn) -> Wanted:
    """A wheel that an index would take: with a description in Markdown and no header of its own making."""
    wanted = draw(whole_wheels())
    if not draw(st.integers(0, 3)):
        return wanted
    description = dict(wanted.description)
    if description["metadata"].startswith("Metadata-Version: 2.1"):
        extra = ["Requires-Python: >=3.8"] if draw(st.booleans()) else []
        description["metadata"] = metadata_text(wanted.name, wanted.version, extra)
    return replace(wanted, description=description)
