"""The files of a release get their places: all or none, and whenever a run is killed nothing old is lost."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from build_tools.errors import FileError
from build_tools.release_placing import place_all

WHEELS = ("a.whl", "b.whl")


def make_folders(folder: Path) -> tuple[Path, Path]:
    work, out = folder / "work", folder / "out"
    for place, text in ((work, "new"), (out, "old")):
        place.mkdir(parents=True)
        for name in (*WHEELS, "SUMS"):
            (place / name).write_text(f"{text} {name}")
    return work, out


def contents(folder: Path) -> dict[str, str]:
    return {path.name: path.read_text() for path in folder.iterdir()}


def killed_after(steps: int, work: Path, out: Path) -> bool:
    """Place everything in a child that is killed before its step ``steps`` on the disk; whether it was."""
    child = os.fork()
    if child == 0:
        left = steps
        real = {name: getattr(os, name) for name in ("link", "replace", "rename", "unlink")}

        def counting(name: str):  # type: ignore[no-untyped-def]
            def call(*args: object, **options: object) -> None:
                nonlocal left
                if left == 0:
                    os.kill(os.getpid(), signal.SIGKILL)
                left -= 1
                real[name](*args, **options)

            return call

        for name in real:
            setattr(os, name, counting(name))
        place_all(work, out, WHEELS, ("SUMS",), force=True)
        os._exit(0)
    return os.WIFSIGNALED(os.waitpid(child, 0)[1])


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_run_with_force_that_is_killed_at_any_step_leaves_each_wheel_old_or_new(tmp_path: Path) -> None:
    steps, killed = 0, True
    while killed:
        work, out = make_folders(tmp_path / str(steps))
        killed = killed_after(steps, work, out)
        found = contents(out)
        for name in WHEELS:
            assert found[name] in (f"old {name}", f"new {name}"), steps
        # What tells of them is there only beside those that it tells of.
        if "SUMS" in found:
            text = found["SUMS"].split()[0]
            assert all(found[name].startswith(text) for name in WHEELS), steps
        steps += 1
    assert steps > len(WHEELS)
    assert contents(out) == {name: f"new {name}" for name in (*WHEELS, "SUMS")}


@pytest.mark.parametrize("call", ["link", "replace"])
@pytest.mark.parametrize("at", range(6))
def test_a_step_that_fails_brings_all_old_files_back(
    call: str, at: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    work, out = make_folders(tmp_path)
    real, count = getattr(os, call), iter(range(100))

    def failing(*args: object, **options: object) -> None:
        if next(count) == at:
            raise OSError(28, "No space left on device")
        real(*args, **options)

    monkeypatch.setattr(os, call, failing)
    try:
        place_all(work, out, WHEELS, ("SUMS",), force=True)
    except FileError:
        assert contents(out) == {name: f"old {name}" for name in (*WHEELS, "SUMS")}
    else:  # fewer steps than that, or one that has another way
        assert contents(out) == {name: f"new {name}" for name in (*WHEELS, "SUMS")}


def test_without_links_files_are_replaced_all_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    work, out = make_folders(tmp_path)

    def refused(*args: object, **options: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "link", refused)
    place_all(work, out, WHEELS, ("SUMS",), force=True)
    assert contents(out) == {name: f"new {name}" for name in (*WHEELS, "SUMS")}
