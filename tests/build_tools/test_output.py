"""Where the output goes, what stands there already, and what is reported."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import pytest

from build_tools.errors import OutputExistsError
from build_tools.wheels import WheelEdit, repack
from tests.build_tools.command_line import te_wheel
from tests.build_tools.wheel_factory import Archive, make_wheel
from tests.build_tools.wheel_reader import content, read_clean, read_right

RENAMED = "other-1.0-py3-none-any.whl"


def listing(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_without_a_folder_the_output_stands_beside_the_input(tmp_path: Path) -> None:
    wheel = make_wheel(tmp_path)
    outcome = te_wheel("repack", wheel, "--name", "other")
    assert outcome.out == f"{tmp_path / RENAMED}\n"
    assert sorted(listing(tmp_path)) == [wheel.name, RENAMED]


def test_a_relative_input_has_a_relative_output(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wheel = make_wheel(tmp_path)
    monkeypatch.chdir(tmp_path)
    assert te_wheel("repack", wheel.name, "--name", "other").out == f"{RENAMED}\n"


def test_the_output_folder_is_made(tmp_path: Path) -> None:
    wheel = make_wheel(tmp_path / "in")
    deep = tmp_path / "a" / "b"
    assert te_wheel("repack", wheel, "-o", deep, "--name", "other").out == f"{deep / RENAMED}\n"
    assert list(listing(deep)) == [RENAMED]


def test_the_same_bytes_already_there_are_success_and_nothing_is_written(tmp_path: Path) -> None:
    wheel = make_wheel(tmp_path / "in")
    first = repack(wheel, tmp_path / "out", WheelEdit(name="other"))
    os.utime(first.path, (1, 1))
    second = repack(wheel, tmp_path / "out", WheelEdit(name="other"))
    assert (first.written, second.written) == (True, False)
    assert first.path.stat().st_mtime == 1


def test_other_bytes_already_there_are_refused_unless_forced(tmp_path: Path) -> None:
    wheel = make_wheel(tmp_path / "in")
    output = tmp_path / "out" / RENAMED
    output.parent.mkdir()
    output.write_bytes(b"precious")
    outcome = te_wheel("repack", wheel, "-o", output.parent, "--name", "other")
    assert (outcome.code, outcome.out) == (2, "")
    assert RENAMED in outcome.errors[0]
    assert "--force" in outcome.err
    assert listing(output.parent) == {RENAMED: b"precious"}
    with pytest.raises(FileExistsError):
        repack(wheel, output.parent, WheelEdit(name="other"))
    assert te_wheel("repack", wheel, "-o", output.parent, "--name", "other", "--force").code == 0
    read_right(output)


@pytest.mark.parametrize("kind", ["folder", "symlink to a folder", "dangling symlink"])
def test_what_is_no_file_under_the_output_name_stays(kind: str, tmp_path: Path) -> None:
    wheel = make_wheel(tmp_path / "in")
    output = tmp_path / "out" / RENAMED
    output.parent.mkdir()
    if kind == "folder":
        output.mkdir()
    else:
        output.symlink_to(tmp_path / ("in" if "to" in kind else "nowhere"))
    outcome = te_wheel("repack", wheel, "-o", output.parent, "--name", "other")
    assert (outcome.code, outcome.out) == (2, "")
    assert [path.name for path in output.parent.iterdir()] == [RENAMED]


def test_an_output_that_is_the_input_needs_replace(tmp_path: Path) -> None:
    wheel = make_wheel(tmp_path)
    before = listing(tmp_path)
    outcome = te_wheel("repack", wheel, "--set", "Summary: new")
    assert (outcome.code, outcome.out) == (2, "")
    assert "--replace" in outcome.err
    assert listing(tmp_path) == before
    with pytest.raises(OutputExistsError):
        repack(wheel, None, WheelEdit(set=("Summary: new",)), force=True)
    assert listing(tmp_path) == before
    assert te_wheel("repack", wheel, "--set", "Summary: new", "--replace").out == f"{wheel}\n"
    assert list(listing(tmp_path)) == [wheel.name]
    assert b"Summary: new\n" in content(read_right(wheel), "/METADATA")


def test_an_output_that_is_the_input_by_another_path_needs_replace_too(tmp_path: Path) -> None:
    wheel = make_wheel(tmp_path / "in")
    (tmp_path / "link").symlink_to(tmp_path / "in")
    before = wheel.read_bytes()
    outcome = te_wheel("repack", wheel, "-o", tmp_path / "link", "--set", "Summary: new", "--force")
    assert outcome.code == 2
    assert wheel.read_bytes() == before


@pytest.mark.parametrize("elsewhere", [False, True])
def test_replace_removes_the_input_once_the_output_is_there(elsewhere: bool, tmp_path: Path) -> None:
    wheel = make_wheel(tmp_path / "in")
    folder = tmp_path / ("out" if elsewhere else "in")
    outcome = te_wheel("repack", wheel, "--name", "other", "--replace", *(["-o", folder] if elsewhere else []))
    assert outcome.out == f"{folder / RENAMED}\n"
    assert not wheel.exists()
    read_right(folder / RENAMED)


def test_replace_keeps_the_input_where_the_output_cannot_be_written(tmp_path: Path) -> None:
    wheel = make_wheel(tmp_path / "in")
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / RENAMED).write_bytes(b"precious")
    assert te_wheel("repack", wheel, "--name", "other", "--replace", "-o", tmp_path / "out").code == 2
    assert wheel.exists()


def test_a_dry_run_prints_the_changes_and_writes_nothing(tmp_path: Path) -> None:
    wheel = make_wheel(tmp_path / "in")
    outcome = te_wheel("repack", wheel, "-o", tmp_path / "out", "--name", "other", "--local", "cu1", "--dry-run")
    assert outcome.code == 0
    for text in ("demo-1.0-py3-none-any.whl", "other-1.0+cu1-py3-none-any.whl", "demo", "other", "1.0+cu1"):
        assert text in outcome.out
    assert not (tmp_path / "out").exists()


def test_a_dry_run_refuses_what_the_run_would_refuse(tmp_path: Path) -> None:
    wheel = make_wheel(tmp_path, record=lambda rows: rows[1:])
    outcome = te_wheel("repack", wheel, "--name", "other", "--dry-run")
    assert (outcome.code, outcome.out) == (2, "")


@pytest.mark.parametrize("dry_run", [False, True])
def test_json_gives_the_same_facts(dry_run: bool, tmp_path: Path) -> None:
    wheel = make_wheel(tmp_path / "in")
    output = tmp_path / "out" / RENAMED
    flags = ["--dry-run"] if dry_run else []
    (entry,) = te_wheel("repack", wheel, "-o", output.parent, "--name", "other", "--json", *flags).json
    assert set(entry) >= {"source", "path", "sha256", "size", "written", "changes"}
    assert (entry["source"], entry["path"], entry["written"]) == (str(wheel), str(output), not dry_run)
    if not dry_run:
        assert entry["sha256"] == hashlib.sha256(output.read_bytes()).hexdigest()
        assert entry["size"] == output.stat().st_size
    assert all(set(change) == {"where", "field", "old", "new"} for change in entry["changes"])
    assert {"where": "METADATA", "field": "Name", "old": "demo", "new": "other"} in entry["changes"]


def test_no_edit_at_all_brings_a_wheel_into_the_clean_form(tmp_path: Path) -> None:
    wheel = make_wheel(tmp_path / "in", archive=Archive(every={"streamed": True}, comment=b"x"))
    output = Path(te_wheel("repack", wheel, "-o", tmp_path / "out").out.strip())
    assert output.name == wheel.name
    read_right(output)
    plain = make_wheel(tmp_path / "plain")
    again = Path(te_wheel("repack", plain, "-o", tmp_path / "out2").out.strip())
    assert again.read_bytes() == plain.read_bytes()


def test_the_dist_info_folder_moves_to_the_end(tmp_path: Path) -> None:
    wheel = make_wheel(tmp_path, files={"demo-1.0.dist-info/LICENSE": "x", "demo/__init__.py": "y"})
    members = read_right(repack(wheel, tmp_path / "out", WheelEdit(name="other")).path)
    assert [name.split("/", 1)[1] for name in members] == ["__init__.py", "LICENSE", "METADATA", "WHEEL", "RECORD"]


def test_of_many_wheels_the_good_ones_are_written_and_the_bad_ones_named(tmp_path: Path) -> None:
    good = make_wheel(tmp_path, name="good")
    bad = make_wheel(tmp_path, name="bad", omit=["RECORD"])
    missing = tmp_path / "missing-1.0-py3-none-any.whl"
    outcome = te_wheel("repack", bad, good, missing, "-o", tmp_path / "out", "--local", "cu1")
    written = tmp_path / "out" / "good-1.0+cu1-py3-none-any.whl"
    assert (outcome.code, outcome.out) == (2, f"{written}\n")
    assert any(bad.name in error for error in outcome.errors)
    assert any(missing.name in error for error in outcome.errors)
    assert list(listing(tmp_path / "out")) == [written.name]
    entries = te_wheel("repack", bad, good, missing, "-o", tmp_path / "out", "--local", "cu1", "--json").json
    assert [("error" in entry, entry["source"]) for entry in entries] == [
        (True, str(bad)),
        (False, str(good)),
        (True, str(missing)),
    ]


def test_two_inputs_with_one_output_are_refused_before_anything_is_written(tmp_path: Path) -> None:
    wheels = [make_wheel(tmp_path / folder, name=name) for folder, name in (("a", "demo"), ("b", "other"))]
    third = make_wheel(tmp_path / "c", name="third", version="3")
    outcome = te_wheel("repack", third, *wheels, "-o", tmp_path / "out", "--name", "same")
    assert (outcome.code, outcome.out) == (2, "")
    assert "same-1.0-py3-none-any.whl" in outcome.err
    assert not list(tmp_path.glob("out/*"))


def test_the_same_input_and_edit_give_the_same_bytes_at_any_time(tmp_path: Path) -> None:
    wheel = make_wheel(tmp_path / "in")
    source = tmp_path / "x.txt"
    outputs = []
    for time in (1, 2_000_000_000):
        source.write_text("x")
        os.utime(source, (time, time))
        os.utime(wheel, (time, time))
        edit = WheelEdit(name="other", add_file=(f"{source}=demo/x.txt",))
        outputs.append(repack(wheel, tmp_path / str(time), edit).path.read_bytes())
    assert outputs[0] == outputs[1]


def test_fsync_changes_no_byte(tmp_path: Path) -> None:
    wheel = make_wheel(tmp_path / "in")
    plain, synced = (
        repack(wheel, tmp_path / name, WheelEdit(name="other"), fsync=name == "synced").path for name in ("a", "synced")
    )
    assert plain.read_bytes() == synced.read_bytes()


def test_zip64_is_gone_where_nothing_needs_it(tmp_path: Path) -> None:
    wheel = make_wheel(tmp_path, archive=Archive(every={"zip64": True}))
    read_clean(repack(wheel, tmp_path / "out", WheelEdit(name="other")).path)


def test_an_output_has_the_mode_of_any_new_file_and_a_replaced_one_keeps_its_own(tmp_path: Path) -> None:
    wheel = make_wheel(tmp_path / "in")
    old = os.umask(0o027)
    try:
        output = repack(wheel, tmp_path / "out", WheelEdit(name="other")).path
    finally:
        os.umask(old)
    assert output.stat().st_mode & 0o777 == 0o640
    output.chmod(0o604)
    repack(output, None, WheelEdit(set=("Summary: new",)), replace=True)
    assert output.stat().st_mode & 0o777 == 0o604


def test_two_data_folders_in_two_spellings_never_lose_a_file(tmp_path: Path) -> None:
    files = {"demo/__init__.py": "x", "Demo-1.0.data/scripts/run": "one", "demo-1.0.data/scripts/run": "two"}
    wheel = make_wheel(tmp_path / "in", files=files)
    outcome = te_wheel("repack", wheel, "-o", tmp_path / "out", "--name", "other")
    assert (outcome.code, outcome.out) == (2, "")
    assert "Demo-1.0.data, demo-1.0.data" in outcome.err
    assert not list(tmp_path.glob("out/*"))


@pytest.mark.parametrize("kind", ["folder", "pipe"])
def test_an_output_path_that_is_no_file_is_refused_even_by_force(kind: str, tmp_path: Path) -> None:
    wheel, target = make_wheel(tmp_path / "in"), tmp_path / "out" / "other-1.0-py3-none-any.whl"
    target.parent.mkdir()
    target.mkdir() if kind == "folder" else os.mkfifo(target)
    outcome = te_wheel("repack", wheel, "-o", target.parent, "--name", "other", "--force")
    assert (outcome.code, outcome.out) == (2, "")
    assert str(target) in outcome.errors[0]
    assert os.listdir(target.parent) == [target.name]
