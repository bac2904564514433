"""What ``repack`` refuses: exit 2, the member and the rule named, no output, the input untouched."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from build_tools.wheels import check_wheel
from build_tools.wheels.rules import RULES
from tests.build_tools.broken_wheels import BROKEN, INFO, MANY_RECORD_FAULTS, Broken
from tests.build_tools.command_line import Outcome, te_wheel
from tests.build_tools.wheel_factory import PACKAGE, make_wheel, metadata_text
from tests.build_tools.wheel_reader import read_right

BLOCKING = [broken for broken in BROKEN if RULES[broken.code].blocks and not broken.hashes]
KEPT = {
    "zip-case-collision",
    "zip-symlink",
    "zip-odd-name",
    "data-scheme",
    "metadata-value",
    "metadata-version-new",
    "metadata-field-repeated",
    "wheel-root",
    "record-no-size",
}
"""What a rewrite carries as it is: the wheel's own choice, or nothing that it may decide."""
PASSING = [broken for broken in BROKEN if not RULES[broken.code].blocks]


def repack_refused(wheel: Path, out: Path, *options: str) -> Outcome:
    """Run ``repack``, which must refuse and leave everything as it was."""
    before = wheel.read_bytes()
    beside = sorted(wheel.parent.iterdir())
    outcome = te_wheel("repack", wheel, "-o", out, *(options or ("--name", "other")))
    assert (outcome.code, outcome.out) == (2, "")
    assert outcome.err.startswith("error: ")
    assert all(line.startswith(("error: ", "hint: ")) for line in outcome.err.splitlines()), outcome.err
    assert wheel.read_bytes() == before
    assert sorted(wheel.parent.iterdir()) == beside
    assert not out.exists() or not list(out.iterdir())
    return outcome


@pytest.mark.parametrize("broken", BLOCKING, ids=[broken.id for broken in BLOCKING])
def test_a_broken_wheel_is_refused_with_the_member_and_the_rule_named(broken: Broken, tmp_path: Path) -> None:
    wheel = broken.make(tmp_path / "in")
    outcome = repack_refused(wheel, tmp_path / "out")
    named = [error for error in outcome.errors if broken.code in error]
    assert named, outcome.err
    assert all(wheel.name in error for error in outcome.errors)
    for text in broken.named:
        assert any(text in error for error in named), outcome.err


@pytest.mark.parametrize("broken", PASSING, ids=[broken.id for broken in PASSING])
def test_a_wheel_that_can_be_rewritten_without_guessing_is_and_comes_out_in_normal_form(
    broken: Broken, tmp_path: Path
) -> None:
    outcome = te_wheel("repack", broken.make(tmp_path / "in"), "-o", tmp_path / "out", "--name", "other")
    assert outcome.code == 0, outcome.err
    left = {finding.code for finding in check_wheel(outcome.out.removesuffix("\n"))}
    assert left == ({broken.code} if broken.code in KEPT else set())


# What the corpus cannot tell alone


def test_x1_both_dist_infos_are_named(tmp_path: Path) -> None:
    wheel = make_wheel(tmp_path / "in", files={**PACKAGE, "bar-1.dist-info/METADATA": "x"})
    (error,) = repack_refused(wheel, tmp_path / "out").errors
    assert "bar-1.dist-info" in error
    assert INFO in error


def test_x2_all_that_is_missing_is_named(tmp_path: Path) -> None:
    files = {**PACKAGE, f"{INFO}/LICENSE": "x"}
    wheel = make_wheel(tmp_path / "in", files=files, omit=["METADATA", "WHEEL", "RECORD"])
    errors = repack_refused(wheel, tmp_path / "out").errors
    assert len(errors) == 3
    for file, error in zip(["METADATA", "WHEEL", "RECORD"], errors, strict=True):
        assert file in error


def test_x3_both_names_are_in_the_message(tmp_path: Path) -> None:
    wheel = make_wheel(tmp_path / "in", name="foo", filename="bar-1.0-py3-none-any.whl")
    errors = repack_refused(wheel, tmp_path / "out").errors
    assert len(errors) == 2
    assert all("foo" in error and "bar" in error for error in errors)


def test_x4_no_character_of_a_member_name_reaches_the_terminal_raw(tmp_path: Path) -> None:
    wheel = make_wheel(tmp_path / "in", files={**PACKAGE, "demo/\x1b[2J\nerror: x.py": "x"})
    outcome = repack_refused(wheel, tmp_path / "out")
    assert "\x1b" not in outcome.err
    assert "\\x1b" in outcome.err
    check = te_wheel("check", wheel)
    assert "\x1b" not in check.out + check.err


def test_x5_names_that_differ_by_case_are_carried_and_are_a_check_error(tmp_path: Path) -> None:
    wheel = make_wheel(tmp_path / "in", files={"Demo/a.py": "1\n", "demo/a.py": "2\n"})
    output = Path(te_wheel("repack", wheel, "-o", tmp_path / "out", "--name", "other").out.strip())
    assert list(read_right(output))[:2] == ["Demo/a.py", "demo/a.py"]
    assert te_wheel("check", output).code == 1


def test_x9_every_fault_of_a_record_is_named_in_one_run(tmp_path: Path) -> None:
    wheel = make_wheel(tmp_path / "in", record=MANY_RECORD_FAULTS)
    errors = repack_refused(wheel, tmp_path / "out").errors
    assert len(errors) == 7
    for text in ("demo/__init__.py", "/etc/x", "demo/two", "demo/gone", "demo/five", "METADATA", "WHEEL"):
        assert any(text in error for error in errors)


X11 = [
    (["--set", "Author: a\nRequires-Dist: evil"], ["Author", r"\n"]),
    *(
        ([option, f"Author: a{character}b"], ["Author", ascii(character)[1:-1]])
        for option in ("--set", "--add")
        for character in "\r\n\v\f\x85\u2028\u2029\0\x1b"
    ),
    (["--name", "a\nb"], [r"'a\nb'"]),
    (["--add", "License-Expression: MIT"], ["License-Expression", "2.4", "2.1"]),
    (["--set", "License-Expression: MIT"], ["License-Expression", "2.4", "2.1"]),
    (["--add", "License-File: LICENSE"], ["License-File", "2.4", "2.1"]),
    (["--add", "Requires-Dist: foo; {x == 'a'"], ["Requires-Dist", "{x == 'a'"]),
    (["--add", "Import-Name: demo"], ["Import-Name", "2.5", "2.1"]),
    (["--add", "Dynamic: Keywords"], ["Dynamic", "2.2", "2.1"]),
    (["--version", "1.0_1"], ["'1.0_1'", "expected"]),
    (["--version", ""], ["''", "expected"]),
    (["--name", "a b"], ["'a b'", "expected"]),
    (["--name", ""], ["''", "expected"]),
    (["--local", "a..b"], ["'a..b'", "expected"]),
    (["--build", "x1"], ["'x1'", "expected"]),
    (["--build", "1-2"], ["'1-2'", "expected"]),
    (["--python-tag", "py3-none"], ["'py3-none'", "expected", "python"]),
    (["--abi-tag", ""], ["''", "expected", "abi"]),
    (["--platform-tag", "any..linux_x86_64"], ["'any..linux_x86_64'", "expected", "platform"]),
]


@pytest.mark.parametrize(("options", "named"), X11, ids=[ascii(" ".join(options)) for options, _ in X11])
def test_x11_an_edit_is_refused_with_the_value_and_what_is_allowed(
    options: list[str], named: list[str], tmp_path: Path
) -> None:
    outcome = repack_refused(make_wheel(tmp_path / "in"), tmp_path / "out", *options)
    for text in named:
        assert text in outcome.err


@pytest.mark.parametrize("version", ["2.4", "2.5"])
def test_x11_a_field_is_added_where_the_metadata_version_knows_it(version: str, tmp_path: Path) -> None:
    text = metadata_text().replace("Metadata-Version: 2.1", f"Metadata-Version: {version}")
    wheel = make_wheel(tmp_path / "in", metadata=text)
    outcome = te_wheel("repack", wheel, "-o", tmp_path / "out", "--add", "License-Expression: mit OR Apache-2.0")
    assert outcome.code == 0, outcome.err
    read_right(Path(outcome.out.strip()))


def test_x11_every_fault_of_a_command_is_named_in_one_run(tmp_path: Path) -> None:
    wheel = make_wheel(tmp_path / "in")
    errors = repack_refused(wheel, tmp_path / "out", "--name", "a b", "--version", "1.0_1", "--build", "x1").errors
    assert len(errors) == 3


@pytest.mark.parametrize("version", ["2.6", "2.9"])
def test_x10_a_greater_minor_metadata_version_is_a_warning(version: str, tmp_path: Path) -> None:
    text = metadata_text().replace("Metadata-Version: 2.1", f"Metadata-Version: {version}")
    outcome = te_wheel("repack", make_wheel(tmp_path / "in", metadata=text), "-o", tmp_path / "out", "--name", "other")
    assert outcome.code == 0
    assert version in outcome.err


# X12: what is no wheel, and where nothing can be written


@pytest.mark.parametrize("command", ["repack", "show", "unpack"])
@pytest.mark.parametrize("kind", ["missing", "folder", "below a file", "empty", "text", "pipe"])
def test_x12_an_input_that_is_no_wheel_is_refused_in_plain_words(command: str, kind: str, tmp_path: Path) -> None:
    path = tmp_path / "demo-1.0-py3-none-any.whl"
    if kind == "folder":
        path.mkdir()
    elif kind == "below a file":
        path.write_text("x")
        path = path / path.name
    elif kind == "pipe":
        os.mkfifo(path)
    elif kind != "missing":
        path.write_text("" if kind == "empty" else "Not Found\n")
    outcome = te_wheel(command, path)
    assert (outcome.code, outcome.out) == (2, "")
    assert path.name in outcome.errors[0]
    assert sorted(tmp_path.iterdir()) == ([] if kind == "missing" else [tmp_path / "demo-1.0-py3-none-any.whl"])


@pytest.mark.parametrize(("kind", "code"), [("missing", 2), ("folder", 2), ("empty", 1), ("text", 1)])
def test_x12_for_check_a_file_that_is_no_wheel_is_a_finding(kind: str, code: int, tmp_path: Path) -> None:
    path = tmp_path / "demo-1.0-py3-none-any.whl"
    if kind == "folder":
        path.mkdir()
    elif kind != "missing":
        path.write_text("" if kind == "empty" else "Not Found\n")
    outcome = te_wheel("check", path)
    assert outcome.code == code
    assert path.name in outcome.out + outcome.err


@pytest.mark.parametrize("kind", ["a file", "below a file", "not allowed"])
def test_x12_a_folder_that_cannot_be_written_is_named(kind: str, tmp_path: Path) -> None:
    wheel = make_wheel(tmp_path / "in")
    out = Path("/proc/te-wheel") if kind == "not allowed" else tmp_path / "out"
    if kind != "not allowed":
        out.write_text("x")
    if kind == "below a file":
        out = out / "deeper"
    outcome = te_wheel("repack", wheel, "-o", out, "--name", "other")
    assert (outcome.code, outcome.out) == (2, "")
    assert str(out) in outcome.errors[0]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_x12_a_read_only_folder_is_named(tmp_path: Path) -> None:
    wheel = make_wheel(tmp_path / "in")
    out = tmp_path / "out"
    out.mkdir(mode=0o555)
    outcome = te_wheel("repack", wheel, "-o", out, "--name", "other")
    assert (outcome.code, outcome.out) == (2, "")
    assert str(out) in outcome.errors[0]


def test_x12_a_real_shell_sees_exit_code_2_and_one_line(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "build_tools", "repack", "missing-1.0-py3-none-any.whl", "--name", "other"]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    run = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert (run.returncode, run.stdout) == (2, "")
    assert run.stderr.startswith("error: ")
    assert len(run.stderr.splitlines()) == 1
