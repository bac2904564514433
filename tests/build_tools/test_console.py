"""What is said to people and to jobs: on stderr, in one line, and never as a terminal's command."""

from __future__ import annotations

from pathlib import Path

import pytest

from build_tools.console import Console, printable
from tests.build_tools.command_line import te_wheel
from tests.build_tools.wheel_factory import make_wheel


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain", "plain"),
        ("Jürgen +1!2.0", "Jürgen +1!2.0"),
        ("a\nb", r"a\nb"),
        ("\x1b[31mred", r"\x1b[31mred"),
        ("\u202egnp.exe", r"\u202egnp.exe"),
        ("\udcff", r"\udcff"),
    ],
)
def test_a_text_is_one_line_that_cannot_steer_a_terminal(text: str, shown: str) -> None:
    assert printable(text) == shown


def test_quiet_says_errors_and_warnings_alone(capsys: pytest.CaptureFixture[str]) -> None:
    console = Console(quiet=True)
    console.say("done")
    console.note("by the way")
    console.warning("odd")
    console.error(["wrong", "worse"], "do this")
    out, err = capsys.readouterr()
    assert out == ""
    assert err.splitlines() == ["warning: odd", "error: wrong", "error: worse", "hint: do this"]


def test_without_a_terminal_there_is_no_colour(capsys: pytest.CaptureFixture[str]) -> None:
    Console().error(["wrong"])
    assert capsys.readouterr().err == "error: wrong\n"


def test_under_github_actions_findings_are_annotations_and_the_summary_is_a_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    summary = tmp_path / "summary.md"
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(summary))
    wheel = make_wheel(tmp_path / "in", filename="other-1.0-py3-none-any.whl")
    outcome = te_wheel("check", wheel)
    assert outcome.code == 1
    annotations = [line for line in outcome.err.splitlines() if line.startswith("::error ")]
    assert len(annotations) == 2
    assert all(f"file={str(wheel).replace(':', '%3A')},title=" in line for line in annotations)
    assert "::" not in outcome.out
    assert "| other-1.0-py3-none-any.whl | 2 | 0 |" in summary.read_text()


def test_an_annotation_cannot_be_broken_out_of(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    Console().annotate("error", "50%\n::set-output name=x::y", file="a,b:c")
    assert capsys.readouterr().err == "::error file=a%2Cb%3Ac::50%25%0A::set-output name=x::y\n"


def test_a_summary_that_cannot_be_written_stops_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(tmp_path / "no" / "such" / "folder"))
    outcome = te_wheel("check", make_wheel(tmp_path))
    assert outcome.code == 0
    assert "summary" in outcome.err
