"""What `te-wheel diff` finds between two wheels, and what it passes over."""

from __future__ import annotations

import os
import pty
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from build_tools.wheels import WheelEdit, diff_wheels, repack
from tests.build_tools.command_line import te_wheel
from tests.build_tools.wheel_factory import PACKAGE, STORED, Archive, Member, digest, make_wheel, symlink

ROOT = Path(__file__).parents[2]


def differences(folder: Path, old: dict[str, Any], new: dict[str, Any]) -> list[str]:
    """What differs between two wheels of one name."""
    return [str(change) for change in diff_wheels(make_wheel(folder / "a", **old), make_wheel(folder / "b", **new))]


def files(**content: Any) -> dict[str, Any]:
    return {"files": {**PACKAGE, **{f"demo/{name}": data for name, data in content.items()}}}


def test_a_wheel_does_not_differ_from_itself(tmp_path: Path) -> None:
    wheel = make_wheel(tmp_path)
    outcome = te_wheel("diff", wheel, wheel)
    assert (outcome.code, outcome.out, outcome.err) == (0, "", "no differences\n")


@pytest.mark.parametrize(
    "archive",
    [
        Archive(every={"date": (2001, 2, 3, 4, 5, 6)}),
        Archive(every={"method": STORED}),
        Archive(every={"streamed": True, "comment": b"c"}),
    ],
    ids=["times", "compression", "form"],
)
def test_times_compression_and_the_form_of_the_archive_do_not_count(archive: Archive, tmp_path: Path) -> None:
    assert differences(tmp_path, {}, {"archive": archive}) == []


def test_the_order_of_members_and_headers_does_not_count(tmp_path: Path) -> None:
    old = {**files(a="1", b="2"), "headers": ["Keywords: k", "Author: x"]}
    new = {**files(b="2", a="1"), "headers": ["Author: x", "Keywords: k"]}
    assert differences(tmp_path, old, new) == []


def test_files_are_added_removed_and_changed_by_content_mode_and_kind(tmp_path: Path) -> None:
    old = files(gone="x", same="s", text="old", run=Member("r", mode=0o644), link="target", empty="")
    new = files(same="s", text="new!", run=Member("r", mode=0o755), link=symlink("target"), empty="", come="y")
    found = [re.sub(r"sha256=\S+", "#", line) for line in differences(tmp_path, old, new)]
    assert found == [
        "files demo/gone: - -rw-r--r-- 1 bytes #",
        "files demo/text: -rw-r--r-- 3 bytes # -> -rw-r--r-- 4 bytes #",
        "files demo/run: -rw-r--r-- 1 bytes # -> -rwxr-xr-x 1 bytes #",
        "files demo/link: -rw-r--r-- 6 bytes # -> lrwxrwxrwx 6 bytes #",
        "files demo/come: + -rw-r--r-- 1 bytes #",
    ]


def test_a_file_of_the_same_size_with_other_bytes_is_found(tmp_path: Path) -> None:
    (line,) = differences(tmp_path, files(a="one"), files(a="two"))
    assert line.startswith("files demo/a: ")


def test_fields_tags_requirements_and_the_description_are_compared(tmp_path: Path) -> None:
    old = {"headers": ["Requires-Dist: a", "Requires-Dist: b"], "tags": "py3-none-any"}
    new = {"headers": ["Requires-Dist: a", "Requires-Dist: c"], "tags": "py2.py3-none-any", "version": "2"}
    a, b = make_wheel(tmp_path / "a", **old), make_wheel(tmp_path / "b", **new)  # type: ignore[arg-type]
    assert [str(change) for change in diff_wheels(a, b)] == [
        "filename name: demo-1.0-py3-none-any.whl -> demo-2-py2.py3-none-any.whl",
        "folder dist-info: demo-1.0.dist-info -> demo-2.dist-info",
        "METADATA Version: 1.0 -> 2",
        "METADATA Requires-Dist: b -> c",
        "WHEEL Tag: + py2-none-any",
    ]
    text = "Metadata-Version: 2.1\nName: demo\nVersion: 1.0\n"
    (line,) = differences(tmp_path / "text", {"metadata": text + "\nold\n"}, {"metadata": text + "\nnew\n"})
    assert re.fullmatch(r"METADATA description: 5 bytes crc32=\w{8} -> 5 bytes crc32=\w{8}", line)


def test_files_that_an_edit_adds_and_removes_are_told_as_they_are_found(tmp_path: Path) -> None:
    source = tmp_path / "run"
    source.write_text("new")
    source.chmod(0o755)
    wheel = make_wheel(
        tmp_path / "in", **files(a="old", b="x", c="y"), dist_info_files={"RECORD.jws": "{}", "RECORD.p7s": "x"}
    )
    edit = WheelEdit(
        name="other",
        add_file=(f"{source}=demo/z", f"{source}=demo/a", f"{source}=demo-1.0.data/scripts/run"),
        remove_file=("demo/c", "demo/b"),
    )
    done = repack(wheel, tmp_path / "out", edit)
    assert diff_wheels(wheel, done.path) == done.changes
    assert [change.field for change in done.changes if change.where == "files"] == [
        "demo/b", "demo/c", "demo-1.0.dist-info/RECORD.jws", "demo-1.0.dist-info/RECORD.p7s",
        "demo/a", "demo/z", "other-1.0.data/scripts/run",
    ]  # fmt: skip


def test_a_digest_of_another_kind_is_no_difference_where_the_bytes_are_the_same(tmp_path: Path) -> None:
    wheel = make_wheel(tmp_path / "a", **files(a="1"))
    longer = [["demo/a", digest(b"1", "sha512"), "1"]]
    other = make_wheel(
        tmp_path / "b", **files(a="1"), record=lambda rows: longer + [r for r in rows if r[0] != "demo/a"]
    )
    assert diff_wheels(wheel, other) == ()


def test_json_gives_the_same_facts(tmp_path: Path) -> None:
    a, b = make_wheel(tmp_path / "a", **files(x="1")), make_wheel(tmp_path / "b")
    outcome = te_wheel("diff", a, b, "--json")
    assert outcome.code == 1
    (change,) = diff_wheels(a, b)
    assert outcome.json == {
        "a": str(a),
        "b": str(b),
        "differences": [{"where": "files", "field": "demo/x", "old": change.old, "new": None}],
    }


def test_a_file_that_is_no_wheel_is_exit_2_with_every_reason(tmp_path: Path) -> None:
    wheel, text = make_wheel(tmp_path), tmp_path / "other-1.0-py3-none-any.whl"
    text.write_text("no wheel")
    for pair in ((wheel, text), (text, wheel)):
        outcome = te_wheel("diff", *pair)
        assert (outcome.code, outcome.out) == (2, "")
        assert any(text.name in fault for fault in outcome.errors)
    assert te_wheel("diff", wheel, tmp_path / "missing.whl").code == 2


def test_a_wheel_that_disagrees_with_itself_can_be_compared(tmp_path: Path) -> None:
    a = make_wheel(tmp_path / "a")
    b = make_wheel(tmp_path / "b", filename="demo-1.0+cu130-py3-none-any.whl")
    assert [str(change) for change in diff_wheels(a, b)] == [
        "filename name: demo-1.0-py3-none-any.whl -> demo-1.0+cu130-py3-none-any.whl"
    ]


def test_colour_is_for_a_terminal_alone(tmp_path: Path) -> None:
    a, b = make_wheel(tmp_path / "a", **files(x="1")), make_wheel(tmp_path / "b")
    command = [sys.executable, "-m", "build_tools", "diff", str(a), str(b)]
    master, slave = pty.openpty()
    environment = {key: value for key, value in os.environ.items() if key != "NO_COLOR"}
    subprocess.run(command, cwd=ROOT, stdout=slave, stderr=subprocess.DEVNULL, env=environment)
    subprocess.run(command, cwd=ROOT, stdout=slave, stderr=subprocess.DEVNULL, env={**environment, "NO_COLOR": "1"})
    os.close(slave)
    coloured, plain = os.read(master, 10_000).decode().splitlines()
    os.close(master)
    assert coloured == f"\x1b[31m{plain}\x1b[0m"


def wrong_record(rows: list[list[str]]) -> list[list[str]]:
    """RECORD that still has the digest of what PACKAGE holds."""
    right = digest(b"VALUE = 1\n")
    return [[path, right if path == "demo/__init__.py" else other, size] for path, other, size in rows]


def test_a_file_that_changed_behind_a_record_that_did_not_is_told(tmp_path: Path) -> None:
    patched = {"files": {"demo/__init__.py": "VALUE = 2\n"}, "record": wrong_record}
    (line,) = differences(tmp_path, {}, patched)
    assert line.startswith("files demo/__init__.py: ")
    assert line.endswith(digest(b"VALUE = 2\n"))


def test_a_repaired_record_is_no_difference_between_files_and_only_repack_tells_of_it(tmp_path: Path) -> None:
    patched = make_wheel(tmp_path, files={"demo/__init__.py": "VALUE = 2\n"}, record=wrong_record)
    made = repack(patched, tmp_path / "out", WheelEdit(repair=True), verify="hashes")
    assert {change.where for change in made.changes} == {"RECORD"}
    assert diff_wheels(patched, made.path) == ()


@pytest.mark.parametrize("text", ["VALUE = 1\n", "VALUE = 2\n"])
def test_a_file_put_in_the_place_of_one_that_record_is_wrong_about_is_told_by_its_data(
    text: str, tmp_path: Path
) -> None:
    patched = make_wheel(tmp_path, files={"demo/__init__.py": "VALUE = 2\n"}, record=wrong_record)
    (tmp_path / "new.py").write_text(text)
    edit = WheelEdit(add_file=[f"{tmp_path / 'new.py'}=demo/__init__.py"])
    made = repack(patched, tmp_path / "out", edit)
    assert made.changes == diff_wheels(patched, made.path)
    assert len(made.changes) == (text != "VALUE = 2\n")
