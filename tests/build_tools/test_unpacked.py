"""``unpack`` and ``pack`` agree on every path, with each other and with ``repack``."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from build_tools.errors import OutputExistsError, ReleaseError, TreeError, WheelError
from build_tools.wheels import check_wheel, pack, unpack
from tests.build_tools.broken_wheels import ARCHIVE, Broken
from tests.build_tools.command_line import te_wheel
from tests.build_tools.rewrite_cases import CASES, Case
from tests.build_tools.version_cases import ACCEPTED
from tests.build_tools.wheel_factory import PACKAGE, Archive, Member, make_wheel, metadata_text, symlink
from tests.build_tools.wheel_reader import content, headers, read_any, read_clean, read_right

RIGHT = {
    "zip-gap",  # nothing of it is unpacked
    "zip-case-collision",  # the file system decides
    "zip-not-clean",
    "zip-version",  # of the headers alone
    "zip-flags",
    "zip-extra",
    "zip-odd-name",  # the file system decides
    "zip-symlink",
}
UNSAFE = [broken for broken in ARCHIVE if broken.code not in RIGHT]


def edit(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))


@pytest.mark.parametrize("case", CASES, ids=[case.id for case in CASES])
def test_the_folder_is_named_by_the_stem_and_packs_to_the_normal_name(case: Case, tmp_path: Path) -> None:
    wheel = case.make(tmp_path / "in")
    (shown,) = te_wheel("show", wheel, "--json").json
    folder = Path(te_wheel("unpack", wheel, "-d", tmp_path / "tree").out.removesuffix("\n"))
    stem = te_wheel("version", shown["version"], "--stem", shown["name"]).out.strip()
    assert folder == tmp_path / "tree" / stem
    packed = pack(folder, tmp_path / "packed").path
    plain = Path(te_wheel("repack", wheel, "-o", tmp_path / "plain").out.removesuffix("\n"))
    assert packed.name == plain.name
    old, new = read_clean(plain), read_right(packed)
    signatures = {name for name in old if name.endswith((".jws", ".p7s"))}
    files = {name for name in old if not name.endswith("/")} - signatures
    assert set(new) == files
    for name in files:
        assert new[name].is_symlink == old[name].is_symlink
        assert bool(new[name].mode & 0o111) == bool(old[name].mode & 0o111), name
        if not name.endswith("/RECORD"):
            assert new[name].data == old[name].data, name
    assert {finding.code for finding in check_wheel(packed, hashes=True)} <= {"zip-symlink", "zip-reserved-name"}


@pytest.mark.parametrize(("raw", "canonical"), ACCEPTED)
def test_a_version_edited_by_hand_in_any_spelling_packs_to_the_normal_one(
    raw: str, canonical: str, tmp_path: Path
) -> None:
    files = {**PACKAGE, "demo-1.0.data/scripts/hello": Member("#!python\n", mode=0o755)}
    folder = unpack(make_wheel(tmp_path, files=files), tmp_path / "tree")
    edit(folder / "demo-1.0.dist-info" / "METADATA", "Version: 1.0\n", f"Version: {raw}\n")
    packed = pack(folder, tmp_path / "out").path
    assert packed.name == f"demo-{canonical}-py3-none-any.whl"
    assert f"demo-{canonical}.data/scripts/hello" in read_right(packed)


def test_name_tags_and_build_edited_by_hand_are_followed(tmp_path: Path) -> None:
    folder = unpack(make_wheel(tmp_path, build="1"), tmp_path / "tree")
    info = folder / "demo-1.0.dist-info"
    edit(info / "METADATA", "Name: demo", "Name: Demo.CU-12")
    edit(info / "WHEEL", "Build: 1", "Build: 22_x")
    edit(
        info / "WHEEL",
        "Tag: py3-none-any\n",
        "Tag: py3-none-manylinux_2_28_x86_64\nTag: py2-none-manylinux_2_28_x86_64\n",
    )
    packed = pack(folder, tmp_path / "out").path
    assert packed.name == "demo_cu_12-1.0-22_x-py2.py3-none-manylinux_2_28_x86_64.whl"
    assert headers(content(read_right(packed), "/METADATA"))["Name"] == "Demo.CU-12"


@pytest.mark.parametrize(("build", "expected"), [("", None), ("7", ["7"])])
def test_pack_sets_and_removes_a_build_tag(build: str, expected: list[str] | None, tmp_path: Path) -> None:
    folder = unpack(make_wheel(tmp_path, build="1"), tmp_path / "tree")
    outcome = te_wheel("pack", folder, "-d", tmp_path / "out", "--build", build)
    packed = Path(outcome.out.removesuffix("\n"))
    assert packed.name == f"demo-1.0-{'7-' if build else ''}py3-none-any.whl"
    assert headers(content(read_right(packed), "/WHEEL")).get_all("Build") == expected


def test_files_added_changed_and_removed_by_hand_are_recorded(tmp_path: Path) -> None:
    folder = unpack(make_wheel(tmp_path, files={**PACKAGE, "demo/gone.py": "x\n"}), tmp_path / "tree")
    (folder / "demo" / "gone.py").unlink()
    (folder / "demo" / "__init__.py").write_text("VALUE = 3\n")
    (folder / "demo" / "new,file.py").write_text("")
    members = read_right(pack(folder, tmp_path / "out").path)
    assert list(members)[:2] == ["demo/__init__.py", "demo/new,file.py"]
    assert members["demo/__init__.py"].data == b"VALUE = 3\n"


def test_a_missing_or_wrong_record_is_written_anew(tmp_path: Path) -> None:
    folder = unpack(make_wheel(tmp_path), tmp_path / "tree")
    first = pack(folder, tmp_path / "a").path.read_bytes()
    record = folder / "demo-1.0.dist-info" / "RECORD"
    record.write_text("nonsense\n")
    assert pack(folder, tmp_path / "b").path.read_bytes() == first
    record.unlink()
    assert pack(folder, tmp_path / "c").path.read_bytes() == first


def test_the_same_tree_gives_the_same_bytes_whatever_the_clock_and_the_order(tmp_path: Path) -> None:
    files = {**PACKAGE, **{f"demo/{letter}.py": letter * 3000 for letter in "qazwsx"}}
    folder = unpack(make_wheel(tmp_path, files=files), tmp_path / "tree")
    first = pack(folder, tmp_path / "a").path
    again = pack(folder, tmp_path / "a")
    assert not again.written
    other = tmp_path / "other" / "name"
    for path in sorted(folder.rglob("*"), reverse=True):
        if path.is_file():
            target = other / path.relative_to(folder)
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(path.read_bytes())
            os.utime(target, (2_000_000_000, 2_000_000_000))
    second = pack(other, tmp_path / "b").path
    assert second.read_bytes() == first.read_bytes()
    assert {read.date for read in read_right(first).values()} == {(1980, 1, 1, 0, 0, 0)}


def test_source_date_epoch_is_the_time_of_every_packed_member(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = unpack(make_wheel(tmp_path), tmp_path / "tree")
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1767225600")
    members = read_right(pack(folder, tmp_path / "out").path)
    assert {read.date for read in members.values()} == {(2026, 1, 1, 0, 0, 0)}


def test_x_bits_are_restored_and_no_other_bit_is(tmp_path: Path) -> None:
    modes = {"plain": 0o600, "run": 0o755, "setuid": 0o4755, "open": 0o666, "mine": 0o100, "theirs": 0o654}
    files = {f"demo/{name}": Member("x", mode=mode) for name, mode in modes.items()}
    old = os.umask(0o022)
    try:
        folder = unpack(make_wheel(tmp_path, files=files), tmp_path / "tree")
    finally:
        os.umask(old)
    found = {path.name: stat.S_IMODE(path.stat().st_mode) for path in (folder / "demo").iterdir()}
    assert found == {"plain": 0o644, "run": 0o755, "setuid": 0o755, "open": 0o644, "mine": 0o755, "theirs": 0o755}


def test_a_large_tree_is_packed_as_zipfile_would_read_it(tmp_path: Path) -> None:
    files = {**PACKAGE, "demo/long.bin": b"0123456789abcdef" * 300_000, "demo/random.bin": os.urandom(3_000_000)}
    wheel = make_wheel(tmp_path, files=files)
    packed = pack(unpack(wheel, tmp_path / "tree"), tmp_path / "out").path
    members = read_right(packed)
    assert members["demo/long.bin"].data == files["demo/long.bin"]
    assert len(members["demo/long.bin"].packed) < 200_000
    assert [read.name for read in read_any(packed)] == list(members)


# Refusals


@pytest.mark.parametrize("broken", UNSAFE, ids=[broken.id for broken in UNSAFE])
def test_an_unsound_archive_is_not_unpacked(broken: Broken, tmp_path: Path) -> None:
    wheel = broken.make(tmp_path / "in")
    outside = sorted(path for path in tmp_path.rglob("*"))
    outcome = te_wheel("unpack", wheel, "-d", tmp_path / "tree")
    assert (outcome.code, outcome.out) == (2, "")
    assert wheel.name in outcome.err
    assert sorted(path for path in tmp_path.rglob("*") if path != tmp_path / "tree") == outside


@pytest.mark.parametrize("target", ["../../outside", "/etc/passwd", "../../../x"])
def test_a_symlink_out_of_the_tree_is_refused_by_unpack_and_pack(target: str, tmp_path: Path) -> None:
    wheel = make_wheel(tmp_path / "in", files={**PACKAGE, "demo/link": symlink(target)})
    with pytest.raises(WheelError, match="demo/link"):
        unpack(wheel, tmp_path / "tree")
    folder = unpack(make_wheel(tmp_path), tmp_path / "tree")
    (folder / "demo" / "link").symlink_to(target)
    with pytest.raises(TreeError, match="demo/link"):
        pack(folder, tmp_path / "out")
    assert not list(tmp_path.glob("out/*"))


def test_nothing_is_written_through_a_symlink(tmp_path: Path) -> None:
    files = [*PACKAGE.items(), ("demo/dir", symlink("..")), ("demo/dir/evil.py", "x")]
    with pytest.raises(WheelError, match="demo/dir"):
        unpack(make_wheel(tmp_path / "in", files=files), tmp_path / "tree")
    assert not list(tmp_path.rglob("evil.py"))


def test_a_folder_that_is_there_already_is_left_as_it_is(tmp_path: Path) -> None:
    wheel = make_wheel(tmp_path / "in")
    folder = unpack(wheel, tmp_path / "tree")
    (folder / "demo" / "__init__.py").write_text("edited\n")
    with pytest.raises(OutputExistsError, match=r"demo-1\.0"):
        unpack(wheel, tmp_path / "tree")
    assert (folder / "demo" / "__init__.py").read_text() == "edited\n"
    assert os.listdir(tmp_path / "tree") == [folder.name]


def test_a_member_that_is_not_what_record_says_is_refused(tmp_path: Path) -> None:
    wheel = make_wheel(tmp_path / "in", record=lambda rows: [[rows[0][0], rows[1][1], rows[0][2]], *rows[1:]])
    with pytest.raises(WheelError, match=r"demo/__init__\.py"):
        unpack(wheel, tmp_path / "tree")
    assert not list(tmp_path.glob("tree/*"))


def test_a_wheel_that_disagrees_with_itself_can_be_unpacked_and_mended(tmp_path: Path) -> None:
    wheel = make_wheel(tmp_path / "in", filename="demo-1.0+cu130-py3-none-any.whl")
    folder = unpack(wheel, tmp_path / "tree")
    edit(folder / "demo-1.0.dist-info" / "METADATA", "Version: 1.0", "Version: 1.0+cu130")
    assert pack(folder, tmp_path / "out").path.name == wheel.name
    read_right(tmp_path / "out" / wheel.name)


@pytest.mark.parametrize(
    ("old", "new", "named"),
    [
        ("Name: demo\n", "", "Name"),
        ("Version: 1.0\n", "", "Version"),
        ("Version: 1.0\n", "Version: 1.0\nVersion: 2\n", "Version"),
        ("Version: 1.0", "Version: 1.0_1", "1.0_1"),
        ("Name: demo", "Name: de mo", "de mo"),
        ("Summary:", "Summary", "Summary"),
        ("2.1", "3.0", "3.0"),
    ],
)
def test_a_tree_whose_metadata_makes_no_wheel_is_refused(old: str, new: str, named: str, tmp_path: Path) -> None:
    folder = unpack(make_wheel(tmp_path), tmp_path / "tree")
    edit(folder / "demo-1.0.dist-info" / "METADATA", old, new)
    outcome = te_wheel("pack", folder, "-d", tmp_path / "out")
    assert (outcome.code, outcome.out) == (2, "")
    assert named in outcome.err
    assert not list(tmp_path.glob("out/*"))


@pytest.mark.parametrize("missing", ["METADATA", "WHEEL", "."])
def test_a_tree_without_its_headers_is_refused(missing: str, tmp_path: Path) -> None:
    folder = unpack(make_wheel(tmp_path), tmp_path / "tree")
    info = folder / "demo-1.0.dist-info"
    if missing == ".":
        info.rename(folder / "nothing")
    else:
        (info / missing).unlink()
    with pytest.raises(TreeError):
        pack(folder, tmp_path / "out")


@pytest.mark.parametrize("tags", ["", "Tag: py3-none\n", "Tag: cp310-cp310-any\nTag: cp311-cp311-any\n"])
def test_tags_that_no_file_name_can_hold_are_refused(tags: str, tmp_path: Path) -> None:
    folder = unpack(make_wheel(tmp_path), tmp_path / "tree")
    edit(folder / "demo-1.0.dist-info" / "WHEEL", "Tag: py3-none-any\n", tags)
    with pytest.raises(TreeError):
        pack(folder, tmp_path / "out")


@pytest.mark.parametrize("kind", ["missing", "a file", "empty"])
def test_what_is_no_tree_is_refused_in_plain_words(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "tree"
    if kind == "a file":
        path.write_text("x")
    elif kind == "empty":
        path.mkdir()
    outcome = te_wheel("pack", path, "-d", tmp_path / "out")
    assert (outcome.code, outcome.out) == (2, "")
    assert str(path) in outcome.errors[0]


def test_a_pipe_in_the_tree_is_refused_not_waited_for(tmp_path: Path) -> None:
    folder = unpack(make_wheel(tmp_path), tmp_path / "tree")
    os.mkfifo(folder / "demo" / "pipe")
    with pytest.raises(ReleaseError, match="demo/pipe"):
        pack(folder, tmp_path / "out")


def test_a_streamed_wheel_unpacks_and_packs_clean(tmp_path: Path) -> None:
    wheel = make_wheel(tmp_path, metadata=metadata_text(), archive=Archive(every={"streamed": True}))
    read_right(pack(unpack(wheel, tmp_path / "tree"), tmp_path / "out").path)
