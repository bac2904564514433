"""The agreement that this project is for.

A version typed in any spelling, built by the real ``build`` and setuptools, unpacked and packed by the real
``wheel``: every path bears the names that ``te-wheel`` derives, before a rewrite and after it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.acceptance.judges import require
from tests.build_tools.command_line import te_wheel
from tests.build_tools.version_cases import ACCEPTED
from tests.build_tools.wheel_factory import make_wheel
from tests.build_tools.wheel_reader import read_clean, read_right

PROJECT = """\
[build-system]
requires = ["setuptools"]
build-backend = "setuptools.build_meta"
[project]
name = "Demo.Pkg"
dynamic = ["version"]
[tool.setuptools]
packages = ["demo_pkg"]
[tool.setuptools.dynamic]
version = {file = "VERSION.txt"}
"""

MANY_RUNS = """\
import json, runpy, sys
for arguments in json.loads(sys.stdin.read()):
    sys.argv = arguments
    try:
        runpy.run_module(arguments[0], run_name="__main__", alter_sys=True)
    except SystemExit as done:
        assert not done.code, arguments
"""


def run_many(commands: Sequence[Sequence[str | Path]]) -> None:
    """``python -m`` each command, in one interpreter."""
    given = json.dumps([[str(word) for word in command] for command in commands])
    done = subprocess.run([sys.executable, "-c", MANY_RUNS], input=given, text=True, capture_output=True)
    assert done.returncode == 0, done.stderr


@dataclass(frozen=True, slots=True)
class Trip:
    """One wheel, the folder that ``wheel unpack`` makes of it and the file that ``wheel pack`` makes of that."""

    wheel: Path

    @property
    def folder(self) -> Path:
        return self.wheel.parent / "unpacked"

    @property
    def unpacked(self) -> str:
        (path,) = self.folder.iterdir()
        return path.name

    @property
    def packed(self) -> Path:
        (path,) = (self.wheel.parent / "packed").glob("*.whl")
        return path


def travel(wheels: Sequence[Path]) -> list[Trip]:
    trips = [Trip(wheel) for wheel in wheels]
    for trip in trips:
        trip.folder.mkdir()
        (trip.wheel.parent / "packed").mkdir()
    run_many([["wheel", "unpack", "--dest", trip.folder, trip.wheel] for trip in trips])
    run_many(
        [["wheel", "pack", "--dest-dir", trip.wheel.parent / "packed", trip.folder / trip.unpacked] for trip in trips]
    )
    return trips


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A wheel for each accepted spelling, by the real build backend."""
    for distribution in ("build", "setuptools"):
        require(distribution)
    import build
    import pyproject_hooks

    sources = {raw: tmp_path_factory.mktemp(f"spelling{number}") for number, (raw, _) in enumerate(ACCEPTED)}

    def build_one(raw: str) -> Path:
        source = sources[raw]
        (source / "demo_pkg").mkdir()
        (source / "demo_pkg" / "__init__.py").write_text("VALUE = 1\n")
        # setuptools takes no blanks around a version, te-wheel does.
        (source / "VERSION.txt").write_text(f"{raw.strip()}\n")
        (source / "pyproject.toml").write_text(PROJECT)
        builder = build.ProjectBuilder(source, runner=pyproject_hooks.quiet_subprocess_runner)
        return Path(builder.build("wheel", source / "dist"))

    with ThreadPoolExecutor(os.cpu_count()) as workers:
        return dict(zip(sources, workers.map(build_one, sources), strict=True))


@pytest.fixture(scope="module")
def before(built: dict[str, Path]) -> dict[str, Trip]:
    require("wheel")
    return dict(zip(built, travel(list(built.values())), strict=True))


@pytest.fixture(scope="module")
def after(built: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Trip]:
    """The wheels after a rename and a build tag."""
    require("wheel")
    return rewrite_all(built, tmp_path_factory, "--name", "Demo.Pkg-CU12", "--build", "7")


@pytest.fixture(scope="module")
def made_so(built: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Trip]:
    """Wheels of another version that a rewrite gave each spelling."""
    require("wheel")
    other = make_wheel(tmp_path_factory.mktemp("other"), name="demo_pkg", version="0.0.1")
    trips = {}
    for raw in built:
        out = tmp_path_factory.mktemp("made")
        trips[raw] = rewritten(other, out, "--version", raw)
    return dict(zip(trips, travel(list(trips.values())), strict=True))


def rewrite_all(built: dict[str, Path], factory: pytest.TempPathFactory, *options: str) -> dict[str, Trip]:
    outputs = [rewritten(wheel, factory.mktemp("after"), *options) for wheel in built.values()]
    return dict(zip(built, travel(outputs), strict=True))


def rewritten(wheel: Path, out: Path, *options: str) -> Path:
    outcome = te_wheel("repack", wheel, "-o", out, *options)
    assert outcome.code == 0, outcome.err
    return Path(outcome.out.removesuffix("\n"))


def assert_agreement(raw: str, canonical: str, name: str, trip: Trip, file_name: str) -> None:
    stem = te_wheel("version", raw, "--stem", name).out.removesuffix("\n")
    (shown,) = te_wheel("show", trip.wheel, "--json").json
    assert (shown["version"], shown["agrees"]) == (canonical, True)
    assert trip.wheel.name == trip.packed.name == file_name
    assert Path(shown["path"]).name == file_name
    assert file_name.startswith(f"{stem}-")
    assert trip.unpacked == stem
    for wheel in (trip.wheel, trip.packed):
        (repacked,) = te_wheel("show", wheel, "--json").json
        assert {**repacked, **dict.fromkeys(("path", "size", "sha256"))} == {
            **shown,
            **dict.fromkeys(("path", "size", "sha256")),
        }
        tops = {member.partition("/")[0] for member in read_clean(wheel)}
        assert tops == {"demo_pkg", f"{stem}.dist-info"}
    assert te_wheel("check", "--hashes", trip.wheel, trip.packed).code == 0


@pytest.mark.parametrize(("raw", "canonical"), ACCEPTED)
def test_what_build_and_wheel_name_is_what_te_wheel_names(raw: str, canonical: str, before: dict[str, Trip]) -> None:
    assert_agreement(raw, canonical, "Demo.Pkg", before[raw], f"demo_pkg-{canonical}-py3-none-any.whl")


@pytest.mark.parametrize(("raw", "canonical"), ACCEPTED)
def test_after_a_rename_they_agree_still(raw: str, canonical: str, after: dict[str, Trip]) -> None:
    assert_agreement(raw, canonical, "Demo.Pkg-CU12", after[raw], f"demo_pkg_cu12-{canonical}-7-py3-none-any.whl")
    read_right(after[raw].wheel)


@pytest.mark.parametrize(("raw", "canonical"), ACCEPTED)
def test_a_version_that_a_rewrite_sets_is_named_as_build_names_it(
    raw: str, canonical: str, made_so: dict[str, Trip], built: dict[str, Path]
) -> None:
    assert made_so[raw].wheel.name == built[raw].name
    assert_agreement(raw, canonical, "demo_pkg", made_so[raw], f"demo_pkg-{canonical}-py3-none-any.whl")


@pytest.mark.parametrize(("raw", "canonical"), ACCEPTED)
def test_te_wheel_unpacks_and_packs_under_the_same_names(
    raw: str, canonical: str, after: dict[str, Trip], tmp_path: Path
) -> None:
    trip = after[raw]
    folder = Path(te_wheel("unpack", trip.wheel, "-d", tmp_path / "tree").out.removesuffix("\n"))
    assert folder.name == trip.unpacked
    packed = Path(te_wheel("pack", folder, "-d", tmp_path / "packed").out.removesuffix("\n"))
    assert packed.name == trip.packed.name
    theirs = Path(te_wheel("pack", trip.folder / trip.unpacked, "-d", tmp_path / "theirs").out.removesuffix("\n"))
    assert theirs.read_bytes() == packed.read_bytes()
