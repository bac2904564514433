"""A release that did not end: the next run goes on from there, and never by what is no longer right."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path

import pytest

from build_tools import release_trials
from build_tools.project import _Run
from build_tools.release import release
from build_tools.release_memory import FOLDER, Memory
from build_tools.release_record import ReleasedFile
from build_tools.smoke_plan import SmokePlan
from build_tools.smoke_result import SmokeResult, Status
from tests.build_tools.command_line import te_wheel
from tests.build_tools.tiny_project import make_project
from tests.build_tools.wheel_factory import make_wheel

PLAN = '[tool.te-wheel.variants.a]\nname = "demo-a"\n\n[tool.te-wheel.variants.b]\nname = "demo-b"\n'


class Watch:
    """What was built and tried, and where an interrupt comes."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.built: list[str] = []
        self.tried: list[str] = []
        self.interrupt = ""
        build = _Run.build

        def watched(run: _Run, what: str, *rest: object) -> Path:
            self.built.append(what)
            return build(run, what, *rest)  # type: ignore[arg-type]

        def trial(wheel: Path, **_: object) -> SmokeResult:
            if wheel.name.startswith(self.interrupt) and self.interrupt:
                raise KeyboardInterrupt
            self.tried.append(wheel.name.partition("-")[0])
            return SmokeResult(wheel.name, *[Status.passed("as told")] * 3)

        monkeypatch.setattr(_Run, "build", watched)
        monkeypatch.setattr(release_trials, "Base", lambda *_, **__: nullcontext())
        monkeypatch.setattr(release_trials, "smoke_wheel", trial)

    @contextmanager
    def interrupted_at(self, wheel: str) -> Iterator[None]:
        self.interrupt = wheel
        with pytest.raises(KeyboardInterrupt):
            yield
        self.interrupt, self.built, self.tried = "", [], []


@pytest.fixture
def watch(monkeypatch: pytest.MonkeyPatch) -> Watch:
    return Watch(monkeypatch)


@pytest.fixture
def project(tmp_path: Path) -> Path:
    return make_project(tmp_path / "project", plan=PLAN)


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_what_is_done_and_still_right_is_not_done_again(project: Path, watch: Watch, tmp_path: Path) -> None:
    out = tmp_path / "out"
    with watch.interrupted_at("demo_b"):
        release(project, out, jobs=1)
    assert os.listdir(out) == [FOLDER]
    said: list[str] = []
    release(project, out, jobs=1, report=said.append)
    assert (watch.built, watch.tried) == (["sdist"], ["demo_b"])
    assert any("an earlier run built demo-1.0" in line for line in said)
    assert any("demo_a" in line and "passed its trial in an earlier run" in line for line in said)
    release(project, tmp_path / "undisturbed")
    assert contents(out) == contents(tmp_path / "undisturbed")


def test_other_sources_are_built_anew(project: Path, watch: Watch, tmp_path: Path) -> None:
    with watch.interrupted_at("demo_b"):
        release(project, tmp_path / "out", jobs=1)
    (project / "new.txt").write_text("new")
    release(project, tmp_path / "out", jobs=1)
    assert watch.built == ["sdist", "wheel"]


@pytest.mark.parametrize("damage", ["wheel", "no wheel", "memory", "system", "schema", "types"])
def test_what_was_damaged_meanwhile_counts_for_nothing(
    damage: str, project: Path, watch: Watch, tmp_path: Path
) -> None:
    home = tmp_path / "out" / FOLDER
    with watch.interrupted_at("demo_b"):
        release(project, tmp_path / "out", jobs=1)
    (wheel,) = home.glob("*.whl")
    facts = json.loads((home / "memory.json").read_text())
    if damage == "wheel":
        wheel.write_bytes(wheel.read_bytes()[:-1] + b"x")
    elif damage == "no wheel":
        wheel.unlink()
    elif damage == "memory":
        (home / "memory.json").write_text("{")
    else:
        facts |= {"types": {"built": [], "trials": 7}, "schema": {"schema": 0}, "system": {"system": "other"}}[damage]
        (home / "memory.json").write_text(json.dumps(facts))
    release(project, tmp_path / "out", jobs=1)
    assert watch.built == ["sdist", "wheel"]


def test_fresh_does_everything_again(project: Path, watch: Watch, tmp_path: Path) -> None:
    with watch.interrupted_at("demo_b"):
        release(project, tmp_path / "out", jobs=1)
    assert te_wheel("release", project, "-o", tmp_path / "out", "--fresh", "--jobs", "1").code == 0
    assert watch.built == ["sdist", "wheel"]
    assert watch.tried == ["demo", "demo_a", "demo_b"]


def test_a_release_that_is_whole_leaves_no_memory(project: Path, watch: Watch, tmp_path: Path) -> None:
    release(project, tmp_path / "out")
    assert FOLDER not in os.listdir(tmp_path / "out")


def test_only_a_trial_that_passed_and_was_asked_the_same_is_known(tmp_path: Path) -> None:
    wheel = ReleasedFile.of(make_wheel(tmp_path))
    asked = SmokePlan(imports=("demo",))
    passed = SmokeResult(wheel.path.name, Status.passed("without dependencies"), Status.passed(), Status.passed())
    memory = Memory(tmp_path)
    memory.keep_trial(wheel, asked, SmokeResult(wheel.path.name, Status.passed(), Status.passed(), Status.failed("x")))
    assert Memory(tmp_path).find_trial(wheel, asked) is None
    memory.keep_trial(wheel, asked, passed)
    assert Memory(tmp_path).find_trial(wheel, asked) == passed
    assert Memory(tmp_path).find_trial(wheel, SmokePlan(imports=("demo", "json"))) is None
    assert Memory(tmp_path).find_trial(ReleasedFile(wheel.path, wheel.size, "0" * 64), asked) is None


def test_a_folder_that_takes_nothing_is_no_error(tmp_path: Path) -> None:
    (tmp_path / FOLDER).write_text("in the way")
    wheel = make_wheel(tmp_path / "in")
    memory = Memory(tmp_path)
    memory.keep_wheel(wheel, wheel)
    assert memory.find_wheel(wheel) is None


@pytest.mark.parametrize("jobs", [1, 2, None])
def test_trials_at_once_are_told_and_listed_in_the_order_of_the_plan(
    jobs: int | None, project: Path, watch: Watch, tmp_path: Path
) -> None:
    done = release(project, tmp_path / "out", jobs=jobs)
    assert [artifact.variant for artifact in done.artifacts] == [None, "a", "b"]
    assert sorted(watch.tried) == ["demo", "demo_a", "demo_b"]
    assert all(str(artifact.smoke.install) == "passed, as told" for artifact in done.artifacts)
