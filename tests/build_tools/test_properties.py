"""Properties of every rewrite, on wheels that nobody thought of."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from packaging.version import Version

from build_tools.version import normalize_version
from build_tools.wheels import WheelEdit, WheelName, check_wheel, diff_wheels, repack
from tests.build_tools.version_cases import spellings, versions
from tests.build_tools.wheel_factory import DEFLATED, PACKAGE, STORED, Archive, Member, directory, make_wheel, symlink
from tests.build_tools.wheel_reader import Read, read_any, read_right

NAMES = st.sampled_from(["demo", "Demo.Pkg", "a", "demo_pkg", "X-y.Z", "demo-cu12"])
PARTS = st.text(st.sampled_from("ab,\" '#é\u4e2d%+!=-_"), min_size=1, max_size=6).map(lambda part: f"{part}x")
DATES = st.tuples(
    st.integers(1980, 2107), st.integers(1, 12), st.integers(1, 28), st.integers(0, 23), st.integers(0, 59), st.just(58)
)
MEMBERS = st.builds(
    Member,
    data=st.binary(max_size=300),
    mode=st.sampled_from([0o644, 0o755, 0o600, 0o4755]),
    method=st.sampled_from([STORED, DEFLATED]),
    date=DATES,
)
LINES = ["Author: Jürgen", "Requires-Dist: numpy>=1; extra == 'a'", "Requires-Dist: other[b]; extra == 'a'", "X-Y: z"]


@dataclass(frozen=True, slots=True)
class Wanted:
    """What one wheel is made of."""

    name: str
    version: str
    description: dict[str, Any]

    def make(self, folder: Path) -> Path:
        return make_wheel(folder, **self.description)


@st.composite
def wheels(draw: st.DrawFn, *, clean: bool = False) -> Wanted:
    """Right wheels; ``clean`` ones are in the very form that the tool writes."""
    name, version = draw(NAMES), str(draw(versions()))
    normal = WheelName(name, Version(version))
    paths = draw(
        st.lists(st.lists(PARTS, min_size=1, max_size=3), max_size=6, unique_by=lambda parts: parts[0].lower())
    )
    files: dict[str, Any] = {**PACKAGE, **{"/".join(parts): draw(MEMBERS) for parts in paths}}
    if draw(st.booleans()):
        files[f"{normal.data}/scripts/run"] = Member("#!python\n", mode=0o755)
    if draw(st.booleans()):
        files["demo/link"] = symlink("__init__.py")
    if draw(st.booleans()):
        files["demo/folder/"] = directory()
    end = draw(st.sampled_from(["\n", "\r\n"]))
    lines = [
        "Metadata-Version: 2.1",
        f"Name: {name}",
        f"Version: {version}",
        *draw(st.lists(st.sampled_from(LINES), unique=True)),
    ]
    body = draw(st.sampled_from(["", "\n", "\nName: x\nVersion: 2\n", "\r\n\r\nFrom me\r\n"]))
    archive = Archive()
    if not clean and draw(st.booleans()):
        archive = Archive(every={"streamed": True, "comment": b"c", "extra": b"\xfe\xca\x01\x00x"}, comment=b"x")
    description = {
        "name": name,
        "version": version,
        "build": draw(st.sampled_from(["", "1", "7_x"])),
        "tags": draw(st.sampled_from(["py3-none-any", "cp311-cp311-manylinux2014_x86_64.manylinux_2_17_x86_64"])),
        "files": files,
        "metadata": "".join(f"{line}{end}" for line in lines) + body,
        "dist_info": normal.dist_info,
        "archive": archive,
    }
    name_of_file = WheelName.parse(f"{normal.stem}-{description['tags']}.whl").filename
    if description["build"]:
        name_of_file = name_of_file.replace(normal.stem, f"{normal.stem}-{description['build']}", 1)
    return Wanted(name, version, {**description, "filename": name_of_file})


@st.composite
def edits(draw: st.DrawFn) -> WheelEdit:
    chosen: dict[str, Any] = {}
    if draw(st.booleans()):
        chosen["name"] = draw(NAMES)
    if draw(st.booleans()):
        chosen["version"] = draw(versions()).public
    if draw(st.booleans()):
        chosen["local"] = draw(st.sampled_from(["", "cu128", "A_1"]))
    if draw(st.booleans()):
        chosen["build"] = draw(st.sampled_from(["", "9", "10_a"]))
    if draw(st.booleans()):
        chosen["platform_tag"] = draw(st.sampled_from(["any", "linux_x86_64.any", "manylinux_2_28_x86_64"]))
    if draw(st.booleans()):
        chosen["add"] = tuple(
            draw(st.lists(st.sampled_from(["Requires-Dist: triton>=3", "Classifier: C"]), unique=True))
        )
    if draw(st.booleans()):
        chosen["set"] = tuple(draw(st.lists(st.sampled_from(["Summary: new", "Author: É"]), unique=True)))
    if draw(st.booleans()):
        chosen["remove"] = ("Author-email",)
    return WheelEdit(**chosen)


def payload(members: list[Read]) -> list[tuple[object, ...]]:
    """Everything but the dist-info, without the name of the data folder."""
    return [
        (read.name.partition(".data/")[2] if ".data/" in read.name else read.name, *_facts(read))
        for read in members
        if not read.name.partition("/")[0].endswith(".dist-info")
    ]


def _facts(read: Read) -> tuple[object, ...]:
    return read.method, read.crc, read.size, read.packed, read.mode, read.date


@settings(max_examples=60)
@given(wheels(), edits())
def test_the_output_is_right_and_the_payload_is_the_same_bytes(wanted: Wanted, edit: WheelEdit) -> None:
    with tempfile.TemporaryDirectory() as folder:
        wheel = wanted.make(Path(folder) / "in")
        before = wheel.read_bytes()
        output = repack(wheel, Path(folder) / "out", edit).path
        assert payload(list(read_right(output).values())) == payload(read_any(wheel))
        assert wheel.read_bytes() == before
        assert {finding.code for finding in check_wheel(output, hashes=True)} <= {"zip-symlink", "zip-reserved-name"}


@settings(max_examples=60)
@given(wheels(), edits())
def test_the_changes_that_are_told_are_those_that_a_comparison_finds(wanted: Wanted, edit: WheelEdit) -> None:
    with tempfile.TemporaryDirectory() as folder:
        wheel = wanted.make(Path(folder) / "in")
        planned = repack(wheel, Path(folder) / "out", edit, dry_run=True).changes
        done = repack(wheel, Path(folder) / "out", edit)
        assert diff_wheels(wheel, done.path) == done.changes == planned


@settings(max_examples=60)
@given(wheels(), edits())
def test_rewriting_twice_is_rewriting_once(wanted: Wanted, edit: WheelEdit) -> None:
    with tempfile.TemporaryDirectory() as folder:
        once = repack(wanted.make(Path(folder) / "in"), Path(folder) / "once", edit)
        twice = repack(once.path, Path(folder) / "twice", edit)
        assert (twice.path.name, twice.path.read_bytes()) == (once.path.name, once.path.read_bytes())
        assert twice.changes == ()


@settings(max_examples=60)
@given(wheels(clean=True), NAMES, versions(), st.sampled_from(["", "cu128"]))
def test_a_rename_there_and_back_gives_the_first_bytes_again(
    wanted: Wanted, name: str, version: Version, local: str
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        wheel = wanted.make(Path(folder) / "in")
        there = repack(wheel, Path(folder) / "there", WheelEdit(name=name, version=version.public, local=local))
        back = repack(there.path, Path(folder) / "back", WheelEdit(name=wanted.name, version=wanted.version))
        assert (back.path.name, back.path.read_bytes()) == (wheel.name, wheel.read_bytes())


@settings(max_examples=40)
@given(spellings())
def test_any_spelling_of_a_version_gives_one_set_of_paths(pair: tuple[str, Version]) -> None:
    raw, version = pair
    with tempfile.TemporaryDirectory() as folder:
        wheel = make_wheel(Path(folder) / "in", version="3")
        outputs = [repack(wheel, Path(folder) / str(i), WheelEdit(version=text)).path
                   for i, text in enumerate((raw, str(version)))]  # fmt: skip
        assert outputs[0].name == outputs[1].name == f"demo-{normalize_version(raw)}-py3-none-any.whl"
        assert outputs[0].read_bytes() == outputs[1].read_bytes()
        read_right(outputs[0])
