"""What must hold for any bytes at all: the targets of ``scripts/fuzz.py``, and where each starts from.

A target takes bytes and raises where something is wrong: any exception but the tool's own kinds, and any two readers
that disagree on what the tool takes for sound.
"""

from __future__ import annotations

import csv
import io
import tempfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from email import message_from_string
from pathlib import Path

from build_tools.errors import EditError, ReleaseError, WheelError
from build_tools.plan import read_plan
from build_tools.wheels import check_wheel, repack
from build_tools.wheels.archive import Archive
from build_tools.wheels.edit import WheelEdit
from build_tools.wheels.headers import Headers
from build_tools.wheels.record import Record
from build_tools.wheels.rules import Severity
from tests.build_tools.broken_wheels import BROKEN
from tests.build_tools.damage import FORMS, small_wheel
from tests.build_tools.rewrite_cases import CASES
from tests.build_tools.wheel_factory import make_wheel, metadata_text, record_text, wheel_text

WHEEL = "demo-1.0-py3-none-any.whl"
_LARGEST = 200_000
_scratch: list[tempfile.TemporaryDirectory[str]] = []


def folder() -> Path:
    """A folder of this process."""
    if not _scratch:
        _scratch.append(tempfile.TemporaryDirectory())
    return Path(_scratch[0].name)


def archive(data: bytes) -> None:
    """Reading never fails; what has no error is read by zipfile too, to the same bytes, and so is its rewrite."""
    wheel = folder() / WHEEL
    wheel.unlink(missing_ok=True)
    wheel.write_bytes(data)
    findings = check_wheel(wheel, hashes=True)
    if any(finding.severity is Severity.ERROR for finding in findings):
        return
    with Archive.open(wheel) as opened, zipfile.ZipFile(wheel) as other:
        assert [member.name for member in opened.members] == other.namelist()
        for member, info in zip(opened.members, other.infolist(), strict=True):
            assert opened.read(member, _LARGEST) == other.read(info), member.name
    output = repack(wheel, folder() / "out", WheelEdit(name="other"), force=True).path
    assert not [str(finding) for finding in check_wheel(output, hashes=True) if finding.severity is Severity.ERROR]
    assert zipfile.ZipFile(output).testzip() is None


def headers(data: bytes) -> None:
    """Splicing changes what it shall and no other byte, and the parser of record agrees with every value."""
    try:
        parsed = Headers.parse(data)
    except WheelError:
        return
    assert parsed.to_bytes() == data
    theirs = message_from_string(data.decode())
    assert [field.name for field in parsed.fields] == theirs.keys()
    for name in {field.name for field in parsed.fields}:
        assert parsed.get_all(name) == theirs.get_all(name), name
    edited = parsed.with_values("Version", ["9.9"])
    again = Headers.parse(edited.to_bytes())
    assert again.get_all("version") == ["9.9"]
    rest = [field.raw.rstrip(b"\r\n") for field in parsed.fields if not field.is_named("Version")]
    assert [field.raw.rstrip(b"\r\n") for field in again.fields if not field.is_named("Version")] == rest
    assert again.body.endswith(parsed.body)
    first = data.split(b"\n", 1)[0].decode(errors="replace")
    try:
        added = parsed.with_added("Author", first)
    except EditError:
        return
    values = parsed.get_all("Author")
    assert Headers.parse(added.to_bytes()).get_all("Author")[: len(values)] == values


def record(data: bytes) -> None:
    """Rows are those of the csv module, written back as they were."""
    parsed, findings = Record.parse(data, "demo-1.0.dist-info/RECORD")
    if any(finding.severity is Severity.ERROR for finding in findings):
        return
    rows = [row for row in csv.reader(io.StringIO(data.decode(), newline="")) if row]
    assert [(row.path, row.digest) for row in parsed] == [(row[0], row[1]) for row in rows]
    again, _ = Record.parse(parsed.to_bytes(), "demo-1.0.dist-info/RECORD")
    assert [row[:3] for row in again] == [row[:3] for row in parsed]
    parsed.compare({row.path: row.size or 0 for row in parsed}, [], "demo-1.0.dist-info/RECORD", frozenset())


def plan(data: bytes) -> None:
    """A plan is read or refused in plain words."""
    project = folder() / "project"
    project.mkdir(exist_ok=True)
    (project / "VERSION.txt").write_text("1.0\n")
    (project / "pyproject.toml").unlink(missing_ok=True)
    (project / "pyproject.toml").write_bytes(data)
    try:
        read = read_plan(project)
    except ReleaseError:
        return
    assert read.variants


TARGETS: dict[str, Callable[[bytes], None]] = {"archive": archive, "headers": headers, "record": record, "plan": plan}

_PLAN = """\
[project]
name = "demo"
[tool.te-wheel]
version-file = "VERSION.txt"
[tool.te-wheel.smoke]
requires = ["torch==2.13.0"]
import = ["demo.sub"]
run = "print(1)"
[tool.te-wheel.variants.cu12]
name = "demo_cu12"
version = "1.1"
local = "cu128"
build = "1"
python-tag = "py3"
abi-tag = "none"
platform-tag = "manylinux_2_28_x86_64"
set = ["Summary: x"]
add = ["Requires-Dist: numpy>=1; extra == 'a'"]
remove = ["Author"]
"""


def corpus(target: str) -> Iterator[bytes]:
    """Where a target starts from: what the factories make, sound and broken."""
    with tempfile.TemporaryDirectory() as made:
        wheels = [small_wheel(Path(made) / f"form{number}", form) for number, form in enumerate(FORMS)]
        wheels += [case.make(Path(made) / case.id) for case in CASES]
        wheels += [broken.make(Path(made) / f"broken{number}") for number, broken in enumerate(BROKEN)]
        wheels.append(make_wheel(Path(made) / "plain"))
        contents = [wheel.read_bytes() for wheel in wheels]
        if target == "archive":
            # Under one file name, which is not theirs all: what only that disagrees in is no less odd.
            yield from (data for data in contents if len(data) < 20_000)
        elif target in ("headers", "record"):
            names = ("/METADATA", "/WHEEL") if target == "headers" else ("/RECORD",)
            yield from _members(contents, names)
            yield (metadata_text() + wheel_text()).encode() if target == "headers" else record_text([]).encode()
        else:
            yield from (_PLAN.encode(), (Path(__file__).parents[2] / "pyproject.toml").read_bytes(), b"")
            yield from (line.encode() for line in _PLAN.splitlines())


def _members(wheels: list[bytes], names: tuple[str, ...]) -> Iterator[bytes]:
    for data in wheels:
        try:
            with zipfile.ZipFile(io.BytesIO(data)) as opened:
                yield from (opened.read(name) for name in opened.namelist() if name.endswith(names))
        except (zipfile.BadZipFile, NotImplementedError, RuntimeError, zlib.error, UnicodeDecodeError):
            continue  # broken on purpose
