"""What others do to the files of a run meanwhile: at each call that writes, once.

Whatever they do, no half wheel has an output name, and nothing is written outside the output folder.
"""

from __future__ import annotations

import multiprocessing
import os
import shutil
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import pytest

from tests.build_tools.command_line import Outcome, te_wheel
from tests.build_tools.wheel_factory import PACKAGE, STORED, Member, make_wheel
from tests.build_tools.wheel_reader import content, read_right
from tests.build_tools.written_calls import Watch

FILES = {
    **PACKAGE,
    "demo/a.bin": Member(bytes(range(256)) * 40, method=STORED),
    "demo/sub/b.py": "b = 1\n",
    "demo/sub/c.py": "c = 1\n",
    "demo-1.0.data/scripts/run": Member("#!python\n", mode=0o755),
}
RENAMED = "other-1.0-py3-none-any.whl"


def do_at(at: int, do: Callable[[], None]) -> Watch:
    def before(now: int, call: str) -> None:
        if now == at:
            do()

    return Watch(before)


def at_each_call(
    run: Callable[[], Outcome], reset: Callable[[], None], do: Callable[[], None]
) -> Iterator[tuple[str, Outcome]]:
    """Each call of a run with the outcome of another, with ``do`` done just before that one."""
    reset()
    watch = Watch()
    with watch.watching():
        assert run().code == 0
    for at in range(len(watch.calls)):
        reset()
        with do_at(at, do).watching():
            outcome = run()
        assert outcome.code == 0 or (outcome.code, len(outcome.errors)) == (2, 1), outcome.err
        yield watch.calls[at], outcome


@pytest.mark.parametrize("replace", [False, True])
def test_an_input_that_vanishes_is_one_line_or_no_matter(replace: bool, tmp_path: Path) -> None:
    out = tmp_path / "out"

    def reset() -> None:
        shutil.rmtree(out, ignore_errors=True)
        make_wheel(tmp_path / "in", files=FILES)

    wheel = tmp_path / "in" / "demo-1.0-py3-none-any.whl"
    flags = ["--replace"] if replace else []
    outcomes = at_each_call(
        lambda: te_wheel("repack", wheel, "-o", out, "--name", "other", *flags), reset, lambda: wheel.unlink(True)
    )
    for _, outcome in outcomes:
        if outcome.code == 0 or (out / RENAMED).exists():
            read_right(out / RENAMED)
        assert set(os.listdir(out)) <= {RENAMED}


@pytest.mark.parametrize("in_place", [False, True])
def test_an_input_that_another_file_replaces_is_never_lost(in_place: bool, tmp_path: Path) -> None:
    out = tmp_path / ("in" if in_place else "out")
    wheel = tmp_path / "in" / "demo-1.0-py3-none-any.whl"
    newer = make_wheel(tmp_path / "newer", files={**FILES, "demo/new.py": "n = 1\n"}).read_bytes()

    def reset() -> None:
        for folder in ("in", "out"):
            shutil.rmtree(tmp_path / folder, ignore_errors=True)
        make_wheel(tmp_path / "in", files=FILES)

    def replace_it() -> None:
        (tmp_path / "fresh").write_bytes(newer)
        os.replace(tmp_path / "fresh", wheel)

    edit = ["--set", "Summary: new"] if in_place else ["--name", "other"]
    lost = []
    run = at_each_call(lambda: te_wheel("repack", wheel, "-o", out, *edit, "--replace"), reset, replace_it)
    for call, outcome in run:
        if not wheel.exists() or wheel.read_bytes() != newer:
            lost.append(call)
        assert not [name for name in os.listdir(out) if not name.endswith(".whl")]
        for made in out.glob("*.whl"):
            read_right(made)
        assert outcome.code == 0 or "another file" in outcome.err
    # Between the last look and the removal itself there is a moment that no program can close.
    assert lost == ["replace" if in_place else "unlink"]


@pytest.mark.parametrize("command", ["repack", "unpack", "pack"])
def test_an_output_folder_that_is_removed_meanwhile_is_one_line(command: str, tmp_path: Path) -> None:
    wheel = make_wheel(tmp_path / "in", files=FILES)
    tree = te_wheel("unpack", wheel, "-d", tmp_path / "tree").out.removesuffix("\n")
    out = tmp_path / "out"
    arguments: dict[str, list[str]] = {
        "repack": ["repack", str(wheel), "-o", str(out), "--name", "other"],
        "unpack": ["unpack", str(wheel), "-d", str(out)],
        "pack": ["pack", tree, "-d", str(out)],
    }

    def remove() -> None:
        shutil.rmtree(out, ignore_errors=True)

    for _, outcome in at_each_call(lambda: te_wheel(*arguments[command]), remove, remove):
        if outcome.code:
            assert str(out) in outcome.err, outcome.err
            assert not out.exists() or os.listdir(out) == []
        elif out.exists():
            assert len(os.listdir(out)) == 1


def _repack(wheel: Path, out: Path, summary: str, barrier: str) -> int:
    while not os.path.exists(barrier):
        pass
    return te_wheel("repack", wheel, "-o", out, "--name", "other", "--set", f"Summary: {summary}").code


@pytest.mark.parametrize("same", [True, False], ids=["the same bytes", "other bytes"])
def test_of_runs_that_write_one_output_at_once_one_has_its_way_and_none_is_torn(same: bool, tmp_path: Path) -> None:
    wheel = make_wheel(tmp_path / "in", files=FILES)
    out = tmp_path / "out"
    with ProcessPoolExecutor(4, mp_context=multiprocessing.get_context("spawn")) as workers:
        for round in range(12):
            shutil.rmtree(out, ignore_errors=True)
            summaries = ["one"] * 4 if same else ["one", "two", "three", "four"]
            barrier = tmp_path / f"go{round}"
            runs = [workers.submit(_repack, wheel, out, summary, str(barrier)) for summary in summaries]
            barrier.touch()
            codes = [run.result() for run in runs]
            assert sorted(codes) == ([0, 0, 0, 0] if same else [0, 2, 2, 2])
            assert os.listdir(out) == [RENAMED]
            won = content(read_right(out / RENAMED), "/METADATA").decode()
            assert f"Summary: {summaries[codes.index(0)]}\n" in won


@pytest.mark.parametrize("folder", ["", "demo", "demo/sub", "demo-1.0.data", "demo-1.0.dist-info"])
def test_a_folder_swapped_for_a_link_while_it_is_filled_is_never_written_through(folder: str, tmp_path: Path) -> None:
    wheel = make_wheel(tmp_path / "in", files=FILES)
    out, outside = tmp_path / "out", tmp_path / "outside"

    def reset() -> None:
        for path in (out, outside):
            shutil.rmtree(path, ignore_errors=True)
        outside.mkdir()

    def swap() -> None:
        for root in out.glob("*"):
            path = root / folder
            if path.is_dir() and not path.is_symlink():
                # Beside the tree: what was written to it before must not go with it.
                path.rename(tmp_path / f"aside{len(os.listdir(tmp_path))}")
                path.symlink_to(outside)

    for _, outcome in at_each_call(lambda: te_wheel("unpack", wheel, "-d", out), reset, swap):
        assert os.listdir(outside) == []
        if outcome.code:
            assert outcome.out == ""
