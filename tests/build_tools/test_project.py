from __future__ import annotations

import os
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from packaging.version import Version

from build_tools import project
from build_tools.errors import BuildError, EditError, FileError, PlanError, ToolError, VersionError
from build_tools.project import Built, build_project
from build_tools.wheels.check import check_wheel
from tests.build_tools.tiny_project import CHECKOUT, copy_checkout, make_project, need_registry


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir()) if folder.exists() else []


@pytest.fixture(autouse=True)
def temporary_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """All temporary files of a build lie here, and none is left."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    yield folder
    assert names(folder) == []


class TestBuild:
    def test_every_path_bears_the_normalised_version(self, tmp_path: Path) -> None:
        source = make_project(tmp_path / "source", version_text="\ufeff1.0-DEV0\r\n", data="demo-1.0.dev0.data")
        built = build_project(source, tmp_path / "out")
        assert built == Built(
            tmp_path / "out" / "demo-1.0.dev0-py3-none-any.whl",
            tmp_path / "out" / "demo-1.0.dev0.tar.gz",
            Version("1.0.dev0"),
        )
        with zipfile.ZipFile(built.wheel) as wheel:
            tops = {name.split("/")[0] for name in wheel.namelist()}
        assert tops == {"demo", "demo-1.0.dev0.data", "demo-1.0.dev0.dist-info"}
        with tarfile.open(built.sdist) as sdist:
            assert {name.split("/")[0] for name in sdist.getnames()} == {"demo-1.0.dev0"}

    def test_the_same_sources_give_the_same_bytes_and_nothing_else_is_left(self, tmp_path: Path) -> None:
        source = make_project(tmp_path / "source")
        first = build_project(source, tmp_path / "one")
        os.utime(source / "demo" / "__init__.py", (2_000_000_000, 2_000_000_000))
        second = build_project(source, tmp_path / "two")
        assert first.wheel.read_bytes() == second.wheel.read_bytes()
        assert first.sdist.read_bytes() == second.sdist.read_bytes()
        assert names(tmp_path / "one") == [first.wheel.name, first.sdist.name]

    def test_a_local_label_goes_to_the_wheel_alone_and_the_report_says_so(self, tmp_path: Path) -> None:
        said: list[str] = []
        built = build_project(
            make_project(tmp_path / "source"), tmp_path / "out", local="CU-12_8", verbose=True, report=said.append
        )
        assert names(tmp_path / "out") == ["demo-1.0.dev0+cu.12.8-py3-none-any.whl", "demo-1.0.dev0.tar.gz"]
        assert built.version == Version("1.0.dev0+cu.12.8")
        assert said[-1].endswith("the sdist keeps the version of the sources: demo-1.0.dev0.tar.gz")
        assert len(said) > 1, "verbose shows the output of the build"
        assert check_wheel(built.wheel, hashes=True) == []

    def test_what_an_earlier_build_left_is_replaced(self, tmp_path: Path) -> None:
        (tmp_path / "out").mkdir()
        stale = tmp_path / "out" / "demo-1.0.dev0-py3-none-any.whl"
        stale.write_bytes(b"stale")
        build_project(make_project(tmp_path / "source"), tmp_path / "out")
        assert zipfile.is_zipfile(stale)

    def test_the_plan_may_name_another_version_file(self, tmp_path: Path) -> None:
        source = make_project(
            tmp_path / "source", version_text="9.9", built="1.0", plan='[tool.te-wheel]\nversion-file = "v"'
        )
        (source / "v").write_text("1.0")
        assert build_project(source, tmp_path / "out").version == Version("1.0")

    def test_without_a_version_file_the_parts_must_agree_with_one_another(self, tmp_path: Path) -> None:
        source = make_project(tmp_path / "source", version_text=None, pkg_info_version="1.1")
        with pytest.raises(BuildError) as caught:
            build_project(source, tmp_path / "out")
        (fault,) = caught.value.faults
        assert fault.startswith("PKG-INFO in demo-1.0.dev0.tar.gz: version '1.1' disagrees with '1.0.dev0' of demo-1.0")

    def test_a_folder_build_in_the_current_directory_is_not_the_package(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        source = make_project(tmp_path / "source")
        (source / "build").mkdir()
        (source / "build" / "__main__.py").write_text("raise SystemExit('the wrong one')")
        monkeypatch.chdir(source)
        built = build_project(out_dir="out")
        assert built.wheel == Path("out", "demo-1.0.dev0-py3-none-any.whl"), "paths are told as they were given"
        assert built.wheel.is_file()


SEES_MODES = """
import os, time
_build = build_wheel

def build_wheel(folder, config_settings=None, metadata_directory=None):
    name = _build(folder)
    Path("made").mkdir()
    Path("made", "generated.txt").write_text("")
    with zipfile.ZipFile(Path(folder, name), "a") as archive:
        for path in ("demo/__init__.py", "demo/run.py", "made/generated.txt"):
            info = zipfile.ZipInfo("demo/modes/" + path)
            info.external_attr = os.stat(path).st_mode << 16
            archive.writestr(info, oct(os.stat(path).st_mode) + str(os.stat(path).st_mtime if path[0] == "d" else ""))
    return name
"""
"""A backend that, as setuptools does, lets modes and times of the sources into the wheel."""


class TestReproducible:
    def test_umask_modes_and_times_of_the_clone_leave_no_trace(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        # Files that RECORD does not list: what the wheel says of itself is not asked here.
        monkeypatch.setattr(project, "_check_agreement", lambda *_: None)
        built = []
        for umask, when in ((0o022, 1e9), (0o027, 2e9), (0o077, 1.5e9)):
            before = os.umask(umask)
            try:
                source = make_project(tmp_path / f"{umask:o}")
                (source / "demo" / "run.py").write_text("")
                (source / "demo" / "run.py").chmod(0o777 & ~umask)
                os.utime(source / "demo" / "__init__.py", (when, when))
                with (source / "backend.py").open("a") as backend:
                    backend.write(SEES_MODES)
                built.append(build_project(source, tmp_path / f"out{umask:o}"))
            finally:
                os.umask(before)
        assert len({one.wheel.read_bytes() for one in built}) == 1
        assert len({one.sdist.read_bytes() for one in built}) == 1

    def test_the_sdist_that_is_given_out_builds_the_wheel_again(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(project, "_check_agreement", lambda *_: None)
        source = make_project(tmp_path / "source")
        (source / "demo" / "run.py").write_text("")
        (source / "demo" / "run.py").chmod(0o750)
        with (source / "backend.py").open("a") as backend:
            backend.write(SEES_MODES)
        built = build_project(source, tmp_path / "out")
        with tarfile.open(built.sdist) as archive:
            archive.extractall(tmp_path / "again", filter="data")
        again = build_project(tmp_path / "again" / "demo-1.0.dev0", tmp_path / "second")
        assert again.wheel.read_bytes() == built.wheel.read_bytes()


class TestDisagreement:
    """A wheel or sdist that bears another version than the version file is not given out."""

    def test_every_path_and_header_is_named_with_the_version(self, tmp_path: Path) -> None:
        source = make_project(tmp_path / "source", version_text="2.21.0-dev0")
        with pytest.raises(BuildError) as caught:
            build_project(source, tmp_path / "out")
        wheel, sdist = "demo-1.0.dev0-py3-none-any.whl", "demo-1.0.dev0.tar.gz"
        assert caught.value.faults == tuple(
            f"{where}: version '1.0.dev0' disagrees with '2.21.0.dev0' of VERSION.txt"
            for where in (
                wheel,
                f"demo-1.0.dev0.dist-info/ in {wheel}",
                f"METADATA in {wheel}",
                sdist,
                f"demo-1.0.dev0/ in {sdist}",
                f"PKG-INFO in {sdist}",
            )
        )
        assert names(tmp_path / "out") == []

    @pytest.mark.parametrize(
        ("lies", "fault"),
        [
            (
                {"dist_info": "demo-1.0-dev0.dist-info"},
                "demo-1.0-dev0.dist-info/ in demo-1.0.dev0-py3-none-any.whl: invalid version 'dev0'",
            ),
            (
                {"dist_info": "other-1.0.dev0.dist-info"},
                "other-1.0.dev0.dist-info/ in demo-1.0.dev0-py3-none-any.whl: name 'other' disagrees with 'demo'",
            ),
            (
                {"metadata_version": "1.0.dev0.0"},
                "METADATA in demo-1.0.dev0-py3-none-any.whl: invalid version '1.0.dev0.0'",
            ),
            (
                {"data": "demo-1.0.data"},
                "demo-1.0.data/ in demo-1.0.dev0-py3-none-any.whl: version '1.0' disagrees with '1.0.dev0'",
            ),
        ],
        ids=["raw version in .dist-info", "other name in .dist-info", "METADATA", ".data"],
    )
    def test_one_part_is_enough(self, tmp_path: Path, lies: dict[str, str], fault: str) -> None:
        source = make_project(tmp_path / "source", **lies)
        with pytest.raises(BuildError) as caught:
            build_project(source, tmp_path / "out")
        assert [text for text in caught.value.faults if text.startswith(fault)]
        assert names(tmp_path / "out") == []

    def test_equal_versions_with_other_paths_disagree(self, tmp_path: Path) -> None:
        source = make_project(tmp_path / "source", version_text="1.0", built="1.0.0")
        with pytest.raises(BuildError, match=r"version '1\.0\.0' disagrees with '1\.0' of VERSION"):
            build_project(source, tmp_path / "out")

    def test_two_wheels_are_one_too_many(self, tmp_path: Path) -> None:
        source = make_project(tmp_path / "source", extra_wheel=["demo-2.0-py3-none-any.whl"])
        with pytest.raises(BuildError, match=r"expected one wheel \(\*\.whl\)"):
            build_project(source, tmp_path / "out")


class TestFailure:
    def test_a_failing_backend_gives_its_last_line_and_reports_the_rest(self, tmp_path: Path) -> None:
        said: list[str] = []
        source = make_project(tmp_path / "source", fail="no compiler")
        with pytest.raises(BuildError) as caught:
            build_project(source, tmp_path / "out", report=said.append)
        assert caught.value.faults == (f"building the sdist of '{source}' failed with exit code 1: no compiler",)
        assert caught.value.hint is None
        assert "line 1" in said
        assert names(tmp_path / "out") == []

    @pytest.mark.parametrize("text", ["\ufeff1.0\n", "  1.0\n", "1.0 \n"])
    def test_a_version_file_that_backends_refuse_is_the_hint(self, tmp_path: Path, text: str) -> None:
        source = make_project(tmp_path / "source", version_text=text, fail="invalid version")
        with pytest.raises(BuildError) as caught:
            build_project(source, tmp_path / "out")
        assert caught.value.hint == (
            "VERSION.txt holds a BOM or blanks around the version, which some backends refuse; "
            "write it as '1.0' and nothing else"
        )

    def test_a_missing_build_package_is_named_with_what_installs_it(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
        with pytest.raises(ToolError, match="the package 'build' is not installed") as caught:
            build_project(make_project(tmp_path / "source"), tmp_path / "out")
        assert caught.value.hint == f"{sys.executable} -m pip install build"

    def test_an_interrupt_ends_the_build_and_leaves_nothing(self, tmp_path: Path) -> None:
        def interrupt(line: str) -> None:
            raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            build_project(make_project(tmp_path / "source"), tmp_path / "out", verbose=True, report=interrupt)
        assert names(tmp_path / "out") == []

    def test_every_fault_of_the_folders_is_named(self, tmp_path: Path) -> None:
        (tmp_path / "empty").mkdir()
        (tmp_path / "file").write_text("")
        with pytest.raises(FileError) as caught:
            build_project(tmp_path / "empty", tmp_path / "file")
        assert [fault.partition("' ")[2] for fault in caught.value.faults] == [
            "holds neither pyproject.toml nor setup.py, so there is nothing to build",
            "is no folder, expected the output folder",
        ]
        with pytest.raises(FileError, match="is not there"):
            build_project(tmp_path / "nowhere", tmp_path / "out")
        with pytest.raises(FileError, match="is no folder, expected the folder of a project"):
            build_project(tmp_path / "file", tmp_path / "out")

    def test_nothing_is_built_before_the_inputs_are_valid(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(project, "run_child", lambda *_, **__: pytest.fail("the build was started"))
        source = make_project(tmp_path / "source", version_text="1.0\n# soon 1.1\n")
        with pytest.raises(VersionError, match="holds 2 lines"):
            build_project(source, tmp_path / "out")
        (source / "VERSION.txt").write_text("1.0")
        with pytest.raises(EditError, match="invalid local version label 'cu 128'"):
            build_project(source, tmp_path / "out", local="cu 128")
        monkeypatch.setenv("SOURCE_DATE_EPOCH", "today")
        with pytest.raises(EditError, match="SOURCE_DATE_EPOCH is 'today'"):
            build_project(source, tmp_path / "out")
        (source / "pyproject.toml").write_text("[tool")
        with pytest.raises(PlanError, match="no valid TOML"):
            build_project(source, tmp_path / "out")


@pytest.mark.parametrize(("given", "got"), [("0", 315532800), ("4102444800000", 4354819198), (None, 315532800)])
def test_times_are_clamped_to_what_a_wheel_can_hold(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: str | None, got: int
) -> None:
    if given is not None:
        monkeypatch.setenv("SOURCE_DATE_EPOCH", given)
    built = build_project(make_project(tmp_path / "source"), tmp_path / "out")
    with zipfile.ZipFile(built.wheel) as wheel:
        assert f"SOURCE_DATE_EPOCH {got}".encode() in wheel.read("demo-1.0.dev0.dist-info/METADATA")
    with tarfile.open(built.sdist) as sdist:
        assert {member.mtime for member in sdist} == {min(got, 2**32 - 1)}


# -- this repository's own two distributions ----------------------------------------------------


@pytest.fixture(scope="session")
def te_pkg(tmp_path_factory: pytest.TempPathFactory) -> Built:
    need_registry()
    folder = tmp_path_factory.mktemp("te_pkg")
    return build_project(copy_checkout(folder / "source"), folder / "dist")


@pytest.fixture(scope="session")
def te_build_tools(tmp_path_factory: pytest.TempPathFactory) -> Built:
    need_registry()
    folder = tmp_path_factory.mktemp("te_build_tools")
    return build_project(copy_checkout(folder / "source") / "build_tools", folder / "dist")


def modules_of(package: str) -> list[str]:
    files = [path for path in (CHECKOUT / package).rglob("*") if path.suffix == ".py" or path.name == "py.typed"]
    return sorted(path.relative_to(CHECKOUT).as_posix() for path in files)


def members_of(wheel: Path) -> list[str]:
    with zipfile.ZipFile(wheel) as archive:
        return sorted(archive.namelist())


@pytest.mark.network
class TestOwnDistributions:
    def test_the_wheel_of_te_pkg_holds_te_pkg_and_nothing_else(self, te_pkg: Built) -> None:
        info = "te_pkg-2.21.0.dev0.dist-info"
        expected = [f"{info}/{file}" for file in ("METADATA", "RECORD", "WHEEL", "licenses/LICENSE", "top_level.txt")]
        assert members_of(te_pkg.wheel) == sorted(expected + modules_of("te_pkg"))
        assert "te_pkg/attention/cu_seqlens.py" in members_of(te_pkg.wheel)

    def test_the_wheel_of_te_build_tools_holds_build_tools_and_nothing_else(self, te_build_tools: Built) -> None:
        info = f"te_build_tools-{te_build_tools.version}.dist-info"
        files = ("METADATA", "RECORD", "WHEEL", "entry_points.txt", "licenses/LICENSE", "top_level.txt")
        expected = [f"{info}/{file}" for file in files]
        assert members_of(te_build_tools.wheel) == sorted(expected + modules_of("build_tools"))
        assert "build_tools/wheels/rewrite.py" in members_of(te_build_tools.wheel)

    def test_version_txt_of_the_checkout_is_not_in_normal_form_and_every_path_is(self, te_pkg: Built) -> None:
        assert (CHECKOUT / "VERSION.txt").read_text().strip() == "2.21.0-dev0"
        assert te_pkg.wheel.name == "te_pkg-2.21.0.dev0-py3-none-any.whl"
        assert te_pkg.sdist.name == "te_pkg-2.21.0.dev0.tar.gz"

    @pytest.mark.parametrize("which", ["te_pkg", "te_build_tools"])
    def test_each_sdist_builds_the_same_wheel_again(
        self, which: str, request: pytest.FixtureRequest, tmp_path: Path
    ) -> None:
        built: Built = request.getfixturevalue(which)
        with tarfile.open(built.sdist) as archive:
            archive.extractall(tmp_path, filter="data")
        again = build_project(tmp_path / built.sdist.name.removesuffix(".tar.gz"), tmp_path / "out")
        assert again.wheel.read_bytes() == built.wheel.read_bytes()
        assert again.sdist.name == built.sdist.name

    @pytest.mark.parametrize("which", ["te_pkg", "te_build_tools"])
    def test_each_wheel_keeps_every_rule(self, which: str, request: pytest.FixtureRequest) -> None:
        built: Built = request.getfixturevalue(which)
        assert check_wheel(built.wheel, hashes=True) == []
