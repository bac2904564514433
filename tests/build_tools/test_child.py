from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import pytest

from build_tools.child import Finished, environment, run_child
from build_tools.errors import ToolError


def python(code: str, folder: Path, **env: str) -> Finished:
    return run_child([sys.executable, "-c", code], folder=folder, env=environment(folder, **env))


def test_both_streams_are_kept_in_order_and_the_exit_code(tmp_path: Path) -> None:
    code = "import sys; print('one', flush=True); print('two \\xe9', file=sys.stderr); sys.exit(3)"
    assert python(code, tmp_path, PYTHONUTF8="1") == Finished(3, ("one", "two é"))


def test_output_that_is_no_utf8_is_no_traceback(tmp_path: Path) -> None:
    assert python("import sys; sys.stdout.buffer.write(b'\\xff\\n')", tmp_path).lines == ("\ufffd",)


def test_a_child_has_no_input_and_keeps_its_temporary_files_where_it_is_told(tmp_path: Path) -> None:
    code = "import sys, tempfile; print(repr(sys.stdin.read())); print(tempfile.gettempdir())"
    assert python(code, tmp_path).lines == ("''", str(tmp_path))


def test_each_line_is_reported_as_it_comes(tmp_path: Path) -> None:
    said: list[str] = []
    command = [sys.executable, "-c", "print('a\\nb')"]
    run_child(command, folder=tmp_path, env=environment(tmp_path), report=said.append)
    assert said == ["a", "b"]


def test_a_program_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ToolError, match=r"cannot run '.*nowhere': No such file"):
        run_child([tmp_path / "nowhere"], folder=tmp_path, env={})


@pytest.mark.skipif(not hasattr(os, "killpg"), reason="no process groups here")
@pytest.mark.parametrize("stubborn", [False, True], ids=["obedient", "ignores the interrupt"])
def test_an_interrupt_ends_the_whole_family(tmp_path: Path, stubborn: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("build_tools.child._GRACE", 0.5)
    ignore = "import signal; signal.signal(signal.SIGINT, signal.SIG_IGN); " if stubborn else ""
    sleep = f"{ignore}import os, time; print(os.getpid(), flush=True); time.sleep(60)"
    code = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {sleep!r}])"
    pids: list[int] = []

    def interrupt(line: str) -> None:
        pids.append(int(line))
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_child([sys.executable, "-c", ignore + code], folder=tmp_path, env=environment(tmp_path), report=interrupt)
    deadline = time.monotonic() + 10
    while _lives(pids[0]):
        assert time.monotonic() < deadline, "the grandchild lives on"
        time.sleep(0.02)


@pytest.mark.skipif(not hasattr(os, "waitid"), reason="no waitid here")
def test_what_a_child_leaves_running_is_killed_and_does_not_hold_the_output(tmp_path: Path) -> None:
    code = "import subprocess, sys; print(subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)']).pid)"
    start = time.monotonic()
    done = python(code, tmp_path)
    assert (done.code, time.monotonic() - start < 30) == (0, True)
    deadline = time.monotonic() + 10
    while _lives(int(done.lines[0])):
        assert time.monotonic() < deadline, "the grandchild lives on"
        time.sleep(0.02)


@pytest.mark.skipif(os.name == "nt", reason="no umask there")
def test_the_files_of_a_child_have_the_same_modes_whoever_runs_it(tmp_path: Path) -> None:
    before = os.umask(0o077)
    try:
        python("open('made', 'w')", tmp_path)
    finally:
        os.umask(before)
    assert (tmp_path / "made").stat().st_mode & 0o777 == 0o644


def _lives(pid: int) -> bool:
    """Whether a process runs; one that ended and that nobody waited for does not."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    status = Path(f"/proc/{pid}/status")
    return not (status.exists() and "State:\tZ" in status.read_text())
