"""`te-wheel repack` of an sdist: name and version follow in every place that a tool wrote, and in no other."""

from __future__ import annotations

import io
import os
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from build_tools.errors import EditError, FileError, WheelError
from build_tools.sdist_rewrite import repack_sdist
from build_tools.wheels import WheelEdit
from tests.build_tools.command_line import te_wheel
from tests.build_tools.sdist_factory import EGG, FILES, INFO, make_sdist
from tests.build_tools.wheel_factory import make_wheel


def read(path: Path) -> dict[str, str]:
    with tarfile.open(path) as archive:
        return {m.name: (archive.extractfile(m) or io.BytesIO()).read().decode() for m in archive if m.isreg()}


def test_file_name_folder_pkg_info_and_egg_info_follow_and_nothing_else(tmp_path: Path) -> None:
    made = repack_sdist(make_sdist(tmp_path), tmp_path / "out", WheelEdit(name="Demo-cu12", version="2.0-dev0"))
    assert made.path == tmp_path / "out" / "demo_cu12-2.0.dev0.tar.gz"
    info = INFO.replace("Demo", "Demo-cu12").replace("1.0", "2.0.dev0").replace("demo[gpu]", "Demo-cu12[gpu]")
    assert read(made.path) == {
        "demo_cu12-2.0.dev0/PKG-INFO": info,
        "demo_cu12-2.0.dev0/pyproject.toml": FILES["demo-1.0/pyproject.toml"],
        "demo_cu12-2.0.dev0/src/demo/__init__.py": "__version__ = '1.0'\n",
        "demo_cu12-2.0.dev0/src/demo_cu12.egg-info/PKG-INFO": info,
        "demo_cu12-2.0.dev0/src/demo_cu12.egg-info/SOURCES.txt": (
            "pyproject.toml\nsrc/demo/__init__.py\nsrc/demo_cu12.egg-info/PKG-INFO\nsrc/demo.egg-info2/x\n"
        ),
        "demo_cu12-2.0.dev0/vendor/other.egg-info/PKG-INFO": INFO.replace("Demo", "other"),
    }
    assert [str(change) for change in made.changes] == [
        "filename name: demo-1.0.tar.gz -> demo_cu12-2.0.dev0.tar.gz",
        "folder top: demo-1.0 -> demo_cu12-2.0.dev0",
        "folder egg-info: demo-1.0/src/demo.egg-info -> demo-1.0/src/demo_cu12.egg-info",
        "PKG-INFO Name: Demo -> Demo-cu12",
        "PKG-INFO Version: 1.0 -> 2.0.dev0",
        "PKG-INFO Requires-Dist: demo[gpu]; extra == 'all' -> Demo-cu12[gpu]; extra == 'all'",
    ]


def test_what_the_source_itself_writes_is_named(tmp_path: Path) -> None:
    both = repack_sdist(make_sdist(tmp_path), tmp_path / "out", WheelEdit(name="other", version="2"))
    assert both.notes == (
        "pyproject.toml says name 'demo', and so will a wheel that is built from this sdist",
        "pyproject.toml says version '1.0', and so will a wheel that is built from this sdist",
    )
    elsewhere = make_sdist(tmp_path / "b", {**FILES, "demo-1.0/pyproject.toml": "[project]\nname = 'demo'\n"})
    assert repack_sdist(elsewhere, tmp_path / "out", WheelEdit(version="3")).notes == (
        "a version that the source writes elsewhere is not touched, and a build goes by that",
    )
    assert repack_sdist(elsewhere, tmp_path / "out", WheelEdit(set=("Summary: x",))).notes == ()
    outcome = te_wheel("repack", make_sdist(tmp_path / "c"), "-o", tmp_path / "told", "--version", "2")
    assert "note: demo-2.tar.gz: pyproject.toml says version '1.0'" in outcome.err


def test_there_and_back_gives_the_same_files_and_the_same_edit_the_same_bytes(tmp_path: Path) -> None:
    sdist = make_sdist(tmp_path)
    there = repack_sdist(sdist, tmp_path / "there", WheelEdit(name="third", version="2"))
    again = repack_sdist(sdist, tmp_path / "again", WheelEdit(name="third", version="2"))
    assert there.path.read_bytes() == again.path.read_bytes()
    back = repack_sdist(there.path, tmp_path / "back", WheelEdit(name="Demo", version="1.0"))
    assert read(back.path) == read(sdist) | {
        f"{EGG}/PKG-INFO": INFO.replace("demo[gpu]", "Demo[gpu]"),
        "demo-1.0/PKG-INFO": INFO.replace("demo[gpu]", "Demo[gpu]"),
    }
    twice = repack_sdist(back.path, tmp_path / "twice", WheelEdit())
    assert (twice.path.read_bytes(), twice.changes) == (back.path.read_bytes(), ())


def test_times_modes_links_and_order_stay_and_owners_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def links(archive: tarfile.TarFile) -> None:
        for kind, target in ((tarfile.SYMTYPE, "../PKG-INFO"), (tarfile.LNKTYPE, "demo-1.0/pyproject.toml")):
            info = tarfile.TarInfo(f"demo-1.0/src/{kind.decode()}")
            info.type, info.linkname = kind, target
            archive.addfile(info)
        info = tarfile.TarInfo("demo-1.0/" + "long/" * 60 + "x")
        archive.addfile(info)
        folder = tarfile.TarInfo("demo-1.0/empty")
        folder.type = tarfile.DIRTYPE
        archive.addfile(folder)

    sdist = make_sdist(tmp_path, also=links)
    made = repack_sdist(sdist, tmp_path / "out", WheelEdit(name="third")).path
    with tarfile.open(sdist) as before, tarfile.open(made) as after:
        for old, new in zip(before, after, strict=True):
            assert (old.mtime, old.mode, old.type) == (new.mtime, new.mode, new.type)
            assert (new.uid, new.gid, new.uname, new.gname) == (0, 0, "", "")
            new_name, new_link = (text.replace("third", "demo") for text in (new.name, new.linkname))
            assert (new_name, new_link) == (old.name, old.linkname)
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1767225600")
    dated = repack_sdist(sdist, tmp_path / "dated", WheelEdit(name="third")).path
    with tarfile.open(dated) as archive:
        times = {member.name: member.mtime for member in archive}
    assert times["third-1.0/PKG-INFO"] == 1767225600
    assert times["third-1.0/pyproject.toml"] == 2.5
    assert int.from_bytes(dated.read_bytes()[4:8], "little") == 1767225600


@pytest.mark.parametrize(
    "options",
    [
        {"build": "1"},
        {"platform_tag": "any"},
        {"python_tag": "py3"},
        {"add_file": "a=demo/b"},
        {"remove_file": "*"},
        {"sync": "filename"},
        {"repair": True},
    ],
    ids=lambda options: next(iter(options)),
)
def test_what_an_sdist_does_not_have_is_refused_by_name(options: dict[str, str], tmp_path: Path) -> None:
    (option,) = options
    with pytest.raises(EditError, match=f"--{option.replace('_', '-')}: for wheels alone") as refused:
        repack_sdist(make_sdist(tmp_path), tmp_path / "out", WheelEdit(**options))  # type: ignore[arg-type]
    assert "--set" in str(refused.value.hint)
    assert not (tmp_path / "out").exists()


def device(archive: tarfile.TarFile) -> None:
    info = tarfile.TarInfo("demo-1.0/fifo")
    info.type = tarfile.FIFOTYPE
    archive.addfile(info)


def symlink(archive: tarfile.TarFile) -> None:
    info = tarfile.TarInfo("demo-1.0/link")
    info.type, info.linkname = tarfile.SYMTYPE, "../../etc"
    archive.addfile(info)


@pytest.mark.parametrize(
    ("sdist", "named"),
    [
        ({"name": "demo-1.1.tar.gz"}, ["file name 'demo-1.1'"]),
        ({"files": {n.replace("demo-1.0", "other-1.0", 1): t for n, t in FILES.items()}}, ["top folder 'other-1.0'"]),
        ({"files": {**FILES, "demo-1.0/PKG-INFO": INFO.replace("1.0", "one")}}, ["PKG-INFO", "one"]),
        ({"files": {**FILES, "demo-1.0/PKG-INFO": INFO.replace("Name: Demo\n", "", 1)}}, ["PKG-INFO"]),
        ({"files": {**FILES, "demo-1.0/../../x": ""}}, ["'demo-1.0/../../x' leaves"]),
        ({"also": device}, ["'demo-1.0/fifo' is a device"]),
        ({"also": symlink}, ["symlink 'demo-1.0/link'"]),
    ],
    ids=["file name", "top folder", "version", "no name", "..", "device", "symlink"],
)
def test_an_sdist_that_is_wrong_is_refused_and_nothing_is_written(
    sdist: dict[str, object], named: list[str], tmp_path: Path
) -> None:
    path = make_sdist(tmp_path / "in", **sdist)  # type: ignore[arg-type]
    before = path.read_bytes()
    outcome = te_wheel("repack", path, "-o", tmp_path / "out", "--version", "2")
    assert (outcome.code, outcome.out) == (2, "")
    assert all(any(name in fault for fault in outcome.errors) for name in named)
    assert path.read_bytes() == before
    assert not list(tmp_path.glob("out/*"))


def test_a_folder_that_is_in_the_way_of_a_renamed_one_is_refused(tmp_path: Path) -> None:
    sdist = make_sdist(tmp_path, {**FILES, "demo-1.0/src/third.egg-info": "a file"})
    with pytest.raises(EditError, match=r"demo-1.0/src/third.egg-info"):
        repack_sdist(sdist, tmp_path / "out", WheelEdit(name="third"))


def test_what_is_no_sdist_is_refused(tmp_path: Path) -> None:
    path = make_sdist(tmp_path)
    data = path.read_bytes()
    for broken in (b"", b"text", data[:-9], data[:50]):
        path.write_bytes(broken)
        with pytest.raises(WheelError):
            repack_sdist(path, tmp_path / "out", WheelEdit(version="2"))
    with pytest.raises(FileError):
        repack_sdist(tmp_path / "gone-1.0.tar.gz", tmp_path / "out", WheelEdit(version="2"))


def test_output_rules_are_those_of_wheels(tmp_path: Path) -> None:
    sdist = make_sdist(tmp_path)
    assert te_wheel("repack", sdist, "--set", "Summary: x").code == 2  # the input itself
    assert te_wheel("repack", sdist, "--set", "Summary: x", "--replace").code == 0
    assert "Summary: x\n" in read(sdist)["demo-1.0/PKG-INFO"]
    planned = te_wheel("repack", sdist, "-o", tmp_path / "out", "--version", "2", "--dry-run", "--json").json
    done = te_wheel("repack", sdist, "-o", tmp_path / "out", "--version", "2", "--json").json
    assert (planned[0]["written"], done[0]["written"]) == (False, True)
    assert planned[0]["changes"] == done[0]["changes"] != []
    assert done[0]["size"] == (tmp_path / "out" / "demo-2.tar.gz").stat().st_size
    (tmp_path / "out" / "demo-3.tar.gz").write_text("precious")
    assert te_wheel("repack", sdist, "-o", tmp_path / "out", "--version", "3").code == 2
    assert (tmp_path / "out" / "demo-3.tar.gz").read_text() == "precious"


def test_wheels_and_sdists_go_through_one_run(tmp_path: Path) -> None:
    wheel, sdist = make_wheel(tmp_path / "in"), make_sdist(tmp_path / "in")
    outcome = te_wheel("repack", sdist, wheel, "-o", tmp_path / "out", "--name", "other")
    assert outcome.code == 0
    assert [Path(line).name for line in outcome.lines] == ["other-1.0.tar.gz", "other-1.0-py3-none-any.whl"]


def test_the_sdist_of_setuptools_is_rewritten_and_unpacks(tmp_path: Path) -> None:
    project = tmp_path / "project"
    (project / "src" / "demo").mkdir(parents=True)
    (project / "src" / "demo" / "__init__.py").write_text("")
    (project / "pyproject.toml").write_text("[project]\nname = 'demo'\nversion = '1.0'\n")
    code = "import setuptools.build_meta as b, sys; print(b.build_sdist(sys.argv[1]))"
    run = subprocess.run([sys.executable, "-c", code, str(tmp_path)], cwd=project, capture_output=True, text=True)
    if run.returncode:
        pytest.skip("setuptools is not installed here")
    made = repack_sdist(tmp_path / "demo-1.0.tar.gz", tmp_path / "out", WheelEdit(name="demo-cu12", version="1.1")).path
    names = sorted(read(made))
    assert all(name.startswith("demo_cu12-1.1/") for name in names)
    egg = "demo_cu12-1.1/src/demo_cu12.egg-info"
    assert f"{egg}/SOURCES.txt" in names
    assert not [name for name in names if "/demo.egg-info" in name]
    for file in ("demo_cu12-1.1/PKG-INFO", f"{egg}/PKG-INFO"):
        assert "\nName: demo-cu12\nVersion: 1.1\n" in read(made)[file]
    with tarfile.open(made) as archive:
        archive.extractall(tmp_path / "unpacked", filter="data")
    assert os.listdir(tmp_path / "unpacked") == ["demo_cu12-1.1"]
