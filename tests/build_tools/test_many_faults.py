"""What goes wrong in a run of several jobs: a call that fails, an interrupt, a kill, another run in the same folder.

Calls come in another order each time, so what must hold is held whatever call is hit: each input is the same bytes,
each output absent or whole, each input is told of once (as made, or with one line of what went wrong), and the exit
code agrees. The next run clears up and ends as if nothing had been. A test that fails prints its ``TE_SEED``, with
which it comes to the same calls and moments again.
"""

from __future__ import annotations

import errno
import io
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest

from build_tools import cli
from build_tools.errors import FileError
from build_tools.parallel import in_order, require_running
from build_tools.sdist import read_sdist
from build_tools.wheels.facts import read_facts
from build_tools.wheels.output import OutputFile, _same_bytes
from tests.build_tools.command_line import Outcome, te_wheel
from tests.build_tools.sdist_factory import make_sdist
from tests.build_tools.wheel_factory import PACKAGE, STORED, Member, make_wheel
from tests.build_tools.written_calls import Watch, failing, in_a_child, signalled

THOROUGH = bool(os.environ.get("TE_THOROUGH"))
ROUNDS = 60 if THOROUGH else 6
SEED = os.environ.get("TE_SEED") or str(time.time_ns())
STEP = 1 if THOROUGH else 3
"""Each so many-th call is hit, from another first one in each run of the tests."""
WHEELS, BAD = ("aa", "bb", "cc"), "bad-1.0-py3-none-any.whl"
FILES = {**PACKAGE, "demo/a.bin": Member(bytes(range(256)) * 80, method=STORED), "demo/b.py": "b = 1\n"}
PLAN = "".join(f'[tool.te-wheel.variants.v{n}]\nname = "demo_v{n}"\n' for n in range(4))
REPACK = ("repack", "in", "in/dd-1.0.tar.gz", "-o", "out", "--local", "x", "--jobs")
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
SDIST = {
    "dd-1.0/PKG-INFO": "Metadata-Version: 2.1\nName: dd\nVersion: 1.0\n\n",
    "dd-1.0/pyproject.toml": "[project]\nname = 'dd'\ndynamic = ['version']\n",
    "dd-1.0/dd.egg-info/PKG-INFO": "Metadata-Version: 2.1\nName: dd\nVersion: 1.0\n\n",
}
Tree = dict[str, bytes]


@dataclass(slots=True)
class Place:
    """A folder with inputs, one of which is no wheel, where runs start again and again from the same state."""

    root: Path
    pristine: Path

    def reset(self) -> None:
        os.chdir(self.pristine)
        shutil.rmtree(self.root, ignore_errors=True)
        shutil.copytree(self.pristine, self.root)
        os.chdir(self.root)

    def tree(self, *, leftovers: bool = False) -> Tree:
        """All files; hidden ones of the tool only where they may be left."""
        found = {str(path.relative_to(self.root)): path for path in sorted(self.root.rglob("*")) if path.is_file()}
        mine = [name for name in found if ".te-wheel-tmp" in name]
        assert leftovers or not mine, mine
        return {name: path.read_bytes() for name, path in found.items() if name not in mine}

    def learn(self, arguments: tuple[str, ...], *, reads: bool = False) -> tuple[int, Tree, Outcome]:
        """How many calls a run that nothing disturbs makes, what it leaves, and what it says."""
        self.reset()
        watch = Watch(reads=reads)
        with watch.watching():
            outcome = te_wheel(*arguments)
        return len(watch.calls), self.tree(), outcome

    def require_whole(self, expected: Tree, *, leftovers: bool = False) -> Tree:
        now = self.tree(leftovers=leftovers)
        assert {name: now.get(name) for name in expected if name.startswith("in/")} == {
            name: data for name, data in expected.items() if name.startswith("in/")
        }
        for name, data in now.items():
            assert data == expected.get(name), name
        return now


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    pristine = tmp_path / "pristine"
    for name in WHEELS:
        make_wheel(pristine / "in", name=name, files=FILES)
    (pristine / "in" / BAD).write_text("no wheel")
    make_sdist(pristine / "in", SDIST, name="dd-1.0.tar.gz")
    (pristine / "project").mkdir()
    (pristine / "project" / "pyproject.toml").write_text(PLAN)
    monkeypatch.chdir(tmp_path)
    yield Place(tmp_path / "work", pristine)
    os.chdir(tmp_path)
    left = [thread for thread in threading.enumerate() if thread.name == "job"]
    assert not left, "a thread outlives its run"


@pytest.fixture
def chance(request: pytest.FixtureRequest) -> random.Random:
    """What differs from run to run: of a test alone, whatever runs before it."""
    print(f"TE_SEED={SEED}")  # noqa: T201 - shown where the test fails
    return random.Random(f"{SEED} {request.node.nodeid}")


def calls_hit(count: int, chance: random.Random) -> range:
    return range(chance.randrange(STEP), count, STEP)


def require_told(outcome: Outcome, now: Tree, plain: Outcome) -> None:
    """Each input has its result, or its line; what is told to be there is there."""
    assert outcome.code == 2
    inputs = len(WHEELS) + 2
    assert len(outcome.lines) + len(outcome.errors) == inputs, (outcome.out, outcome.err)
    assert set(outcome.lines) <= set(plain.lines)
    assert set(outcome.lines) <= set(now)
    assert any("bad-1.0" in error for error in outcome.errors)


every_jobs = pytest.mark.parametrize("jobs", ["2", "3"])
every_error = pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO] if THOROUGH else [errno.EIO])


@every_jobs
@every_error
@pytest.mark.parametrize("ever_after", [False, True], ids=["once", "ever after"])
def test_a_write_that_fails_costs_its_own_output_alone(
    jobs: str, number: int, ever_after: bool, place: Place, chance: random.Random
) -> None:
    count, expected, plain = place.learn((*REPACK, jobs))
    assert plain.code == 2
    assert len(plain.lines) == len(WHEELS) + 1
    for at in calls_hit(count, chance):
        place.reset()
        with failing(at, number, ever_after=ever_after).watching():
            outcome = te_wheel(*REPACK, jobs)
        now = place.require_whole(expected, leftovers=True)
        require_told(outcome, now, plain)
        if not ever_after:
            assert len(outcome.errors) <= 2, outcome.err
        assert te_wheel(*REPACK, jobs).lines == plain.lines
        assert place.tree() == expected


@every_jobs
@pytest.mark.parametrize("command", ["repack", "repack --json", "check", "check --hashes --json", "show --json"])
def test_a_read_that_fails_costs_no_other_input_its_result(
    command: str, jobs: str, place: Place, chance: random.Random
) -> None:
    arguments = {
        "repack": (*REPACK, jobs),
        "repack --json": (*REPACK, jobs, "--json"),
        "check": ("check", "in", "--jobs", jobs),
        "check --hashes --json": ("check", "in", "--hashes", "--json", "--jobs", jobs),
        "show --json": ("show", "in", "--json", "--jobs", jobs),
    }[command]
    count, expected, plain = place.learn(arguments, reads=True)
    for at in calls_hit(count, chance):
        place.reset()
        with failing(at, errno.EIO, reads=True).watching():
            outcome = te_wheel(*arguments)
        now = place.require_whole(expected, leftovers=True)
        if "'in'" in outcome.err:  # the folder of the inputs itself could not be read
            assert outcome.code == 2
            continue
        assert outcome.out, outcome.err
        if "--json" in arguments:
            entries, right = outcome.json, plain.json
            assert len(entries) == len(right)
            other = [entry for entry, was in zip(entries, right, strict=True) if entry != was]
            assert len(other) <= 1, outcome.err
            if command.startswith("check"):  # a wheel that is none is a finding, and so may be one that cannot be read
                assert all(entry.get("error") or entry["findings"] for entry in other)
                assert outcome.code == (2 if any("error" in entry for entry in entries) else plain.code)
            else:
                assert all("error" in entry for entry in other)
                assert outcome.code == 2
        elif command == "repack":
            require_told(outcome, now, plain)
            assert len(outcome.errors) <= 2, outcome.err
        else:
            assert len(set(plain.err.splitlines()) - set(outcome.err.splitlines())) <= 2, outcome.err


@every_jobs
def test_a_release_of_many_outputs_is_whole_or_nothing(jobs: str, place: Place, chance: random.Random) -> None:
    release = ("release", "project", "-o", "out", "--wheel", "in/aa-1.0-py3-none-any.whl", "--no-smoke", "--jobs", jobs)
    count, expected, plain = place.learn(release)
    assert plain.code == 0, plain.err
    told = {"out/SHA256SUMS", "out/release.json"}
    for at in calls_hit(count, chance):
        place.reset()
        with failing(at, errno.ENOSPC).watching():
            outcome = te_wheel(*release)
        now = place.tree(leftovers=True)
        made = {name for name in now if name.startswith("out/")} - told
        assert all(now[name] == expected[name] for name in made)
        if outcome.code == 0:
            assert made | told == set(expected) - {name for name in expected if not name.startswith("out/")}
        else:
            assert outcome.errors, outcome.err
            assert not made or told <= set(now)
        again = te_wheel(*release, "--force")
        assert (again.code, place.tree()) == (0, expected), again.err


@every_jobs
def test_a_run_that_is_killed_at_a_call_leaves_whole_outputs_alone(
    jobs: str, place: Place, chance: random.Random
) -> None:
    count, expected, _ = place.learn((*REPACK, jobs))
    for at in calls_hit(count, chance):
        place.reset()
        code = in_a_child(lambda: te_wheel(*REPACK, jobs).code, signalled(at, signal.SIGKILL))
        assert code in (-signal.SIGKILL, 2)  # a run with fewer calls than the first one got to its end
        place.require_whole(expected, leftovers=True)
        assert te_wheel(*REPACK, jobs).code == 2
        assert place.tree() == expected


@every_jobs
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_run_that_is_interrupted_at_a_call_says_so_and_clears_up(
    jobs: str, number: signal.Signals, place: Place, chance: random.Random
) -> None:
    count, expected, plain = place.learn((*REPACK, jobs))

    def run() -> int:
        for each in (signal.SIGINT, signal.SIGTERM):
            signal.signal(each, cli._interrupt)
        outcome = te_wheel(*REPACK, jobs)
        place.require_whole(expected)  # at once: nobody is at work behind the message
        assert outcome.code == 2
        if outcome.errors != plain.errors:
            assert outcome.errors[-1] == "interrupted; nothing half-written is left", outcome.err
        return outcome.code

    for at in calls_hit(count, chance):
        place.reset()
        assert in_a_child(run, signalled(at, number)) == 2, at
        place.require_whole(expected)


# At any moment, from outside


def start(*arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "build_tools", *arguments],
        env=ENVIRONMENT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_a_signal_at_any_moment_leaves_whole_outputs_alone(
    number: signal.Signals, place: Place, chance: random.Random
) -> None:
    _, expected, plain = place.learn((*REPACK, "2"))
    for _ in range(ROUNDS):
        place.reset()
        run = start(*REPACK, "2")
        begun = time.monotonic()
        moment = chance.uniform(0, 0.3)
        while run.poll() is None and time.monotonic() - begun < moment:
            time.sleep(0.001)
        run.send_signal(number)
        printed, said = run.communicate(timeout=60)
        place.require_whole(expected, leftovers=number == signal.SIGKILL or run.returncode < 0)
        assert set(printed.splitlines()) <= set(plain.lines)
        # Python's own start prints a traceback, and so do the first steps of the first module.
        assert "build_tools/" not in said.replace("build_tools/__main__.py", "")
        assert run.returncode in (2, -number) or "init_import_site" in said, said
        assert te_wheel(*REPACK, "2").code == 2
        assert place.tree() == expected


def test_runs_that_fill_one_folder_at_once_leave_it_as_one_run_does(place: Place, chance: random.Random) -> None:
    _, expected, plain = place.learn((*REPACK, "2"))
    for _ in range(ROUNDS // 2):
        place.reset()
        runs = [start(*REPACK, "3"), start(*REPACK, "2"), start(*REPACK, "2", "--force")]
        victim = chance.choice([None, *runs])
        if victim:
            time.sleep(chance.uniform(0.05, 0.2))
            victim.kill()
        with ThreadPoolExecutor(3) as pool:
            said = list(pool.map(lambda run: run.communicate(timeout=60), runs))
        for run, (printed, told) in zip(runs, said, strict=True):
            if run is not victim:
                assert (run.returncode, printed.splitlines()) == (2, plain.lines), told
        place.require_whole(expected, leftovers=victim is not None)
        assert te_wheel(*REPACK, "2").code == 2
        assert place.tree() == expected


# The threads themselves


@pytest.mark.parametrize("error", [OSError(errno.EIO, "broken disk"), MemoryError()])
@pytest.mark.parametrize("jobs", [1, 3])
def test_what_the_system_refuses_one_input_is_told_of_that_one(jobs: int, error: Exception) -> None:
    def work(path: Path) -> str:
        if path.name == "b":
            raise error
        return path.name

    done = dict(in_order(work, [Path("a"), Path("b"), Path("c")], jobs))
    assert (done[Path("a")], done[Path("c")]) == ("a", "c")
    refused = done[Path("b")]
    assert isinstance(refused, FileError)
    assert str(refused) == f"cannot work on 'b': {'broken disk' if isinstance(error, OSError) else 'out of memory'}"
    assert refused.__cause__ is error


@pytest.mark.parametrize("jobs", [1, 3])
def test_what_the_system_refuses_is_told_by_the_name_of_the_input_and_of_the_file(jobs: int) -> None:
    errors = [OSError("odd"), OSError(errno.EIO, "broken", "x.whl"), OSError(errno.EIO, "broken", "v2")]

    def work(number: int) -> None:
        raise errors[number]

    told = [str(outcome) for _, outcome in in_order(work, range(3), jobs, name=lambda number: f"v{number}")]
    assert told == [
        "cannot work on 'v0': odd",
        "cannot work on 'v1': broken: 'x.whl'",
        "cannot work on 'v2': broken",
    ]


@pytest.mark.parametrize("there", [0, 1, 2])
def test_where_the_system_has_no_more_threads_all_is_done_all_the_same(
    there: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, started = threading.Thread.start, []

    def start(self: threading.Thread) -> None:
        if len(started) == there:
            raise RuntimeError("can't start new thread")
        started.append(self)
        real(self)

    monkeypatch.setattr(threading.Thread, "start", start)
    assert list(in_order(lambda n: n * n, range(9), 4)) == [(n, n * n) for n in range(9)]
    assert len(started) == there


@pytest.mark.parametrize("last", [0, 1, 2])
def test_an_interrupt_while_a_thread_starts_leaves_none_at_work(last: int, monkeypatch: pytest.MonkeyPatch) -> None:
    real, started = threading.Thread.start, []

    def start(self: threading.Thread) -> None:
        started.append(self)
        real(self)
        if len(started) > last:
            raise KeyboardInterrupt

    monkeypatch.setattr(threading.Thread, "start", start)
    with pytest.raises(KeyboardInterrupt):
        list(in_order(lambda n: n, range(9), 3))
    for thread in started:
        thread.join(0.5)
        assert not thread.is_alive()


def test_an_interrupt_while_another_error_is_dealt_with_waits_for_what_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    begun, ended = threading.Event(), []
    join = threading.Thread.join
    interrupts = iter([True])

    def work(number: int) -> None:
        if number == 0:
            begun.wait(60)
            return
        begun.set()
        try:
            while True:
                require_running()
        finally:
            time.sleep(0.05)
            ended.append(number)

    def interrupted(self: threading.Thread, timeout: float | None = None) -> None:
        if next(interrupts, False):
            raise KeyboardInterrupt
        join(self, timeout)

    monkeypatch.setattr(threading.Thread, "join", interrupted)
    done = in_order(work, range(2), 2)
    next(done)
    with pytest.raises(KeyboardInterrupt):
        done.throw(BrokenPipeError())
    assert ended == [1]


def test_what_runs_has_ended_when_an_interrupt_is_told(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    place.reset()
    real: Callable[..., None] = cli.Console.error
    begun, ended, told = threading.Event(), threading.Event(), []

    def repack(path: Path, *_: object, **options: bool) -> None:
        if path.name.startswith("bb") and not options.get("dry_run"):
            begun.set()
            try:
                while True:
                    require_running()
            finally:
                time.sleep(0.05)
                ended.set()
        raise FileError("no")

    def error(self: cli.Console, faults: list[str], hint: str | None = None) -> None:
        if "no" in faults:
            assert begun.wait(60)
            raise KeyboardInterrupt
        told.append(ended.is_set())
        real(self, faults, hint)

    monkeypatch.setattr("build_tools.batch._repack", repack)
    monkeypatch.setattr(cli.Console, "error", error)
    outcome = te_wheel(*REPACK, "3")
    assert outcome.errors == ["interrupted; nothing half-written is left"]
    assert told == [True]


@pytest.mark.parametrize("what", ["show", "an sdist", "an output that is there"])
def test_a_large_file_hears_an_interrupt_of_the_run(what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wheel, sdist = make_wheel(tmp_path), make_sdist(tmp_path, SDIST, name="dd-1.0.tar.gz")
    begun, until = threading.Event(), time.monotonic() + 20

    def again(work: Callable[[], object]) -> None:
        begun.set()
        while time.monotonic() < until:
            work()

    def digest_again(file: io.BufferedReader, name: str) -> None:
        again(lambda: (file.seek(0), file.readinto(bytearray(1 << 16))))

    monkeypatch.setattr("build_tools.wheels.facts.hashlib.file_digest", digest_again)

    def work(number: int) -> None:
        if not number:
            begun.wait(60)
        elif what == "show":
            read_facts(wheel)
        elif what == "an sdist":
            again(lambda: read_sdist(sdist))
        else:
            fd = os.open(wheel, os.O_RDONLY)
            try:
                again(lambda: _same_bytes(fd, wheel))
            finally:
                os.close(fd)

    done = in_order(work, range(2), 2)
    next(done)
    with pytest.raises(KeyboardInterrupt):
        done.throw(KeyboardInterrupt())
    assert time.monotonic() < until, "it went on to the end"


@pytest.mark.parametrize("first", ["{root}", ".", "{root}/link", "link/../root"])
@pytest.mark.parametrize("second", ["{root}", ".", "link"])
def test_a_folder_that_another_output_made_is_on_the_disk_with_its_entry_too(
    first: str, second: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path / "root"
    root.mkdir()
    (root / "link").symlink_to(root)
    monkeypatch.chdir(root)
    synced: list[str] = []
    fsync = os.fsync

    def record(fd: int) -> None:
        synced.append(os.readlink(f"/proc/self/fd/{fd}"))
        fsync(fd)

    monkeypatch.setattr(os, "fsync", record)
    one, two = (Path(spelling.format(root=root), "new", "deep") for spelling in (first, second))
    with OutputFile(one / "first"), OutputFile(two / "second") as output:
        output.publish(replace=False, fsync=True)
    assert {str(root / "new" / "deep"), str(root / "new"), str(root)} <= set(synced)
