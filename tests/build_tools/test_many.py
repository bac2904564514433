"""Many wheels in one run: which files are meant, in which order results come, and what a terminal is shown."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from build_tools.console import Console
from build_tools.errors import FileError, ReleaseError
from build_tools.parallel import in_order, require_running
from build_tools.progress import Progress
from build_tools.wheels.archive import Archive
from build_tools.wheels.member import Member
from build_tools.wheels.selection import select_files
from tests.build_tools.command_line import te_wheel
from tests.build_tools.wheel_factory import make_wheel

ROOT = Path(__file__).parents[2]


def make_wheels(folder: Path, count: int) -> list[Path]:
    return [make_wheel(folder, name=f"demo{number:02}") for number in range(count)]


# Which files


def test_a_folder_stands_for_its_wheels_sorted_and_none_comes_twice(tmp_path: Path) -> None:
    wheels = make_wheels(tmp_path / "in", 3)
    (tmp_path / "in" / "notes.txt").write_text("")
    (tmp_path / "in" / ".hidden.whl").write_text("")
    (tmp_path / "in" / "folder.whl").mkdir()
    other = make_wheel(tmp_path)
    assert select_files([other, tmp_path / "in", wheels[1], tmp_path / "in" / ".." / "in" / wheels[0].name]) == [
        other, *wheels
    ]  # fmt: skip


@pytest.mark.parametrize("command", ["repack", "show", "check"])
def test_a_folder_without_a_wheel_and_a_pattern_that_matches_nothing_are_errors(command: str, tmp_path: Path) -> None:
    wheel = make_wheel(tmp_path / "in")
    (tmp_path / "empty").mkdir()
    for wrong in (tmp_path / "empty", tmp_path / "*.whl", tmp_path / "demo-[0-9].whl"):
        outcome = te_wheel(command, wheel, wrong, *(["--name", "other"] if command == "repack" else []))
        assert (outcome.code, outcome.out) == (2, "")
        assert str(wrong) in outcome.errors[0]
    assert os.listdir(tmp_path / "in") == [wheel.name]


def test_a_file_whose_name_is_a_pattern_is_that_file(tmp_path: Path) -> None:
    odd = make_wheel(tmp_path).rename(tmp_path / "demo-[1]-py3-none-any.whl")
    assert select_files([odd]) == [odd]


# In which order


@pytest.mark.parametrize("jobs", [1, 2, 7, None])
def test_results_come_in_the_order_of_the_inputs_whatever_ends_first(jobs: int | None) -> None:
    last_is_done = threading.Event()

    def work(number: int) -> int:
        if number == 0 and (jobs or 2) > 1:
            assert last_is_done.wait(60)  # the first input ends behind another
        if number == 1:
            last_is_done.set()
        if number == 3:
            raise FileError("three")
        return number * number

    done = list(in_order(work, range(9), jobs if jobs != 1 else 1))
    assert [number for number, _ in done] == list(range(9))
    assert [result for number, result in done if number != 3] == [n * n for n in range(9) if n != 3]
    assert isinstance(done[3][1], ReleaseError)


@pytest.mark.parametrize("jobs", [1, 3])
def test_another_error_ends_the_run_and_nothing_new_is_started(jobs: int) -> None:
    before = set(threading.enumerate())  # others may have left some
    started: list[int] = []

    def work(number: int) -> None:
        started.append(number)
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        list(in_order(work, range(1000), jobs))
    assert len(started) <= 2 * jobs + jobs
    assert not [thread for thread in set(threading.enumerate()) - before if "ThreadPool" in thread.name]


@pytest.mark.parametrize("jobs", ["1", "3", "64"])
def test_repack_prints_in_input_order_and_the_bytes_do_not_depend_on_the_jobs(jobs: str, tmp_path: Path) -> None:
    wheels = make_wheels(tmp_path / "in", 12)
    broken = tmp_path / "in" / "broken-1.0-py3-none-any.whl"
    broken.write_text("no wheel")
    outcome = te_wheel(
        "repack", wheels[3], broken, tmp_path / "in", "-o", tmp_path / "out", "--local", "x", "--jobs", jobs
    )
    expected = [wheels[3], *wheels[:3], *wheels[4:]]
    assert outcome.code == 2
    assert outcome.lines == [str(tmp_path / "out" / w.name.replace("1.0", "1.0+x")) for w in expected]
    assert outcome.errors == [
        "broken-1.0-py3-none-any.whl: not a zip archive: the file starts with b'no wheel' [zip-not-a-zip]"
    ]
    alone = te_wheel("repack", wheels[5], "-o", tmp_path / "alone", "--local", "x")
    made = Path(alone.out.strip())
    assert (tmp_path / "out" / made.name).read_bytes() == made.read_bytes()


@pytest.mark.parametrize("command", ["show", "check"])
def test_show_and_check_list_every_input_in_order(command: str, tmp_path: Path) -> None:
    wheels = make_wheels(tmp_path / "in", 9)
    listed = te_wheel(command, tmp_path / "in", tmp_path / "gone.whl", "--json", "--jobs", "4")
    assert listed.code == 2
    assert [entry["path"] for entry in listed.json] == [str(path) for path in [*wheels, tmp_path / "gone.whl"]]


@pytest.mark.parametrize("jobs", ["0", "-1", "x", "1.5", ""])
def test_a_wrong_number_of_jobs_is_refused(jobs: str, tmp_path: Path) -> None:
    outcome = te_wheel("show", make_wheel(tmp_path), f"--jobs={jobs}")
    assert (outcome.code, outcome.out) == (2, "")
    assert "--jobs" in outcome.errors[0]


# What a terminal is shown


class Terminal:
    """A pseudo terminal, and what was written to it."""

    def __init__(self) -> None:
        self.master, self.slave = pty.openpty()

    def read(self) -> str:
        os.close(self.slave)
        parts = []
        while True:
            try:
                part = os.read(self.master, 65536)
            except OSError:
                break
            if not part:
                break
            parts.append(part)
        os.close(self.master)
        return b"".join(parts).decode()


def test_the_line_tells_files_bytes_and_what_is_running_and_is_taken_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    terminal = Terminal()
    monkeypatch.setattr("build_tools.progress._PATIENCE", 0.0)
    monkeypatch.setattr("build_tools.progress._PERIOD", 0.001)
    files = [tmp_path / "a.whl", tmp_path / "b\x1b.whl"]
    for file in files:
        file.write_bytes(bytes(1500))
    with open(terminal.slave, "w", closefd=False) as stream:
        monkeypatch.setattr(sys, "stderr", stream)
        with Progress(files) as progress:
            with progress.at(files[0]):
                pass
            with progress.at(files[1]):
                assert progress.line == "1 of 2 files, 1.5 kB of 3.0 kB: b\x1b.whl"
                progress.hide()
                while not progress._ticker or not progress._ticker._shown:
                    pass
        stream.flush()
        monkeypatch.undo()
    shown = terminal.read()
    assert "1 of 2 files, 1.5 kB of 3.0 kB: b?.whl" in shown
    assert shown.endswith("\r\x1b[K")


def test_a_short_run_and_a_pipe_show_no_line(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "build_tools", "check", str(make_wheel(tmp_path))]
    terminal = Terminal()
    subprocess.run(command, cwd=ROOT, stderr=terminal.slave, stdout=subprocess.DEVNULL, check=True)
    assert "of 1 files" not in terminal.read()
    piped = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert "\x1b" not in piped.stderr


# What is interrupted


def test_what_runs_in_other_threads_ends_soon_after_an_interrupt() -> None:
    started, ended = threading.Barrier(3), []

    def work(number: int) -> None:
        if number:
            started.wait(60)
            try:
                while True:  # as one that reads a file without an end
                    require_running()
            finally:
                ended.append(number)
        else:
            started.wait(60)

    done = in_order(work, range(3), jobs=3)
    assert next(done) == (0, None)
    with pytest.raises(KeyboardInterrupt):
        done.throw(KeyboardInterrupt)  # type: ignore[attr-defined]
    assert sorted(ended) == [1, 2]
    require_running()  # this thread goes on


@pytest.mark.parametrize("command", [["check", "--hashes"], ["repack", "--verify", "hashes", "-o", "out"]])
def test_an_interrupt_of_many_jobs_is_heard_inside_a_wheel(
    command: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    wheels = [make_wheel(tmp_path, name=f"demo{n}", files={f"demo{n}/x": "x" * 9000}) for n in range(3)]
    caught = threading.Event()
    original = Archive.pieces

    def endless(self: Archive, member: Member, *rest: object) -> Iterator[bytes]:
        while member.name == "demo1/x":
            caught.set()
            self.read_at(0, 1)
        yield from original(self, member, *rest)  # type: ignore[arg-type]

    def interrupted(self: Console, *rest: object) -> None:
        if caught.wait(60):
            raise KeyboardInterrupt

    monkeypatch.setattr(Archive, "pieces", endless)
    monkeypatch.setattr(Console, "say", interrupted)
    outcome = te_wheel(*command, *wheels, "--jobs", "2")
    assert (outcome.code, outcome.errors) == (2, ["interrupted; nothing half-written is left"])
    assert not [name for name in os.listdir(tmp_path / "out") if name[0] == "."] if command[0] == "repack" else True
