"""What each edit means, as the exact bytes that come out."""

from __future__ import annotations

import copy
import os
import pickle
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from build_tools.errors import EditError
from build_tools.wheels import WheelEdit, repack
from build_tools.wheels.edit import pattern_regex
from tests.build_tools.command_line import te_wheel
from tests.build_tools.wheel_factory import DATE, PACKAGE, Member, make_wheel, metadata_text
from tests.build_tools.wheel_reader import Read, content, headers, read_right, record_rows

TWO = ["Classifier: A", "Classifier: B", "Keywords: k"]


def edited(folder: Path, *options: str, **description: object) -> dict[str, Read]:
    """The members of ``make_wheel(**description)`` after ``repack`` with these options."""
    wheel = make_wheel(folder / "in", **description)  # type: ignore[arg-type]
    outcome = te_wheel("repack", wheel, "-o", folder / "out", *options)
    assert outcome.code == 0, outcome.err
    return read_right(Path(outcome.out.removesuffix("\n")))


def metadata(members: dict[str, Read]) -> str:
    return content(members, ".dist-info/METADATA").decode()


def refused(folder: Path, *options: str, **description: object) -> list[str]:
    """The errors of a ``repack`` that must not be."""
    wheel = make_wheel(folder / "in", **description)  # type: ignore[arg-type]
    before = wheel.read_bytes()
    outcome = te_wheel("repack", wheel, "-o", folder / "out", *options)
    assert (outcome.code, outcome.out) == (2, "")
    assert not list(folder.glob("out/*"))
    assert wheel.read_bytes() == before
    assert outcome.errors
    return outcome.errors


# Version and local label


@pytest.mark.parametrize(
    ("old", "options", "new"),
    [
        ("1.0", ["--version", "1.1"], "1.1"),
        ("1.0+cpu", ["--version", "1.1"], "1.1"),
        ("1.0+cpu", ["--version", "1.1+CU_128"], "1.1+cu.128"),
        ("1.0+cpu", ["--version", "1.1", "--local", "cu128"], "1.1+cu128"),
        ("1.0+cpu", ["--version", "1.1", "--local", ""], "1.1"),
        ("1.0", ["--local", "CU-128"], "1.0+cu.128"),
        ("1.0+cpu", ["--local", "cu128"], "1.0+cu128"),
        ("1.0+cpu", ["--local", ""], "1.0"),
        ("1.0", ["--local", ""], "1.0"),
        ("1.0+cpu", ["--name", "demo"], "1.0+cpu"),
        ("1.0", ["--version", " v1.0-RC1 "], "1.0rc1"),
    ],
)
def test_a_version_is_set_whole_and_a_label_replaced(old: str, options: list[str], new: str, tmp_path: Path) -> None:
    assert metadata(edited(tmp_path, *options, version=old)) == metadata_text("demo", new)


@pytest.mark.parametrize("local", ["cu128", "cpu", ""])
def test_a_version_with_a_label_beside_a_label_is_refused(local: str, tmp_path: Path) -> None:
    (error,) = refused(tmp_path, "--version", "1.1+cpu", "--local", local)
    assert "'1.1+cpu'" in error


# Build tag and tags


@pytest.mark.parametrize(
    ("old", "new", "expected"), [("", "7", ["7"]), ("7", "8_x", ["8_x"]), ("7", "", None), ("", "", None)]
)
def test_a_build_tag_is_set_replaced_and_removed(
    old: str, new: str, expected: list[str] | None, tmp_path: Path
) -> None:
    members = edited(tmp_path, "--build", new, build=old)
    assert headers(content(members, ".dist-info/WHEEL")).get_all("Build") == expected


def test_a_dot_joined_tag_is_a_set_and_makes_the_full_product(tmp_path: Path) -> None:
    members = edited(tmp_path, "--python-tag", "py3.py2", "--platform-tag", "win32.any")
    assert headers(content(members, ".dist-info/WHEEL")).get_all("Tag") == [
        "py2-none-any",
        "py2-none-win32",
        "py3-none-any",
        "py3-none-win32",
    ]


@pytest.mark.parametrize("purelib", ["true", "TRUE", "false"])
def test_generator_and_root_is_purelib_stay(purelib: str, tmp_path: Path) -> None:
    lines = f"Wheel-Version: 1.0\nGenerator: someone (1.0)\nRoot-Is-Purelib: {purelib}\nX-Other: y\n"
    members = edited(tmp_path, "--platform-tag", "linux_x86_64", wheel=f"{lines}Tag: py3-none-any\n")
    assert content(members, ".dist-info/WHEEL").decode() == f"{lines}Tag: py3-none-linux_x86_64\n"


# Header lines


@pytest.mark.parametrize(
    ("options", "lines"),
    [
        (["--set", "Classifier: C"], ["Classifier: C", "Keywords: k"]),
        (["--set", "classifier: C"], ["Classifier: C", "Keywords: k"]),
        (["--set", "Classifier: B"], ["Classifier: B", "Keywords: k"]),
        (["--set", "Keywords: new, and: a colon"], ["Classifier: A", "Classifier: B", "Keywords: new, and: a colon"]),
        (["--add", "Classifier: B"], TWO),
        (["--add", "Classifier: C"], ["Classifier: A", "Classifier: B", "Classifier: C", "Keywords: k"]),
        (["--add", "Classifier: C", "--add", "Classifier: D"], [*TWO[:2], "Classifier: C", "Classifier: D", TWO[2]]),
        (["--add", "Classifier: C", "--add", "Classifier: C"], [*TWO[:2], "Classifier: C", TWO[2]]),
        (["--remove", "Classifier"], ["Keywords: k"]),
        (["--remove", "CLASSIFIER", "--remove", "keywords"], []),
        (["--remove", "Classifier", "--add", "Classifier: C"], ["Keywords: k", "Classifier: C"]),
    ],
    ids=" ".join,
)
def test_set_replaces_all_lines_add_follows_the_last_and_remove_takes_all(
    options: list[str], lines: list[str], tmp_path: Path
) -> None:
    # No Description-Content-Type behind them: a field that is new stands last of all headers.
    head = "Metadata-Version: 2.1\nName: demo\nVersion: 1.0\n"
    body = "\nClassifier: in the description\n"
    members = edited(tmp_path, *options, metadata=head + "".join(f"{line}\n" for line in TWO) + body)
    assert metadata(members) == head + "".join(f"{line}\n" for line in lines) + body


@pytest.mark.parametrize("option", ["--set", "--add"])
def test_a_field_that_is_new_stands_last(option: str, tmp_path: Path) -> None:
    members = edited(tmp_path, option, "Requires-Python: >=3.11")
    head, body = metadata_text().split("\n\n", 1)
    assert metadata(members) == f"{head}\nRequires-Python: >=3.11\n\n{body}"


def test_several_set_lines_of_one_field_replace_it_together(tmp_path: Path) -> None:
    options = ("--set", "Classifier: C", "--set", "Classifier: D", "--set", "Classifier: E")
    members = edited(tmp_path, *options, headers=TWO)
    assert metadata(members) == metadata_text(
        headers=["Classifier: C", "Classifier: D", "Classifier: E", "Keywords: k"]
    )


@pytest.mark.parametrize("end", ["\r\n", "\n"])
@pytest.mark.parametrize("tail", ["", "END", "END" + "END" + "text"])
def test_a_new_line_ends_as_the_others_do(end: str, tail: str, tmp_path: Path) -> None:
    head = end.join(["Metadata-Version: 2.1", "Name: demo", "Version: 1.0", "Summary: s"])
    tail = tail.replace("END", end)
    members = edited(tmp_path, "--add", "Classifier: C", metadata=head + tail)
    added = metadata(members).removeprefix(f"{head}{end}Classifier: C")
    assert added in ([tail] if tail else ["", end])


@pytest.mark.parametrize(
    ("options", "named"),
    [
        (["--add", "Keywords: other"], "Keywords"),
        (["--set", "Keywords: a", "--set", "Keywords: b"], "eywords"),
        (["--set", "Metadata-Version: 2.4"], "Metadata-Version"),
        (["--add", "Metadata-Version: 2.4"], "Metadata-Version"),
        (["--remove", "Metadata-Version"], "Metadata-Version"),
        (["--set", "Name: other"], "Name"),
        (["--remove", "Name"], "Name"),
        (["--set", "Version: 2"], "Version"),
        (["--remove", "Version"], "Version"),
        (["--set", "Classifier"], "'Classifier'"),
        (["--set", ": x"], "': x'"),
        (["--set", "Class ifier: x"], "'Class ifier: x'"),
        (["--add", "Requires-Dist: torch>=>2"], "torch>=>2"),
        (["--set", "Requires-Dist: a b"], "a b"),
        (["--set", "Requires-Python: three"], "three"),
    ],
    ids=" ".join,
)
def test_a_header_edit_that_would_break_metadata_is_refused(options: list[str], named: str, tmp_path: Path) -> None:
    assert named in "".join(refused(tmp_path, *options, headers=TWO))


def test_every_fault_of_an_edit_is_named_in_one_go() -> None:
    with pytest.raises(EditError) as caught:
        WheelEdit(name="a b", version="1.0_1", build="x1", python_tag="py3-none", add=["Requires-Dist: >="])
    assert isinstance(caught.value, ValueError)
    for text in ("'a b'", "'1.0_1'", "'x1'", "'py3-none'", ">="):
        assert any(text in fault for fault in caught.value.faults)


# Requirements on itself


@pytest.mark.parametrize(
    ("options", "old", "new"),
    [
        ("--version 1.1", "demo[gpu]==1.0; extra == 'all'", "demo[gpu]==1.1; extra == 'all'"),
        ("--version 1.1", "demo[gpu] == 1.0", "demo[gpu] == 1.1"),
        ("--version 1.1", "demo [gpu] (==1.0.0)", "demo [gpu] (==1.1)"),
        ("--version 1.1", "Demo[gpu]==1.0", "Demo[gpu]==1.1"),
        ("--version 1.1+cu1", "demo[gpu]==1.0", "demo[gpu]==1.1"),
        ("--version 1.1", "demo[gpu]>=1.0", None),
        ("--version 1.1", "demo[gpu]~=1.0", None),
        ("--version 1.1", "demo[gpu]!=1.0", None),
        ("--version 1.1", "demo[gpu]==0.9", None),
        ("--version 1.1", "demo[gpu]===1.0", None),
        ("--version 1.1", "demo[gpu]==1.*", None),
        ("--version 1.1", "other==1.0", None),
        ("--version 1.1", "demo-other==1.0", None),
        ("--version 1.1", "demo[gpu]; python_version == '1.0'", None),
        ("--local cu1", "demo[gpu]==1.0", None),
        ("--name X.y", "demo[gpu]==1.0", "X.y[gpu]==1.0"),
        ("--name X.y", "DEMO[gpu]", "X.y[gpu]"),
        ("--name X.y", "demolition; extra == 'demo'", None),
        ("--name X.y --version 2", "demo[a,b]==1.0,!=0.5 ; extra == 'c'", "X.y[a,b]==2,!=0.5 ; extra == 'c'"),
        ("--build 1", "demo[gpu]==1.0", None),
    ],
)
def test_a_requirement_on_itself_follows_the_name_and_an_exact_pin_the_version(
    options: str, old: str, new: str | None, tmp_path: Path
) -> None:
    wheel = make_wheel(tmp_path, headers=[f"Requires-Dist: {old}", "Requires-Dist: numpy"])
    words = options.split()
    edit = WheelEdit(**{key.removeprefix("--"): value for key, value in zip(words[::2], words[1::2], strict=True)})
    repacked = repack(wheel, tmp_path / "out", edit)
    lines = headers(content(read_right(repacked.path), ".dist-info/METADATA")).get_all("Requires-Dist")
    assert lines == [new or old, "numpy"]
    reported = [(change.old, change.new) for change in repacked.changes if change.field == "Requires-Dist"]
    assert reported == ([(old, new)] if new else [])


# Files


def test_an_added_file_follows_the_payload_and_is_recorded(tmp_path: Path) -> None:
    source = tmp_path / "a=b.txt"
    source.write_bytes(b"notice\n" * 50)
    source.chmod(0o600)
    members = edited(tmp_path, "--add-file", f"{source}=demo/NOTICE.txt")
    assert list(members)[:2] == ["demo/__init__.py", "demo/NOTICE.txt"]
    added = members["demo/NOTICE.txt"]
    assert (added.data, added.mode, added.date) == (source.read_bytes(), 0o100644, DATE)


@pytest.mark.parametrize("mode", [0o700, 0o755, 0o711, 0o100, 0o654])
def test_an_executable_file_is_added_as_one(mode: int, tmp_path: Path) -> None:
    source = tmp_path / "run"
    source.write_bytes(b"#!/bin/sh\n")
    source.chmod(mode)
    assert edited(tmp_path, "--add-file", f"{source}=demo/run")["demo/run"].mode == 0o100755


def test_source_date_epoch_is_the_time_of_an_added_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1767225600")
    source = tmp_path / "x.txt"
    source.write_text("x")
    assert edited(tmp_path, "--add-file", f"{source}=demo/x.txt")["demo/x.txt"].date == (2026, 1, 1, 0, 0, 0)


def test_an_added_file_replaces_a_member_in_place_and_says_so(tmp_path: Path) -> None:
    source = tmp_path / "new.py"
    source.write_bytes(b"VALUE = 2\n")
    wheel = make_wheel(tmp_path, files={**PACKAGE, "demo/z.py": ""})
    repacked = repack(wheel, tmp_path / "out", WheelEdit(add_file=(f"{source}=demo/__init__.py",)))
    members = read_right(repacked.path)
    assert list(members)[:2] == ["demo/__init__.py", "demo/z.py"]
    assert members["demo/__init__.py"].data == b"VALUE = 2\n"
    (change,) = (change for change in repacked.changes if change.where == "files")
    assert change.field == "demo/__init__.py"
    assert None not in (change.old, change.new)


@pytest.mark.parametrize(
    "target",
    [
        "demo-1.0.dist-info/METADATA",
        "demo-1.0.dist-info/WHEEL",
        "demo-1.0.dist-info/RECORD",
        "../evil.py",
        "/etc/x",
        "demo/../../x",
        "a\\b",
        "C:/x",
        "demo/",
        "demo/__init__.py/x",
        "",
    ],
)
def test_a_destination_that_is_taken_or_unsafe_is_refused(target: str, tmp_path: Path) -> None:
    source = tmp_path / "x.txt"
    source.write_text("x")
    (error,) = refused(tmp_path, "--add-file", f"{source}={target}")
    assert (repr(target) if "\\" in target else target) in error


@pytest.mark.parametrize("kind", ["missing", "folder"])
def test_a_source_that_is_no_file_is_refused_and_named(kind: str, tmp_path: Path) -> None:
    source = tmp_path / "source"
    if kind == "folder":
        source.mkdir()
    assert str(source) in refused(tmp_path, "--add-file", f"{source}=demo/x")[0]


@pytest.mark.parametrize(
    ("pattern", "left"),
    [
        ("demo/a.py", ["demo/__init__.py", "demo/sub/b.py", "demo/sub/deep/c.py", "demo/sub/d.txt"]),
        ("demo/*.py", ["demo/sub/b.py", "demo/sub/deep/c.py", "demo/sub/d.txt"]),
        ("demo/*/*.py", ["demo/__init__.py", "demo/a.py", "demo/sub/deep/c.py", "demo/sub/d.txt"]),
        ("demo/**/*.py", ["demo/sub/d.txt"]),
        ("**/*.txt", ["demo/__init__.py", "demo/a.py", "demo/sub/b.py", "demo/sub/deep/c.py"]),
        ("demo/sub/**", ["demo/__init__.py", "demo/a.py"]),
    ],
)
def test_a_removed_file_is_gone_from_archive_and_record(pattern: str, left: list[str], tmp_path: Path) -> None:
    files = ["demo/__init__.py", "demo/a.py", "demo/sub/b.py", "demo/sub/deep/c.py", "demo/sub/d.txt"]
    members = edited(tmp_path, "--remove-file", pattern, files=dict.fromkeys(files, "x\n"))
    assert [name for name in members if name.startswith("demo/")] == left
    assert [row[0] for row in record_rows(members)] == list(members)


@pytest.mark.parametrize("pattern", ["demo", "a.py", "*.py", "emo/__init__.py", "demo/__init__", "nothing/**"])
def test_a_pattern_that_matches_no_whole_path_is_refused(pattern: str, tmp_path: Path) -> None:
    assert pattern in refused(tmp_path, "--remove-file", pattern)[0]


@pytest.mark.parametrize("file", ["METADATA", "WHEEL", "RECORD"])
def test_the_three_files_of_every_wheel_cannot_be_removed(file: str, tmp_path: Path) -> None:
    assert file in refused(tmp_path, "--remove-file", f"demo-1.0.dist-info/{file}")[0]


def test_a_pattern_that_matches_everything_leaves_the_three_files(tmp_path: Path) -> None:
    wheel = make_wheel(tmp_path / "in", files={**PACKAGE, "demo/run": Member("x", mode=0o755)})
    outcome = te_wheel("repack", wheel, "-o", tmp_path / "out", "--remove-file", "**")
    if outcome.code == 0:
        assert len(read_right(Path(outcome.out.strip()))) == 3
    else:
        assert "METADATA" in outcome.errors[0]


def plain_regex(pattern: str) -> str:
    """What a member pattern means, one wildcard after the other."""
    meanings = {"**/": "(.*/)?", "**": ".*", "*": "[^/]*", "?": "[^/]"}
    pieces = re.findall(r"(?<![^/])\*\*/|\*\*|[^*?]|[*?]", re.sub(r"\*{3,}", "**", pattern))
    return "".join(meanings.get(piece) or re.escape(piece) for piece in pieces) + "/?"


@given(st.lists(st.sampled_from(["a", "b", "/", "*", "?", "**", "**/"]), max_size=7), st.text("ab/\n", max_size=9))
def test_a_pattern_means_what_its_wildcards_mean_one_after_the_other(pieces: list[str], member: str) -> None:
    pattern = "".join(pieces)
    expected = re.fullmatch(plain_regex(pattern), member, re.DOTALL)
    assert bool(pattern_regex(pattern).match(member)) == bool(expected)


@pytest.mark.parametrize("pattern", ["*a" * 20 + "b", "**a" * 9 + "b", "**/a*" * 9 + "b"])
def test_many_wildcards_do_not_take_for_ever(pattern: str) -> None:
    assert not pattern_regex(pattern).match("a" * 2000)
    assert not pattern_regex(pattern).match("a/" * 1000)


def test_set_and_add_of_one_field_both_count(tmp_path: Path) -> None:
    members = edited(tmp_path, "--set", "Classifier: C", "--add", "Classifier: D", headers=TWO)
    assert headers(content(members, ".dist-info/METADATA")).get_all("Classifier") == ["C", "D"]


def test_an_edit_is_copied_pickled_and_changed_as_a_value() -> None:
    edit = WheelEdit(name="other", add=["Requires-Dist: numpy"])
    assert copy.deepcopy(edit) == pickle.loads(pickle.dumps(edit)) == edit
    assert edit._replace(local="cu1") == WheelEdit(name="other", local="cu1", add=["Requires-Dist: numpy"])
    with pytest.raises(EditError, match="a b"):
        edit._replace(name="a b")


def test_a_file_in_place_of_a_folder_of_the_wheel_is_refused(tmp_path: Path) -> None:
    source = tmp_path / "x.txt"
    source.write_text("x")
    (fault,) = refused(tmp_path, "--add-file", f"{source}=demo")
    assert "demo" in fault


def test_a_folder_or_a_pipe_cannot_be_added(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for source in (tmp_path, tmp_path / "pipe"):
        assert refused(tmp_path, "--add-file", f"{source}=demo/x") == [
            f"{str(source)!r} is no regular file, so it cannot be added"
        ]
