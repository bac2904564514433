"""Wheels that broke somebody's release, each with the rewrite that must come out right.

The exact outcome of each stands in ``test_rewrite_cases``; the judges in ``tests/acceptance`` install them.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

from tests.build_tools.command_line import Outcome, te_wheel
from tests.build_tools.wheel_factory import (
    DESCRIPTION,
    PACKAGE,
    STORED,
    Archive,
    Member,
    directory,
    make_wheel,
    symlink,
)

HELLO = Member("#!python\nprint('hello')\n", mode=0o755)
TRICKY_DESCRIPTION = f"{DESCRIPTION}\nName: demo_pkg\nVersion: 2.21.0.dev0 is here\n\nFrom me to you\n"
LONG_REQUIREMENT = "torch>=2.4; " + " or ".join(
    f'(platform_machine == "{machine}" and python_version >= "3.11" and sys_platform == "linux")'
    for machine in ("x86_64", "aarch64", "ppc64le")
)
VENDORED = "Metadata-Version: 2.1\nName: bar\nVersion: 2.0\n"


@dataclass(frozen=True, slots=True)
class Case:
    """One wheel and one command.

    Attributes:
        id: as in the table of cases; a suffix tells variations apart.
        wheel: what ``make_wheel`` makes it from.
        options: of ``te-wheel repack``.
        output: the file name that comes out.
        imports: what an installed output must import.
        scripts: what it must install as commands.
        environment: variables of the run.
        spared: judges that object to the wheel in its plain form too, and why.
    """

    id: str
    options: tuple[str, ...]
    output: str
    wheel: Mapping[str, Any] = field(default_factory=dict)
    imports: tuple[str, ...] = ("demo",)
    scripts: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    spared: Mapping[str, str] = field(default_factory=dict)

    def make(self, folder: Path) -> Path:
        return make_wheel(folder, **self.wheel)

    def rewrite(self, wheel: Path, out: Path, *more: str) -> Outcome:
        with mock.patch.dict("os.environ", self.environment):
            if "SOURCE_DATE_EPOCH" not in self.environment:
                os.environ.pop("SOURCE_DATE_EPOCH", None)
            return te_wheel("repack", wheel, "-o", out, *self.options, *more)


def native_library() -> bytes:
    """A real ELF file, so that auditwheel has something to look at: an extension module of this Python."""
    for module in ("_heapq", "_json", "_struct", "_ctypes"):
        spec = importlib.util.find_spec(module)
        if spec is not None and spec.origin is not None and spec.origin.endswith(".so"):
            return Path(spec.origin).read_bytes()
    return b""


CASES = [
    Case(
        "R1",
        ("--name", "demo-pkg-cu12"),
        "demo_pkg_cu12-2.21.0.dev0-py3-none-any.whl",
        {
            "name": "demo_pkg",
            "version": "2.21.0.dev0",
            "files": {
                "demo_pkg/__init__.py": "VALUE = 1\n",
                "demo_pkg/bin/run": Member("#!/bin/sh\necho run\n", mode=0o755),
                "demo_pkg-2.21.0.dev0.data/scripts/hello": HELLO,
            },
        },
        imports=("demo_pkg",),
        scripts=("hello",),
    ),
    Case(
        "R2",
        ("--name", "demo-pkg-cu12", "--version", "2.22.0-rc.1"),
        "demo_pkg_cu12-2.22.0rc1-py3-none-any.whl",
        {"name": "demo_pkg", "version": "2.21.0.dev0", "description": TRICKY_DESCRIPTION},
        imports=("demo_pkg",),
    ),
    Case(
        "R7",
        ("--python-tag", "py3", "--abi-tag", "none"),
        "demo-1.0-py3-none-manylinux2014_x86_64.manylinux_2_17_x86_64.whl",
        {
            "tags": "cp310-cp310-manylinux_2_17_x86_64.manylinux2014_x86_64",
            "files": {**PACKAGE, "demo/_native.so": native_library()},
            "wheel": b"Wheel-Version: 1.0\r\nGenerator: bdist_wheel (0.37.1)\r\nRoot-Is-Purelib: false\r\n"
            b"Tag: cp310-cp310-manylinux_2_17_x86_64\r\nTag: cp310-cp310-manylinux2014_x86_64\r\nTag: \r\n\r\n",
        },
    ),
    Case("R8", ("--local", "cu128"), "demo-1.0+cu128-1-py3-none-any.whl", {"build": "1"}),
    Case("R8-7019", ("--local", "cu128"), "demo-1.0+cu128-7019-py3-none-any.whl", {"build": "7019"}),
    Case("R8-drop", ("--build", ""), "demo-1.0-py3-none-any.whl", {"build": "7019"}),
    Case(
        "R9",
        ("--version", "1.1"),
        "demo-1.1-py3-none-manylinux2014_x86_64.manylinux_2_17_x86_64.whl",
        {
            "tags": "py3-none-manylinux_2_17_x86_64.manylinux2014_x86_64",
            "files": {**PACKAGE, "demo/_native.so": native_library()},
            "wheel": "Wheel-Version: 1.0\nGenerator: x\nRoot-Is-Purelib: false\n"
            "Tag: py3-none-manylinux_2_17_x86_64.manylinux2014_x86_64\n",
        },
    ),
    Case(
        "R10-Django",
        ("--local", "x1"),
        "django-3.2.5+x1-py3-none-any.whl",
        {"name": "Django", "version": "3.2.5", "files": {"django/__init__.py": "VALUE = 1\n"}},
        imports=("django",),
    ),
    Case(
        "R10-MarkupSafe",
        ("--local", "x1"),
        "markupsafe-2.1.3+x1-py3-none-any.whl",
        {
            "name": "MarkupSafe",
            "version": "2.1.3",
            "files": {"markupsafe/__init__.py": "VALUE = 1\n", "MarkupSafe-2.1.3.data/scripts/hello": HELLO},
        },
        imports=("markupsafe",),
        scripts=("hello",),
    ),
    Case(
        "R10-zope",
        ("--local", "x1"),
        "zope_interface-5.0+x1-py3-none-any.whl",
        {
            "name": "zope.interface",
            "version": "5.0",
            "files": {"zope/__init__.py": "# namespace\n", "zope/interface/__init__.py": "VALUE = 1\n"},
        },
        imports=("zope.interface",),
    ),
    Case(
        "R11",
        ("--name", "demo-cu12", "--version", "1.1"),
        "demo_cu12-1.1-py3-none-any.whl",
        {"files": {"demo/_vendor/bar-2.0.dist-info/METADATA": VENDORED, **PACKAGE}},
    ),
    Case(
        "R12",
        ("--version", "1.1"),
        "demo-1.1-py3-none-any.whl",
        {
            "files": {
                **PACKAGE,
                "demo-1.0.database/table.txt": "kept\n",
                "demo-1.0.data/scripts/hello": HELLO,
                "demo-1.0.data/purelib/demo/more.py": "MORE = 2\n",
            }
        },
        imports=("demo", "demo.more"),
        scripts=("hello",),
        spared={"check-wheel-contents": "it knows no .data/purelib in a pure wheel"},
    ),
    Case(
        "R13",
        ("--local", "a"),
        "demo-1.0+a-py3-none-any.whl",
        {
            "metadata": "Metadata-Version: 2.1\r\nName: demo\r\nVersion: 1.0\r\nLicense: MIT\r\n        \r\n"
            "        Permission is hereby granted\r\nX-Custom:  kept  as it is \r\nAuthor: Jürgen Größe\r\n"
            "Description-Content-Type: text/markdown\r\n\r\n# demo\r\n\r\nVersion: 1.0\r\n",
        },
        spared={"twine": "it refuses a header that it does not know"},
    ),
    Case(
        "R14",
        ("--add", "Requires-Dist: triton>=3"),
        "demo-1.0-py3-none-any.whl",
        {
            "headers": [
                f"Requires-Dist: {LONG_REQUIREMENT}",
                "Requires-Dist: numpy",
                "Requires-Python: >=3.8",
            ]
        },
    ),
    Case(
        "R15",
        ("--name", "demo-cu12"),
        "demo_cu12-1.0-py3-none-any.whl",
        {
            "headers": [
                "Provides-Extra: gpu",
                "Requires-Dist: numpy; extra == 'gpu'",
                "Provides-Extra: all",
                'Requires-Dist: demo[gpu]; extra == "all"',
            ]
        },
    ),
    Case("R16", ("--local", "cu1"), "demo-1!2.0+cu1-py3-none-any.whl", {"version": "1!2.0"}),
    Case(
        "R17",
        ("--name", "demo-x"),
        "demo_x-1.0+cu118-py3-none-any.whl",
        {"version": "1.0+cu118", "filename": "demo-1.0%2Bcu118-py3-none-any.whl"},
    ),
    Case(
        "R18",
        ("--name", "demo-cu12"),
        "demo_cu12-1.0-py3-none-any.whl",
        {"files": {**PACKAGE, 'demo/other,data "x".dat': "data\n"}},
    ),
    Case(
        "R19",
        ("--local", "c1"),
        "demo-1.0+c1-py3-none-any.whl",
        {
            "dist_info_files": {"RECORD.jws": "{}\n", "RECORD.p7s": b"\x30\x82"},
            "record": lambda rows: [row for row in rows if not row[0].endswith((".jws", ".p7s"))],
        },
    ),
    Case(
        "R20",
        ("--name", "demo-cu12"),
        "demo_cu12-1.0-py3-none-any.whl",
        {"files": {**PACKAGE, "demo/libx.so.1": b"a library", "demo/libx.so": symlink("libx.so.1")}},
    ),
    Case(
        "R21",
        ("--name", "demo-cu12"),
        "demo_cu12-1.0-py3-none-any.whl",
        {
            "files": {**PACKAGE, "demo/stored.bin": Member(bytes(range(256)) * 9, method=STORED)},
            "archive": Archive(
                every={"streamed": True, "comment": b"why", "extra": b"UT\x05\x00\x01\x00\x00\x00\x00"},
                comment=b"archive comment",
            ),
        },
    ),
    Case(
        "R22",
        ("--name", "demo-cu12"),
        "demo_cu12-1.0-py3-none-any.whl",
        {
            "files": {
                "demo/": directory(),
                **PACKAGE,
                "demo/empty_stored.dat": Member(b"", method=STORED),
                "demo/empty_deflated.dat": b"",
                "demo/sub/": directory(),
                "demo/stored.bin": Member(b"\0" * 1000, method=STORED),
            }
        },
    ),
    Case(
        "R23-1970",
        ("--name", "demo-cu12"),
        "demo_cu12-1.0-py3-none-any.whl",
        environment={"SOURCE_DATE_EPOCH": "0"},
    ),
    Case(
        "R23-late",
        ("--name", "demo-cu12"),
        "demo_cu12-1.0-py3-none-any.whl",
        environment={"SOURCE_DATE_EPOCH": "4102444800000"},
    ),
]
BY_ID = {case.id: case for case in CASES}
