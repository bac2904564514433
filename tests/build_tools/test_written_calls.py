"""Every call that writes fails once, is interrupted once, and is once the last that a run makes.

What holds each time: the input is the same bytes; each output is absent, whole, or what was there before; the run ends
with exit code 2 and one clear line, or with the whole output; the next run clears up and ends as if nothing had been.
"""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
import signal
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from build_tools import cli
from tests.build_tools.command_line import Outcome, te_wheel
from tests.build_tools.wheel_factory import PACKAGE, STORED, Member, make_wheel, symlink
from tests.build_tools.written_calls import Watch, failing, in_a_child, signalled

PLAN = '[tool.te-wheel.variants.cu12]\nname = "demo_cu12"\n[tool.te-wheel.variants.cpu]\nlocal = "cpu"\n'
PRECIOUS = b"precious"
FILES = {
    **PACKAGE,
    "demo/a.bin": Member(bytes(range(256)) * 80, method=STORED),
    "demo-1.0.data/scripts/run": Member("#!python\n", mode=0o755),
    "demo/sub/b.py": "b = 1\n",
    "demo/sub/link": symlink("b.py"),
}
Tree = dict[str, bytes | str]


@dataclass(frozen=True, slots=True)
class Command:
    """A command that writes.

    Attributes:
        arguments: the command line in a folder that holds ``in/demo...whl``, ``in/second...whl``, ``tree/demo-1.0`` and
            ``project``.
        before: files that are there already, by their path.
        removes: inputs that it may remove, once what it makes is there.
        replaces: inputs that it replaces.
    """

    arguments: tuple[str, ...]
    before: dict[str, bytes] = field(default_factory=dict)
    removes: tuple[str, ...] = ()
    replaces: tuple[str, ...] = ()


DEMO, SECOND = "in/demo-1.0-py3-none-any.whl", "in/second-1.0-py3-none-any.whl"
RENAMED = "out/other-1.0-py3-none-any.whl"
RENAME = ("repack", DEMO, "-o", "out", "--name", "other")
RELEASE = ("release", "project", "-o", "dist", "--wheel", DEMO, "--no-smoke", "-q", "--jobs", "1")
COMMANDS = {
    "repack": Command(RENAME),
    "repack --fsync into new folders": Command((*RENAME[:3], "out/a/b", *RENAME[4:], "--fsync")),
    "repack --force": Command((*RENAME, "--force"), {RENAMED: PRECIOUS}),
    "repack --replace": Command((*RENAME, "--replace"), removes=(DEMO,)),
    "repack --replace in place": Command(("repack", DEMO, "--set", "Summary: new", "--replace"), replaces=(DEMO,)),
    "repack of two": Command(("repack", DEMO, SECOND, "-o", "out", "--local", "cu1", "--jobs", "1")),
    "repack --add-file": Command(("repack", DEMO, "-o", "out", "--add-file", "project/pyproject.toml=demo/plan.toml")),
    "unpack": Command(("unpack", DEMO, "-d", "unpacked")),
    "pack": Command(("pack", "tree/demo-1.0", "-d", "out")),
    "pack --force": Command(("pack", "tree/demo-1.0", "-d", "out", "--force"), {f"out/{DEMO[3:]}": PRECIOUS}),
    "release": Command(RELEASE),
    "release --force": Command(
        (*RELEASE, "--force"), {"dist/demo_cu12-1.0-py3-none-any.whl": PRECIOUS, "dist/SHA256SUMS": PRECIOUS}
    ),
}
# By hand: TE_THOROUGH=1 takes every command, every error and every signal both before and after each call.
THOROUGH = bool(os.environ.get("TE_THOROUGH"))
every_error = pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO] if THOROUGH else [errno.ENOSPC])
every_signal = pytest.mark.parametrize(
    ("number", "done"),
    [
        (signal.SIGINT, False),
        (signal.SIGTERM, True),
        *([(signal.SIGINT, True), (signal.SIGTERM, False)] if THOROUGH else []),
    ],
)
TRIED = [name for name in COMMANDS if THOROUGH or name not in ("repack", "repack --add-file", "pack", "release")]
every_command = pytest.mark.parametrize("command", [COMMANDS[name] for name in TRIED], ids=TRIED)


@dataclass(slots=True)
class Place:
    """A folder in which a command runs again and again, each time from the same start."""

    root: Path
    pristine: Path
    command: Command

    def reset(self) -> None:
        os.chdir(self.pristine)
        shutil.rmtree(self.root)
        shutil.copytree(self.pristine, self.root, symlinks=True)
        os.chdir(self.root)

    def run(self) -> Outcome:
        return te_wheel(*self.command.arguments)

    def tree(self, root: Path | None = None) -> Tree:
        root = root or self.root
        found: Tree = {}
        for path in sorted(root.rglob("*")):
            name = str(path.relative_to(root))
            if path.is_symlink():
                found[name] = f"-> {path.readlink()}"
            elif path.is_file():
                found[name] = path.read_bytes()
        return found

    @property
    def start(self) -> Tree:
        return self.tree(self.pristine)

    def learn(self) -> tuple[list[str], Tree]:
        """The calls of a run that goes well, and all that it leaves."""
        self.reset()
        watch = Watch()
        with watch.watching():
            outcome = self.run()
        assert outcome.code == 0, outcome.err
        assert {"open", "write"} <= set(watch.calls)
        return watch.calls, self.tree()

    def require_whole(self, expected: Tree, *, leftovers: bool = False) -> None:
        """Each file is as it was before or as it shall be; hidden ones of the tool only where they may be left."""
        now, start = self.tree(), self.start
        mine = {name for name in now if ".te-wheel-tmp" in name}
        assert leftovers or not mine, mine
        if "dist/SHA256SUMS" in now:
            self.require_sums_right(now)
            # A variant that failed did not stop the others, and what is told of them is true.
            expected = {
                **expected,
                **{name: now[name] for name in ("dist/SHA256SUMS", "dist/release.json") if name in now},
            }
        for name in {*now, *start, *expected} - mine:
            allowed = [start.get(name), expected.get(name)]
            if name in start and name.startswith("dist/"):
                allowed.append(None)  # a release that is killed may be without the files that it replaces
            assert now.get(name) in allowed, name
        written = set(expected) - set(start)
        for name in self.command.removes:
            assert name in now or all(now.get(made) == expected[made] for made in written), (
                "input gone, output not whole"
            )

    def require_sums_right(self, now: Tree) -> None:
        text = now["dist/SHA256SUMS"]
        assert isinstance(text, bytes)
        if text != PRECIOUS:
            for line in text.decode().splitlines():
                digest, name = line.split("  ")
                data = now[f"dist/{name}"]
                assert isinstance(data, bytes)
                assert hashlib.sha256(data).hexdigest() == digest

    def require_next_run_right(self, expected: Tree) -> None:
        for name in self.command.removes:
            if name not in self.tree():
                return  # done, and said to have failed at the last step
        if self.command.arguments[0] == "unpack" and self.tree() == expected:
            return
        again = self.run()
        assert again.code == 0, again.err
        assert self.tree() == expected


@pytest.fixture
def place(command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    pristine = tmp_path / "pristine"
    pristine.mkdir()
    monkeypatch.chdir(pristine)
    make_wheel(pristine / "in", files=FILES)
    make_wheel(pristine / "in", name="second")
    (pristine / "project").mkdir()
    (pristine / "project" / "pyproject.toml").write_text(PLAN)
    assert te_wheel("unpack", DEMO, "-d", "tree").code == 0
    for name, data in command.before.items():
        (pristine / name).parent.mkdir(parents=True, exist_ok=True)
        (pristine / name).write_bytes(data)
    (tmp_path / "work").mkdir()
    yield Place(tmp_path / "work", pristine, command)
    os.chdir(tmp_path)


def require_plain(outcome: Outcome) -> None:
    """One clear line, last but for a hint."""
    assert outcome.code == 2
    assert len(outcome.errors) == 1, outcome.err
    assert outcome.err.splitlines()[-1].startswith(("error: ", "hint: ")), outcome.err


@every_command
@every_error
def test_a_call_that_fails_is_one_clear_line_and_nothing_half_written(
    number: int, command: Command, place: Place
) -> None:
    calls, expected = place.learn()
    for at, call in enumerate(calls):
        place.reset()
        with failing(at, number).watching():
            outcome = place.run()
        if outcome.code == 0:  # a temporary file that stays, a folder that is there, a file system without links
            assert call in ("unlink", "rmdir", "mkdir", "link"), call
            assert {name: data for name, data in place.tree().items() if ".te-wheel-tmp" not in name} == expected
        else:
            assert outcome.code == 2
            assert outcome.errors, outcome.err
            assert os.strerror(number) in outcome.err, outcome.err
            if len([argument for argument in command.arguments if argument.endswith(".whl")]) == 1:
                require_plain(outcome)
        place.require_whole(expected, leftovers=call in ("unlink", "rmdir"))
        place.require_next_run_right(expected)


@every_command
@every_error
def test_a_disk_that_dies_is_one_clear_line_and_nothing_half_written(
    number: int, command: Command, place: Place
) -> None:
    calls, expected = place.learn()
    for at, call in enumerate(calls):
        place.reset()
        with failing(at, number, ever_after=True).watching():
            outcome = place.run()
        assert (outcome.code, bool(outcome.errors)) == (2, True) or call in ("unlink", "rmdir"), outcome.err
        place.require_whole(expected, leftovers=True)
        place.require_next_run_right(expected)


@every_command
def test_a_run_that_is_killed_at_a_call_leaves_nothing_half_written(command: Command, place: Place) -> None:
    calls, expected = place.learn()
    for at in range(len(calls)):
        place.reset()
        assert in_a_child(lambda: place.run().code, signalled(at, signal.SIGKILL)) == -signal.SIGKILL
        place.require_whole(expected, leftovers=True)
        place.require_next_run_right(expected)


@every_command
@every_signal
def test_a_run_that_is_interrupted_at_a_call_says_so_and_clears_up(
    number: signal.Signals, done: bool, command: Command, place: Place
) -> None:
    calls, expected = place.learn()

    def run() -> int:
        for each in (signal.SIGINT, signal.SIGTERM):
            signal.signal(each, cli._interrupt)
        outcome = place.run()
        if outcome.code:
            require_plain(outcome)
            assert "interrupted" in outcome.err
        return outcome.code

    for at in range(len(calls)):
        place.reset()
        code = in_a_child(run, signalled(at, number, done=done))
        assert code in (0, 2), f"call {at}, {calls[at]}"
        place.require_whole(expected)
        place.require_next_run_right(expected)
