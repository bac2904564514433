"""Unpacking writes below its folder and nowhere else, and gives nobody more than the umask does."""

from __future__ import annotations

import os
import stat
import unicodedata
from collections.abc import Iterator
from pathlib import Path

import pytest

from build_tools.errors import WheelError
from build_tools.wheels import new_tree, unpack
from build_tools.wheels.limits import MAX_DEPTH
from build_tools.wheels.new_tree import NewTree, require_names
from tests.build_tools.command_line import te_wheel
from tests.build_tools.wheel_factory import PACKAGE, STORED, Member, directory, make_wheel, symlink

TRICKS = {
    "up": "../evil",
    "up from below": "demo/../../evil",
    "up at the end": "demo/..",
    "here": "demo/./evil",
    "absolute": "/tmp/evil",
    "two slashes": "//host/evil",
    "an empty part": "demo//evil",
    "a drive": "C:/evil",
    "a drive without a slash": "c:evil",
    "backslashes": "demo\\..\\..\\evil",
    "a drive with backslashes": "C:\\evil",
    "a device path": "\\\\?\\C:\\evil",
    "a trailing dot": "demo/evil.",
    "a folder with a trailing dot": "demo./evil",
    "a trailing blank": "demo/evil ",
    "dots alone": "demo/.../evil",
    "a NUL": "demo/evil\0.py",
    "a line end": "demo/evil\n.py",
    "an escape": "demo/\x1b[2Jevil",
    "a C1 control": "demo/\x9bevil",
    "a line separator": "demo/evil\u2028.py",
    "a name without end": "demo/" + "e" * 5000,
    "a part that no file system takes": "demo/" + "e" * 256,
    "folders without end": "e/" * 1500 + "evil",
    "one folder too many": "e/" * (MAX_DEPTH + 1) + "evil",
}


def everything(root: Path) -> set[Path]:
    return set(root.rglob("*"))


@pytest.mark.parametrize("kind", ["file", "folder", "symlink"])
@pytest.mark.parametrize("name", TRICKS.values(), ids=TRICKS)
def test_a_name_that_tricks_is_refused_and_nothing_is_written(name: str, kind: str, tmp_path: Path) -> None:
    member = {"file": Member("evil"), "folder": directory(), "symlink": symlink("__init__.py")}[kind]
    path = f"{name}/" if kind == "folder" else name
    wheel = make_wheel(tmp_path / "in", files={**PACKAGE, path: member})
    before = everything(tmp_path)
    outcome = te_wheel("unpack", wheel, "-d", tmp_path / "tree")
    assert (outcome.code, outcome.out) == (2, "")
    assert everything(tmp_path) - {tmp_path / "tree"} == before
    assert not Path("/tmp/evil").exists()


@pytest.mark.parametrize(
    "files",
    {
        "a link to a folder, then a file below it": [("demo/d", symlink(".")), ("demo/d/evil", Member("x"))],
        "a file below it, then the link": [("demo/d/evil", Member("x")), ("demo/d", symlink("."))],
        "a link, then a file of its name": [("demo/d", symlink("__init__.py")), ("demo/d", Member("x"))],
        "a file twice": [("demo/d", Member("x")), ("demo/d", Member("y"))],
        "a file and a folder": [("demo/d", Member("x")), ("demo/d/", directory())],
        "a link and a folder": [("demo/d", symlink(".")), ("demo/d/", directory())],
        "a link through a link": [("demo/a", symlink("..")), ("demo/b", symlink("a/../x"))],
        "a link to an absolute path": [("demo/d", symlink("/tmp"))],
        "a link with backslashes": [("demo/d", symlink("..\\..\\x"))],
        "a link to a drive": [("demo/d", symlink("C:/x"))],
        "a link with a NUL": [("demo/d", symlink("a\0b"))],
        "links in a circle": [("demo/a", symlink("b")), ("demo/b", symlink("a"))],
        "a link that is a folder": [("demo/d/", Member("..", kind=stat.S_IFLNK, mode=0o777, method=STORED))],
    }.items(),
    ids=lambda item: item[0],
)
def test_members_that_trick_together_are_refused(files: tuple[str, list[tuple[str, Member]]], tmp_path: Path) -> None:
    wheel = make_wheel(tmp_path / "in", files=[*PACKAGE.items(), *files[1]])
    before = everything(tmp_path)
    outcome = te_wheel("unpack", wheel, "-d", tmp_path / "tree")
    assert (outcome.code, outcome.out) == (2, "")
    assert everything(tmp_path) - {tmp_path / "tree"} == before


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("demo/A.py", "demo/a.py"),
        ("Demo/a.py", "demo/a.py"),
        (unicodedata.normalize("NFC", "demo/é.py"), unicodedata.normalize("NFD", "demo/é.py")),
        ("demo/stra\xdfe.py", "demo/strasse.py"),
    ],
    ids=["a file in capitals", "a folder in capitals", "composed and decomposed", "sharp s"],
)
def test_names_that_a_file_system_may_hold_for_one_are_two_files_or_refused(
    one: str, other: str, tmp_path: Path
) -> None:
    wheel = make_wheel(tmp_path / "in", files={**PACKAGE, one: "one", other: "other"})
    outcome = te_wheel("unpack", wheel, "-d", tmp_path / "tree")
    root = tmp_path / "tree" / "demo-1.0"
    if outcome.code == 0:
        assert ((root / one).read_text(), (root / other).read_text()) == ("one", "other")
    else:
        assert not list(tmp_path.glob("tree/*"))


def test_as_many_folders_as_are_allowed_are_made_and_removed_again(tmp_path: Path) -> None:
    deep = "e/" * MAX_DEPTH
    folder = unpack(make_wheel(tmp_path / "a", files={**PACKAGE, f"{deep}x": "x"}), tmp_path / "tree")
    assert (folder / deep / "x").read_text() == "x"
    broken = make_wheel(tmp_path / "b", files={**PACKAGE, f"{deep}x": Member("x", crc=1)})
    with pytest.raises(WheelError, match="CRC"):
        unpack(broken, tmp_path / "other")
    assert os.listdir(tmp_path / "other") == []


RESERVED = [
    "CON",
    "nul",
    "demo/aux.py",
    "demo/COM1",
    "lpt9.txt",
    "demo/prn.tar.gz",
    "demo/CON .txt",
    "COM\xb9",
    "conin$",
]
STREAMS = ["demo/a.py:stream", "demo/a.py::$DATA", "demo/a?", "demo/<a>", "demo/a|b", 'demo/"a"', "demo/*"]


@pytest.mark.parametrize("name", [*RESERVED, *STREAMS])
def test_what_is_no_file_on_windows_is_refused_there_and_is_one_elsewhere(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wheel = make_wheel(tmp_path / "in", files={**PACKAGE, name: "x"})
    if os.name != "nt":
        assert (unpack(wheel, tmp_path / "here") / name).read_text() == "x"
    monkeypatch.setattr(new_tree, "_WINDOWS", True)
    outcome = te_wheel("unpack", wheel, "-d", tmp_path / "windows")
    assert (outcome.code, outcome.out) == (2, "")
    assert "Windows" in outcome.err
    assert not list(tmp_path.glob("windows/*"))


@pytest.mark.parametrize(
    "name", ["demo/console.py", "demo/auxiliary.py", "com10", "null.py", "xcon", "demo/a.con", "lpt"]
)
def test_names_that_only_look_reserved_are_taken(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(new_tree, "_WINDOWS", True)
    require_names([name], "demo.whl")


@pytest.fixture(params=[0o000, 0o002, 0o022, 0o027, 0o077], ids=oct)
def umask(request: pytest.FixtureRequest) -> Iterator[int]:
    old = os.umask(request.param)
    yield request.param
    os.umask(old)


def test_no_special_bit_is_restored_and_the_umask_is_heeded(umask: int, tmp_path: Path) -> None:
    modes = [0o644, 0o777, 0o666, 0o4755, 0o2755, 0o1777, 0o7777, 0o000, 0o111, 0o4644]
    files = {f"demo/{mode:o}": Member("x", mode=mode) for mode in modes}
    folders = {f"demo/d{mode:o}/": Member(mode=mode, kind=stat.S_IFDIR, method=STORED) for mode in modes}
    root = unpack(make_wheel(tmp_path / "in", files={**PACKAGE, **files, **folders}), tmp_path / "tree")
    for path in everything(root):
        mode = stat.S_IMODE(path.stat().st_mode)
        assert not mode & 0o7002, f"{path.name}: {mode:o}"
        assert not mode & umask, f"{path.name}: {mode:o}"
    for mode in modes:
        expected = (0o775 if mode & 0o111 else 0o664) & ~umask
        assert stat.S_IMODE((root / "demo" / f"{mode:o}").stat().st_mode) == expected
        assert stat.S_IMODE((root / "demo" / f"d{mode:o}").stat().st_mode) == 0o775 & ~umask


def test_a_tree_without_calls_by_folder_is_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = {
        **PACKAGE,
        "demo/sub/run": Member("x", mode=0o755),
        "demo/link": symlink("sub/run"),
        "demo/e/": directory(),
    }
    wheel = make_wheel(tmp_path / "in", files=files)
    trees = []
    for by_folder in (True, False):
        monkeypatch.setattr(new_tree, "_BY_FOLDER", by_folder and new_tree._BY_FOLDER)
        root = unpack(wheel, tmp_path / str(by_folder))
        trees.append({str(path.relative_to(root)): path.lstat().st_mode for path in everything(root)})
    assert trees[0] == trees[1]


def test_nothing_is_made_twice(tmp_path: Path) -> None:
    (tmp_path / "there").write_text("mine")
    (tmp_path / "folder").mkdir()
    with NewTree(tmp_path) as tree:
        for make in (
            lambda: tree.open_file("there", executable=False),
            lambda: tree.make_link("there", "x"),
            lambda: tree.make_folder("folder"),
        ):
            with pytest.raises(FileExistsError):
                make()
    assert (tmp_path / "there").read_text() == "mine"
