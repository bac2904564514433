from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from packaging.requirements import Requirement
from packaging.version import Version

from build_tools.errors import FileError
from build_tools.pins import Pin, read_pins
from build_tools.wheels.name import normalize_name
from tests.build_tools.command_line import te_wheel
from tests.build_tools.sdist_factory import make_sdist
from tests.build_tools.wheel_factory import make_wheel

NUMBERS = st.integers(0, 10**9)


@given(NUMBERS, NUMBERS, st.sampled_from(["", ".dev3", "rc1", ".post2"]), st.sampled_from(["", "+cu128", "+g0a.1"]))
def test_a_pin_admits_its_version_and_no_neighbour(epoch: int, major: int, phase: str, local: str) -> None:
    version = Version(f"{epoch}!{major}.4{phase}{local}")
    specifier = Requirement(str(Pin(normalize_name("Demo_Pkg"), version))).specifier
    assert specifier.contains(version, prereleases=True)
    for other in (f"{epoch}!{major}.5{phase}{local}", f"{epoch + 1}!{major}.4{phase}", f"{epoch}!{major}.4.1{phase}"):
        assert not specifier.contains(other, prereleases=True)


def test_each_version_of_each_project_is_one_line(tmp_path: Path) -> None:
    make_wheel(tmp_path, name="te_pkg_cu12", version="2.21.0.dev0")
    make_wheel(tmp_path / "deep", name="te_pkg_cu12", version="2.21.0.dev0", tags="cp311-cp311-win32")
    make_wheel(tmp_path, name="demo", version="1.10")
    make_wheel(tmp_path, name="demo", version="1.9+cpu")
    make_sdist(tmp_path)
    done = te_wheel("pins", tmp_path)
    assert (done.code, done.lines) == (
        0,
        ["demo==1.0", "demo==1.9+cpu", "demo==1.10", "te-pkg-cu12==2.21.0.dev0"],
    )
    assert done.err == "warning: demo has 3 versions (1.0, 1.9+cpu, 1.10), and no environment holds two\n"
    assert te_wheel("pins", tmp_path, "--json").json["pins"][-1] == {
        "name": "te-pkg-cu12",
        "version": "2.21.0.dev0",
        "requirement": "te-pkg-cu12==2.21.0.dev0",
    }


def test_a_broken_file_is_named_and_the_others_are_pinned(tmp_path: Path) -> None:
    make_wheel(tmp_path)
    (tmp_path / "other-1.0-py3-none-any.whl").write_text("text")
    done = te_wheel("pins", tmp_path)
    assert (done.code, done.lines) == (2, ["demo==1.0"])
    assert [fault.partition(":")[0] for fault in done.errors] == ["other-1.0-py3-none-any.whl"]


def test_a_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(FileError, match="nowhere' is not there, expected a folder of wheels"):
        read_pins(tmp_path / "nowhere")
