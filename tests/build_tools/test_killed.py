"""X13: a run that is killed, interrupted, or out of disk leaves no half wheel and the input whole."""

from __future__ import annotations

import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from build_tools.wheels import WheelEdit, repack
from tests.build_tools.command_line import te_wheel
from tests.build_tools.wheel_factory import PACKAGE, STORED, Member, digest, make_wheel

MEGABYTES = 48
RENAMED = "other-1.0-py3-none-any.whl"
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A wheel of random data, which nothing can compress away."""
    data = Member(random.Random(0).randbytes(MEGABYTES << 20), method=STORED)
    return make_wheel(tmp_path_factory.mktemp("big"), files={**PACKAGE, "demo/weights.bin": data})


@pytest.fixture(scope="module")
def expected(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> bytes:
    return repack(wheel, tmp_path_factory.mktemp("expected"), WheelEdit(name="other")).path.read_bytes()


def command(wheel: Path, out: Path) -> list[str]:
    return [sys.executable, "-m", "build_tools", "repack", str(wheel), "-o", str(out), "--name", "other"]


def start(wheel: Path, out: Path) -> subprocess.Popen[str]:
    out.mkdir(exist_ok=True)
    arguments = command(wheel, out)
    return subprocess.Popen(arguments, env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def wait_for_a_file(run: subprocess.Popen[str], out: Path, size: int = 0) -> None:
    """Return as soon as a file of at least ``size`` bytes is there, or the run is over."""
    while run.poll() is None and not any(entry.stat().st_size >= size for entry in out.iterdir()):
        time.sleep(0)


def outputs(out: Path) -> list[Path]:
    return sorted(out.glob("*.whl"))


def test_a_run_killed_at_any_moment_leaves_no_half_wheel(wheel: Path, expected: bytes, tmp_path: Path) -> None:
    before = digest(wheel.read_bytes())
    out = tmp_path / "out"
    moments = random.Random()
    left_behind = 0
    for round in range(12):
        run = start(wheel, out)
        wait_for_a_file(run, out)
        time.sleep(moments.uniform(0, 0.03) if round % 3 else 0)
        run.kill()
        run.communicate()
        assert all(path.read_bytes() == expected for path in outputs(out))
        left_behind += run.returncode == -signal.SIGKILL and not outputs(out)
        for path in outputs(out):
            path.unlink()
    assert left_behind, "no kill came while the wheel was being written"
    assert digest(wheel.read_bytes()) == before

    # The next run clears up: whatever the dead ones left is gone.
    assert te_wheel("repack", wheel, "-o", out, "--name", "other").code == 0
    assert os.listdir(out) == [RENAMED]
    assert (out / RENAMED).read_bytes() == expected


def test_an_interrupted_run_says_so_in_plain_words_and_leaves_nothing(wheel: Path, tmp_path: Path) -> None:
    before = digest(wheel.read_bytes())
    for round in range(4):
        out = tmp_path / str(round)
        run = start(wheel, out)
        wait_for_a_file(run, out, size=1)
        run.send_signal(signal.SIGINT)
        printed, said = run.communicate()
        assert "Traceback" not in said
        if run.returncode:
            assert (printed, os.listdir(out)) == ("", [])
            assert len(said.splitlines()) <= 1
    assert digest(wheel.read_bytes()) == before


def test_the_temporary_file_of_a_live_run_is_left_to_it(wheel: Path, expected: bytes, tmp_path: Path) -> None:
    out = tmp_path / "out"
    run = start(wheel, out)
    wait_for_a_file(run, out, size=1)  # written to, so locked
    run.send_signal(signal.SIGSTOP)
    try:
        if outputs(out):
            pytest.skip("the run was over before it could be stopped")
        (temporary,) = os.listdir(out)
        assert not temporary.endswith(".whl")
        assert te_wheel("repack", wheel, "-o", out, "--name", "other").code == 0
        assert sorted(os.listdir(out)) == sorted([temporary, RENAMED])
    finally:
        run.send_signal(signal.SIGCONT)
        printed, said = run.communicate()
    assert (run.returncode, printed) == (0, f"{out / RENAMED}\n"), said
    assert os.listdir(out) == [RENAMED]
    assert (out / RENAMED).read_bytes() == expected


def test_a_file_that_is_not_ours_is_never_cleared_away(tmp_path: Path) -> None:
    wheel = make_wheel(tmp_path / "in")
    out = tmp_path / "out"
    out.mkdir()
    mine = [".other-1.0-py3-none-any.whl.tmp", "other.tmp", ".hidden", "te-wheel-tmp"]
    for name in mine:
        (out / name).write_text("mine")
    assert te_wheel("repack", wheel, "-o", out, "--name", "other").code == 0
    assert sorted(os.listdir(out)) == sorted([*mine, RENAMED])


def assert_out_of_space(run: subprocess.CompletedProcess[str]) -> None:
    assert run.returncode == 2, run.stdout + run.stderr
    assert run.stderr.startswith("error: ")
    assert RENAMED in run.stderr
    assert "Traceback" not in run.stderr


def _limit_file_size() -> None:
    resource.setrlimit(resource.RLIMIT_FSIZE, (8 << 20, 8 << 20))


def test_a_file_that_may_not_grow_is_a_plain_error_and_nothing_stays(wheel: Path, tmp_path: Path) -> None:
    before = digest(wheel.read_bytes())
    out = tmp_path / "out"
    run = _run(command(wheel, out), preexec_fn=_limit_file_size)
    assert_out_of_space(run)
    assert run.stdout == ""
    assert os.listdir(out) == []
    assert digest(wheel.read_bytes()) == before


def test_a_full_disk_is_a_plain_error_and_nothing_stays(wheel: Path, tmp_path: Path) -> None:
    before = digest(wheel.read_bytes())
    script = 'mount -t tmpfs -o size=8m none "$1" || exit 77; out=$1; shift; "$@"; code=$?; ls -A "$out"; exit $code'
    # In a mount namespace of its own, so that the small disk goes with the process.
    shell = ["unshare", "--mount", "sh", "-c", script, "sh", str(tmp_path), *command(wheel, tmp_path)]
    if shutil.which("unshare") is None:
        pytest.skip("no unshare, so no small disk")
    run = _run(shell)
    if run.returncode in (1, 77) and "te-wheel" not in run.stderr and "error: " not in run.stderr:
        pytest.skip(f"no small disk could be mounted: {run.stderr.strip()}")
    assert_out_of_space(run)
    assert run.stdout == "", "ls lists what stayed"
    assert digest(wheel.read_bytes()) == before


def _run(arguments: list[str], preexec_fn: Callable[[], None] | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(arguments, env=ENVIRONMENT, capture_output=True, text=True, preexec_fn=preexec_fn)


@pytest.mark.parametrize("delay", [0, 0.01, 0.02, 0.03, 0.04, 0.06])
def test_an_interrupt_at_the_start_is_no_traceback(delay: float, wheel: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    run = start(wheel, out)
    time.sleep(delay)
    run.send_signal(signal.SIGINT)
    _, said = run.communicate()
    # Python's own start prints one, and so do the first milliseconds of the first module.
    assert "build_tools/" not in said.replace("build_tools/__main__.py", "")
    assert run.returncode == 0 or not list(out.iterdir())


def test_a_second_interrupt_does_not_stop_the_cleaning_up(wheel: Path, tmp_path: Path) -> None:
    for round in range(3):
        out = tmp_path / str(round)
        run = start(wheel, out)
        wait_for_a_file(run, out, size=1)
        for number in (signal.SIGINT, signal.SIGINT, signal.SIGTERM, signal.SIGINT):
            run.send_signal(number)
        _, said = run.communicate()
        assert "Traceback" not in said
        assert run.returncode == 0 or not list(out.iterdir())


# The first and the last moments of the command line

_KILL = "os.kill(os.getpid(), signal.SIGINT)"


def python(code: str) -> subprocess.CompletedProcess[str]:
    return _run([sys.executable, "-c", "import os, runpy, signal, sys, time\n" + code])


@pytest.mark.parametrize(
    "start",
    [
        "sys.argv = ['te-wheel', 'version', '1']; from build_tools.__main__ import run; run()",  # as te-wheel starts
        "runpy.run_module('build_tools', run_name='__main__')",
        f"runpy.run_path({str(Path(__file__).parents[2] / 'scripts' / 'repack_wheel.py')!r}, run_name='__main__')",
    ],
)
def test_an_interrupt_while_modules_are_imported_ends_the_run_as_the_system_does(start: str) -> None:
    finder = (
        "class Finder:\n"
        "    def find_spec(name, *rest):\n"
        f"        if name in ('packaging.version', 'build_tools.cli'): {_KILL}\n"
        "sys.meta_path.insert(0, Finder)\n"
    )
    run = python(f"signal.signal(signal.SIGINT, signal.default_int_handler)\n{finder}{start}")
    assert (run.returncode, run.stdout, run.stderr) == (-signal.SIGINT, "", "")


@pytest.mark.parametrize(
    "moment",
    [
        f"cli._prepare_streams = lambda: {_KILL}",  # before main listens
        f"error = cli.Console.error; cli.Console.error = lambda *a: [error(*a), {_KILL}]",  # while it tells of an end
    ],
)
def test_an_interrupt_outside_of_the_command_itself_is_one_line(moment: str) -> None:
    start = "sys.argv = ['te-wheel', 'show', 'nowhere.whl', '--no-such']; cli.entry_point()"
    run = python(
        f"signal.signal(signal.SIGINT, signal.default_int_handler)\nfrom build_tools import cli\n{moment}\n{start}"
    )
    assert run.returncode == 2
    assert run.stderr.splitlines()[-1] == "error: interrupted; nothing half-written is left"
    assert "Traceback" not in run.stderr


def test_an_interrupt_inside_a_callback_of_the_interpreter_is_not_lost() -> None:
    command = (
        "class Last:\n"
        f"    def __del__(self): {_KILL}; time.sleep(0)\n"
        "def main(argv):\n"
        "    try:\n"
        "        Last()\n"
        "        time.sleep(60)\n"
        "    except KeyboardInterrupt:\n"
        "        return 7\n"
    )
    start = "from build_tools import cli\ncli.main = main\ncli.entry_point()"
    run = python(f"signal.signal(signal.SIGINT, signal.default_int_handler)\n{command}{start}")
    assert (run.returncode, run.stderr) == (7, "")


def test_an_interrupt_inside_the_last_callback_of_all_comes_too_late() -> None:
    command = (
        "class Last:\n"
        f"    def __del__(self): {_KILL}; time.sleep(0)\n"
        "class Slow:\n"
        "    def flush(self): time.sleep(0.5)\n"
        "def main(argv):\n"
        "    sys.stdout = Slow()\n"
        "    Last()\n"
        "    return 7\n"
        "setitimer = signal.setitimer\n"
        "signal.setitimer = lambda which, seconds: setitimer(which, seconds and 0.2)\n"
    )
    start = "from build_tools import cli\ncli.main = main\ncli.entry_point()"
    run = python(f"signal.signal(signal.SIGINT, signal.default_int_handler)\n{command}{start}")
    assert (run.returncode, run.stderr) == (7, "")
