from __future__ import annotations

import errno
import hashlib
import json
import os
import platform
import shutil
import subprocess
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from packaging.version import Version

from build_tools import __version__, release_placing, release_trials
from build_tools import release as release_module
from build_tools.errors import EditError, FileError, OutputExistsError, PlanError, ToolError, WheelError
from build_tools.project import Built, build_project
from build_tools.release import release
from build_tools.release_memory import FOLDER
from build_tools.release_record import Release, format_table
from build_tools.smoke_result import SmokeResult, Status
from build_tools.wheels.name import WheelName
from tests.build_tools.command_line import te_wheel
from tests.build_tools.tiny_project import make_project
from tests.build_tools.wheel_factory import make_wheel

PLAN = """
[tool.te-wheel.variants.cu12]
name = "demo_cu12"
platform-tag = "manylinux_2_28_x86_64"
add = ["Requires-Dist: helper"]
[tool.te-wheel.variants.cpu]
local = "cpu"
"""
BASE = "demo-1.0-py3-none-any.whl"
CU12 = "demo_cu12-1.0-py3-none-manylinux_2_28_x86_64.whl"
CPU = "demo-1.0+cpu-py3-none-any.whl"


@pytest.fixture
def plan(tmp_path: Path) -> Path:
    """A project that is a plan and nothing else."""
    return write_plan(tmp_path, PLAN)


def write_plan(tmp_path: Path, text: str) -> Path:
    folder = tmp_path / "project"
    folder.mkdir(exist_ok=True)
    (folder / "pyproject.toml").write_text(text)
    return folder


def stand_in(monkeypatch: pytest.MonkeyPatch, tried: Callable[..., SmokeResult]) -> None:
    """Take ``tried`` for the trial of a wheel; no environment is made."""
    monkeypatch.setattr(release_trials, "Base", lambda *_, **__: nullcontext())
    monkeypatch.setattr(release_trials, "smoke_wheel", tried)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if path.name != FOLDER) if folder.exists() else []


def facts_of(folder: Path) -> Any:
    return json.loads((folder / "release.json").read_text())


def sums_of(folder: Path) -> dict[str, str]:
    lines = (folder / "SHA256SUMS").read_text().splitlines()
    return {name: digest for digest, name in (line.split("  ") for line in lines)}


class TestFromAWheel:
    """``--wheel FILE``: an existing wheel in place of the build."""

    def test_each_variant_is_made_and_the_wheel_stays_where_it_is(self, plan: Path, tmp_path: Path) -> None:
        wheel = make_wheel(tmp_path / "in")
        before = wheel.read_bytes()
        done = release(plan, tmp_path / "out", wheel=wheel, smoke=False)
        assert names(tmp_path / "out") == sorted([CU12, CPU, "SHA256SUMS", "release.json"])
        assert [(artifact.variant, artifact.file.path.name) for artifact in done.artifacts] == [
            ("cu12", CU12),
            ("cpu", CPU),
        ]
        assert (done.name, done.version, done.sdist, done.failed, done.faults) == (
            "demo",
            Version("1.0"),
            None,
            False,
            (),
        )
        assert wheel.read_bytes() == before

    def test_only_makes_the_variants_that_it_names(self, plan: Path, tmp_path: Path) -> None:
        done = release(plan, tmp_path / "out", wheel=make_wheel(tmp_path / "in"), only=["cpu"], smoke=False)
        assert [artifact.variant for artifact in done.artifacts] == ["cpu"]
        assert list(sums_of(tmp_path / "out")) == [CPU]

    def test_a_wheel_that_lies_in_the_output_folder_is_part_of_the_release(self, plan: Path, tmp_path: Path) -> None:
        wheel = make_wheel(tmp_path / "out")
        done = release(plan, tmp_path / "out", wheel=wheel, smoke=False)
        assert [artifact.variant for artifact in done.artifacts] == [None, "cu12", "cpu"]
        assert set(sums_of(tmp_path / "out")) == {BASE, CU12, CPU}

    def test_another_version_than_the_projects_is_a_warning_that_stays(self, plan: Path, tmp_path: Path) -> None:
        (plan / "VERSION.txt").write_text("1.1")
        wheel = make_wheel(tmp_path / "in")
        done = te_wheel("release", "-q", plan, "-o", tmp_path / "out", "--wheel", wheel, "--no-smoke")
        odd = f"{BASE} has version 1.0, VERSION.txt says 1.1"
        assert (done.code, done.err) == (0, f"warning: {odd}\n")
        assert facts_of(tmp_path / "out")["notes"] == [odd]

    @pytest.mark.parametrize("name", ["demo", "Demo"])
    def test_a_wheel_of_this_project_may_be_spelled_otherwise(self, tmp_path: Path, name: str) -> None:
        plan = write_plan(tmp_path, f'[project]\nname = "{name}"\n{PLAN}')
        assert release(plan, tmp_path / "out", wheel=make_wheel(tmp_path / "in"), smoke=False).warnings == ()


class TestFromSources:
    def test_the_built_wheel_and_the_sdist_are_part_of_the_release(self, tmp_path: Path) -> None:
        project = make_project(tmp_path / "project", plan=PLAN)
        done = release(project, tmp_path / "out", smoke=False)
        files = ["1.0.dev0+cpu-py3-none-any.whl", "1.0.dev0-py3-none-any.whl", "1.0.dev0.tar.gz"]
        wheels = [f"demo-{file}" for file in files] + ["demo_cu12-1.0.dev0-py3-none-manylinux_2_28_x86_64.whl"]
        assert names(tmp_path / "out") == sorted(["SHA256SUMS", "release.json", *wheels])
        assert list(sums_of(tmp_path / "out")) == sorted(wheels)
        assert done.sdist is not None
        assert done.artifacts[0].variant is None

    def test_a_second_run_changes_nothing(self, tmp_path: Path) -> None:
        project = make_project(tmp_path / "project", plan=PLAN)
        release(project, tmp_path / "out", smoke=False)
        before = {path.name: (path.read_bytes(), path.stat().st_ino) for path in (tmp_path / "out").iterdir()}
        release(project, tmp_path / "out", smoke=False)
        assert before == {path.name: (path.read_bytes(), path.stat().st_ino) for path in (tmp_path / "out").iterdir()}

    def test_changed_sources_replace_nothing_unless_forced(self, tmp_path: Path) -> None:
        project = make_project(tmp_path / "project", plan=PLAN)
        release(project, tmp_path / "out", smoke=False)
        before = contents(tmp_path / "out")
        (project / "demo" / "__init__.py").write_text("VALUE = 2\n")
        with pytest.raises(OutputExistsError, match="exists already with other bytes"):
            release(project, tmp_path / "out", smoke=False)
        assert contents(tmp_path / "out") == before
        done = release(project, tmp_path / "out", smoke=False, force=True)
        assert not done.failed
        assert sums_of(tmp_path / "out").keys() == before.keys() - {"SHA256SUMS", "release.json"}


class TestFacts:
    def test_sha256sum_accepts_the_sums(self, plan: Path, tmp_path: Path) -> None:
        release(plan, tmp_path / "out", wheel=make_wheel(tmp_path / "in"), smoke=False)
        sums = sums_of(tmp_path / "out")
        assert list(sums) == sorted([CPU, CU12])
        for name, digest in sums.items():
            assert hashlib.sha256((tmp_path / "out" / name).read_bytes()).hexdigest() == digest
        tool = shutil.which("sha256sum")
        if tool is not None:
            subprocess.run(
                [tool, "--strict", "-c", "SHA256SUMS"], cwd=tmp_path / "out", check=True, capture_output=True
            )

    def test_the_same_wheel_gives_the_same_facts_in_any_folder(self, plan: Path, tmp_path: Path) -> None:
        for place in ("one", "two"):
            os.utime(make_wheel(tmp_path / f"in-{place}"), (2e9, 2e9))
            release(plan, tmp_path / place, wheel=tmp_path / f"in-{place}" / BASE, smoke=False)
        for file in ("release.json", "SHA256SUMS"):
            assert (tmp_path / "one" / file).read_bytes() == (tmp_path / "two" / file).read_bytes()
            assert str(tmp_path) not in (tmp_path / "one" / file).read_text()

    def test_release_json_has_the_documented_keys(self, plan: Path, tmp_path: Path) -> None:
        wheel = make_wheel(tmp_path / "in")
        release(plan, tmp_path / "out", wheel=wheel, smoke=False, only=["cpu"])
        path = tmp_path / "out" / CPU
        assert facts_of(tmp_path / "out") == {
            "schema": 1,
            "name": "demo",
            "version": "1.0",
            "source": {
                "file": BASE,
                "size": wheel.stat().st_size,
                "sha256": hashlib.sha256(wheel.read_bytes()).hexdigest(),
            },
            "sdist": None,
            "artifacts": [
                {
                    "file": CPU,
                    "size": path.stat().st_size,
                    "sha256": hashlib.sha256(path.read_bytes()).hexdigest(),
                    "variant": "cpu",
                    "changes": [
                        {"where": "filename", "field": "name", "old": BASE, "new": CPU},
                        {
                            "where": "folder",
                            "field": "dist-info",
                            "old": "demo-1.0.dist-info",
                            "new": "demo-1.0+cpu.dist-info",
                        },
                        {"where": "METADATA", "field": "Version", "old": "1.0", "new": "1.0+cpu"},
                    ],
                    "findings": [],
                    "smoke": dict.fromkeys(["install", "import", "version"], "skipped: not asked for"),
                }
            ],
            "failures": [],
            "edits": {"cpu": {"local": "cpu"}},
            "tools": {"te-build-tools": __version__, "python": platform.python_version()},
            "notes": [],
        }


class TestRefusedBeforeAnythingIsWritten:
    def refused(self, tmp_path: Path, plan: str, kind: type[Exception], **options: Any) -> tuple[str, ...]:
        if "wheel" not in options:
            options["wheel"] = make_wheel(tmp_path / "in")
        with pytest.raises(kind) as caught:
            release(write_plan(tmp_path, plan), tmp_path / "out", smoke=False, **options)
        assert not (tmp_path / "out").exists()
        faults: tuple[str, ...] = caught.value.faults  # type: ignore[attr-defined]
        return faults

    def test_an_unknown_variant_is_answered_with_the_known_ones(self, tmp_path: Path) -> None:
        faults = self.refused(tmp_path, PLAN, PlanError, only=["cu13", "cpu"])
        assert faults == ("the plan has no variant 'cu13', expected one of 'cu12', 'cpu'",)

    def test_every_edit_that_does_not_fit_the_wheel_is_named(self, tmp_path: Path) -> None:
        bad = '[tool.te-wheel.variants.a]\nname = "a"\nremove-file = ["nothing/*"]\n'
        faults = self.refused(
            tmp_path, bad + bad.replace("variants.a", "variants.b").replace('"a"', '"b"') + PLAN, EditError
        )
        assert [fault.partition(": ")[0] for fault in faults] == ["variant 'a'", "variant 'b'"]

    def test_a_wheel_of_another_project_is_named_with_both(self, tmp_path: Path) -> None:
        (fault,) = self.refused(tmp_path, f'[project]\nname = "other"\n{PLAN}', PlanError)
        assert fault == f"{BASE} is a wheel of 'demo', expected one of 'other', the project that the plan belongs to"

    def test_two_variants_that_turn_out_to_be_one_file_are_named(self, tmp_path: Path) -> None:
        plan = '[tool.te-wheel.variants.a]\nname = "x"\n[tool.te-wheel.variants.b]\nname = "x"\nlocal = ""\n'
        faults = self.refused(tmp_path, plan, EditError)
        assert faults == ("variant 'b' would be x-1.0-py3-none-any.whl, the same file as variant 'a'",)

    def test_a_variant_that_would_be_the_wheel_itself_is_named(self, tmp_path: Path) -> None:
        wheel = make_wheel(tmp_path / "in")
        plan = write_plan(tmp_path, '[tool.te-wheel.variants.a]\nset = ["Summary: x"]\n')
        before = wheel.read_bytes()
        with pytest.raises(EditError, match="the same file as the wheel that it is made from"):
            release(plan, wheel.parent, wheel=wheel, smoke=False)
        assert names(wheel.parent) == [BASE]
        assert wheel.read_bytes() == before
        assert not release(plan, tmp_path / "out", wheel=wheel, smoke=False).failed

    def test_a_wheel_that_breaks_a_rule_is_no_start(self, tmp_path: Path) -> None:
        wheel = make_wheel(tmp_path / "in", metadata="Metadata-Version: 2.1\nName: other\nVersion: 1.0\n\n")
        faults = self.refused(tmp_path, PLAN, WheelError, wheel=wheel)
        assert [fault for fault in faults if "[metadata-name]" in fault]

    def test_a_wheel_that_is_not_there(self, tmp_path: Path) -> None:
        self.refused(tmp_path, PLAN, FileError, wheel=tmp_path / "demo-1.0-py3-none-any.whl")

    def test_every_file_that_is_there_with_other_bytes_is_named(self, plan: Path, tmp_path: Path) -> None:
        out = tmp_path / "out"
        out.mkdir()
        for name in (CPU, CU12, "SHA256SUMS"):
            (out / name).write_text("something else")
        wheel = make_wheel(tmp_path / "in")
        with pytest.raises(OutputExistsError) as caught:
            release(plan, out, wheel=wheel, smoke=False)
        assert caught.value.faults == tuple(f"'{out / name}' exists already with other bytes" for name in (CU12, CPU))
        assert {path.read_text() for path in out.iterdir()} == {"something else"}
        assert not release(plan, out, wheel=wheel, smoke=False, force=True).failed
        assert names(out) == sorted([CPU, CU12, "SHA256SUMS", "release.json"])

    def test_an_output_folder_that_cannot_be_written_is_known_before_the_build(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(release_module, "build_project", lambda *_, **__: pytest.fail("the build was started"))
        (tmp_path / "file").write_text("")
        with pytest.raises(FileError):
            release(make_project(tmp_path / "project", plan=PLAN), tmp_path / "file" / "out")

    @pytest.mark.parametrize("edit", ['set = ["Summary: x"]', 'version = "1.0.dev0"', 'name = "Demo"', 'local = ""'])
    def test_a_variant_that_the_plan_shows_to_be_the_built_wheel_is_known_before_the_build(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, edit: str
    ) -> None:
        monkeypatch.setattr(release_module, "build_project", lambda *_, **__: pytest.fail("the build was started"))
        project = make_project(tmp_path / "project", plan=f"{PLAN}[tool.te-wheel.variants.same]\n{edit}\n")
        with pytest.raises(PlanError, match="variant 'same' would be the same file as the wheel that it is made from"):
            release(project, tmp_path / "out")
        assert not (tmp_path / "out").exists()

    def test_an_output_folder_that_is_a_file(self, plan: Path, tmp_path: Path) -> None:
        (tmp_path / "out").write_text("")
        with pytest.raises(FileError, match="is no folder, expected the output folder"):
            release(plan, tmp_path / "out", wheel=make_wheel(tmp_path / "in"), smoke=False)


class TestFailures:
    """One variant that fails does not stop the others, and is not among the sums."""

    @pytest.fixture
    def full(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """A disk that takes every variant but cu12."""
        write = release_module.repack

        def repack(wheel: Path, folder: Path, edit: Any, **options: Any) -> Any:
            if edit.name and not options:
                raise FileError(f"cannot write '{folder / CU12}': No space left on device", hint="free some space")
            return write(wheel, folder, edit, **options)

        monkeypatch.setattr(release_module, "repack", repack)

    @pytest.mark.usefixtures("full")
    def test_a_variant_that_cannot_be_written_is_named_and_the_others_are_made(
        self, plan: Path, tmp_path: Path
    ) -> None:
        done = release(plan, tmp_path / "out", wheel=make_wheel(tmp_path / "in"), smoke=False)
        assert done.failed
        assert list(sums_of(tmp_path / "out")) == [CPU]
        (failure,) = facts_of(tmp_path / "out")["failures"]
        assert failure == {"variant": "cu12", "faults": [f"cannot write '{CU12}': No space left on device"]}
        assert names(tmp_path / "out") == sorted([CPU, "SHA256SUMS", "release.json"])

    @pytest.mark.parametrize(
        ("error", "told"),
        [
            (OSError(errno.EIO, "broken disk"), "cannot work on 'cu12': broken disk"),
            (OSError(errno.EIO, "broken disk", "/dev/x"), "cannot work on 'cu12': broken disk: '/dev/x'"),
            (MemoryError(), "cannot work on 'cu12': out of memory"),
        ],
    )
    def test_what_the_system_refuses_a_variant_is_told_by_its_name(
        self, error: Exception, told: str, plan: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        write = release_module.repack

        def repack(wheel: Path, folder: Path, edit: Any, **options: Any) -> Any:
            if edit.name and not options:
                raise error
            return write(wheel, folder, edit, **options)

        monkeypatch.setattr(release_module, "repack", repack)
        done = release(plan, tmp_path / "out", wheel=make_wheel(tmp_path / "in"), smoke=False)
        assert [(failure.variant, failure.faults) for failure in done.failures] == [("cu12", (told,))]
        assert list(sums_of(tmp_path / "out")) == [CPU]

    @pytest.mark.usefixtures("full")
    def test_the_job_page_shows_it_and_the_hint_is_kept(
        self, plan: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        page = tmp_path / "page"
        monkeypatch.setenv("GITHUB_ACTIONS", "true")
        monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(page))
        wheel = make_wheel(tmp_path / "in")
        done = te_wheel("release", plan, "-o", tmp_path / "out", "--wheel", wheel, "--no-smoke")
        assert done.code == 2
        assert "hint: free some space" in done.err
        rows = [line.split(" | ") for line in page.read_text().splitlines() if line.startswith("| ")]
        assert rows[0] == ["| wheel", "check", "install", "import", "version |"]
        assert rows[2][:2] == [f"| {CPU}", "passed"]
        assert rows[3][:2] == ["| variant cu12: not written", "failed"]

    def test_a_broken_rule_fails_a_wheel(self, plan: Path, tmp_path: Path) -> None:
        wheel = make_wheel(tmp_path / "in", files={"demo/a.py": "", "Demo/a.py": ""})
        done = release(plan, tmp_path / "out", wheel=wheel, smoke=False)
        assert done.failed
        assert all("[zip-case-collision]" in fault for fault in done.faults)
        assert len(done.faults) == 2
        assert sums_of(tmp_path / "out") == {}

    def test_a_failed_trial_fails_a_wheel_and_a_skipped_one_does_not(
        self, plan: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def tried(wheel: Path, **_: object) -> SmokeResult:
            why = Status.failed("no") if wheel.name == CPU else Status.skipped("no torch")
            return SmokeResult(wheel.name, Status.passed(), why, Status.passed())

        stand_in(monkeypatch, tried)
        done = release(plan, tmp_path / "out", wheel=make_wheel(tmp_path / "in"))
        assert [artifact.failed for artifact in done.artifacts] == [False, True]
        assert list(sums_of(tmp_path / "out")) == [CU12]
        assert done.faults == (f"{CPU}: import failed: no",)

    def test_a_trial_that_is_not_possible_here_is_skipped(
        self, plan: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        class NoBase:
            def __init__(self, *_: object, **__: object) -> None:
                raise ToolError("no virtual environment can be made")

        monkeypatch.setattr(release_trials, "Base", NoBase)
        done = release(plan, tmp_path / "out", wheel=make_wheel(tmp_path / "in"))
        assert not done.failed
        assert {str(artifact.smoke.imported) for artifact in done.artifacts} == {
            "skipped: no virtual environment can be made"
        }


def test_each_wheel_is_tried_in_a_layer_over_one_base(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_wheel(tmp_path / "links", name="helper")
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "links"))
    smoke = '[tool.te-wheel.smoke]\nrequires = ["helper==1.0"]\nimport = ["demo", "helper"]\nrun = "demo.VALUE == 1"\n'
    variants = PLAN + '[tool.te-wheel.variants.win]\nname = "demo_win"\nplatform-tag = "win32"\n'
    variants = variants.replace("manylinux_2_28_x86_64", "any")
    said: list[str] = []
    done = release(
        write_plan(tmp_path, smoke + variants), tmp_path / "out", wheel=make_wheel(tmp_path / "in"), report=said.append
    )
    passed = dict.fromkeys(["install", "import", "version"], "passed")
    found = {artifact["variant"]: artifact["smoke"] for artifact in facts_of(tmp_path / "out")["artifacts"]}
    assert (found["cu12"], found["cpu"]) == (passed, passed)
    assert all(
        status.startswith("skipped: demo_win-1.0-py3-none-win32.whl is not for Python")
        for status in found["win"].values()
    )
    assert said.count("installing helper==1.0, once for all wheels") == 1
    assert not done.failed


class TestInterrupted:
    """A run that is broken off leaves what was there before, whenever that happens."""

    @pytest.fixture
    def before(self, plan: Path, tmp_path: Path) -> dict[str, bytes]:
        """The output folder with an earlier release, of another wheel."""
        release(plan, tmp_path / "out", wheel=make_wheel(tmp_path / "old", files={"demo/old.py": ""}), smoke=False)
        return contents(tmp_path / "out")

    def test_while_a_wheel_is_tried(
        self, plan: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, before: dict[str, bytes]
    ) -> None:
        def tried(wheel: Path, **_: object) -> SmokeResult:
            raise KeyboardInterrupt

        stand_in(monkeypatch, tried)
        for out in ("out", "new"):
            with pytest.raises(KeyboardInterrupt):
                release(plan, tmp_path / out, wheel=make_wheel(tmp_path / "in"), force=True)
        assert contents(tmp_path / "out") == before
        assert not (tmp_path / "new").exists()

    @pytest.mark.parametrize("count", range(4))
    @pytest.mark.parametrize("links", [True, False], ids=["with links", "without links"])
    def test_while_the_files_get_their_places(
        self,
        plan: Path,
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
        before: dict[str, bytes],
        count: int,
        links: bool,
    ) -> None:
        wheel, moved = make_wheel(tmp_path / "in"), 0

        def interruptible(step: Callable[..., None]) -> Callable[..., None]:
            def take(*paths: Path) -> None:
                nonlocal moved
                if moved == count:
                    raise KeyboardInterrupt
                moved += 1
                step(*paths)

            return take

        def no_links(*paths: Path, **options: object) -> None:
            raise PermissionError(1, "no links here")

        for step in ("_move", "_replace"):
            monkeypatch.setattr(release_placing, step, interruptible(getattr(release_placing, step)))
        if not links:
            monkeypatch.setattr(os, "link", no_links)
        with pytest.raises(KeyboardInterrupt):
            release(plan, tmp_path / "out", wheel=wheel, smoke=False, force=True)
        assert contents(tmp_path / "out") == before

    def test_a_file_that_another_run_makes_meanwhile_stays(self, plan: Path, tmp_path: Path) -> None:
        wheel, theirs = make_wheel(tmp_path / "in"), tmp_path / "out" / CPU

        def meanwhile(work: Path, folder: Path, names: Any) -> None:
            theirs.write_text("theirs")

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(release_module, "require_free", meanwhile)
            with pytest.raises(OutputExistsError, match="made by another run meanwhile"):
                release(plan, tmp_path / "out", wheel=wheel, smoke=False)
        assert contents(tmp_path / "out") == {CPU: b"theirs"}


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.name != FOLDER}


def test_a_built_wheel_that_the_plan_does_not_fit_is_kept_for_the_next_run(tmp_path: Path) -> None:
    bad = '[tool.te-wheel.variants.cpu]\nlocal = "cpu"\nremove-file = ["nothing/*"]\n'
    project = make_project(tmp_path / "project", plan=bad)
    with pytest.raises(EditError) as caught:
        release(project, tmp_path / "out", smoke=False)
    kept = tmp_path / "out" / "demo-1.0.dev0-py3-none-any.whl"
    assert names(tmp_path / "out") == [kept.name]
    assert (caught.value.hint or "").endswith(f"the built wheel is kept: mend the plan, then give --wheel {kept}")
    plan = (project / "pyproject.toml").read_text().replace('remove-file = ["nothing/*"]', "")
    (project / "pyproject.toml").write_text(plan)
    assert not release(project, tmp_path / "out", wheel=kept, smoke=False).failed


def test_the_released_sdist_builds_the_released_wheel(tmp_path: Path) -> None:
    done = release(make_project(tmp_path / "project", plan=PLAN), tmp_path / "out", smoke=False)
    assert done.sdist is not None
    shutil.unpack_archive(done.sdist.path, tmp_path / "again", filter="data")
    again: Built = build_project(tmp_path / "again" / "demo-1.0.dev0", tmp_path / "built")
    assert again.wheel.read_bytes() == done.source.path.read_bytes()


class TestTable:
    def test_it_has_a_line_for_each_file_and_the_reasons_below(
        self, plan: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        results = {
            CU12: (Status.passed(), Status.skipped("no torch"), Status.passed()),
            CPU: (Status.passed(), Status.passed(), Status.failed("demo.__version__ is '2'")),
        }
        stand_in(monkeypatch, lambda wheel, **_: SmokeResult(wheel.name, *results[wheel.name]))
        done = release(plan, tmp_path / "out", wheel=make_wheel(tmp_path / "in"))
        lines = format_table(done).splitlines()
        assert [line.split() for line in lines[:3]] == [
            ["file", "size", "variant", "check", "install", "import"],
            [CU12, *size(done, 0), "cu12", "passed", "passed", "skipped"],
            [CPU, *size(done, 1), "cpu", "passed", "passed", "failed"],
        ]
        assert lines[3:] == [f"{CU12}: import skipped: no torch", f"{CPU}: version failed: demo.__version__ is '2'"]

    def test_what_a_wheel_says_cannot_steer_a_terminal(
        self, plan: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        why = Status.failed("\x1b]0;owned\x07\nall passed")
        stand_in(monkeypatch, lambda wheel, **_: SmokeResult(wheel.name, why, why, why))
        done = release(plan, tmp_path / "out", wheel=make_wheel(tmp_path / "in"))
        assert all(line.isprintable() for line in format_table(done).split("\n"))
        assert "all passed" not in format_table(done).splitlines()

    @pytest.mark.parametrize(("count", "said"), [(1, "1 error"), (2, "2 errors")])
    def test_errors_are_counted_in_words(self, plan: Path, tmp_path: Path, count: int, said: str) -> None:
        files = {f"{folder}/{n}.py": "" for n in range(count) for folder in ("demo", "Demo")}
        done = release(plan, tmp_path / "out", wheel=make_wheel(tmp_path / "in", files=files), smoke=False)
        assert done.artifacts[0].check == said


def size(done: Release, index: int) -> list[str]:
    bytes_ = done.artifacts[index].file.size
    return [str(bytes_), "B"] if bytes_ < 1000 else [f"{bytes_ / 1000:.1f}", "kB"]


class TestCommandLine:
    """Exit 0 made and good, 1 made but not good, 2 could not."""

    def test_the_table_goes_to_stdout(self, plan: Path, tmp_path: Path) -> None:
        done = te_wheel("release", plan, "-o", tmp_path / "out", "--wheel", make_wheel(tmp_path / "in"), "--no-smoke")
        assert (done.code, done.lines[0].split()[0]) == (0, "file")

    def test_json_is_release_json(self, plan: Path, tmp_path: Path) -> None:
        wheel = make_wheel(tmp_path / "in")
        done = te_wheel(
            "release", plan, "-o", tmp_path / "out", "--wheel", wheel, "--no-smoke", "--json", "--only", "cpu"
        )
        assert done.json == facts_of(tmp_path / "out")

    def test_a_broken_rule_is_exit_1_and_a_variant_that_is_not_there_exit_2(self, plan: Path, tmp_path: Path) -> None:
        wheel = make_wheel(tmp_path / "in", files={"demo/a.py": "", "Demo/a.py": ""})
        common = ("release", plan, "-o", tmp_path / "out", "--wheel", wheel, "--no-smoke")
        assert te_wheel(*common).code == 1
        (tmp_path / "out" / CPU).write_text("")
        assert te_wheel(*common).code == 2
        assert te_wheel(*common, "--only", "cu13").errors == [
            "the plan has no variant 'cu13', expected one of 'cu12', 'cpu'"
        ]

    def test_what_was_skipped_is_a_warning_even_under_quiet(
        self, plan: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        alone, skipped = Status.passed("without dependencies"), Status.skipped("no torch")
        stand_in(monkeypatch, lambda wheel, **_: SmokeResult(wheel.name, alone, skipped, Status.passed()))
        done = te_wheel("release", "-q", plan, "-o", tmp_path / "out", "--wheel", make_wheel(tmp_path / "in"))
        assert done.code == 0
        assert done.err.splitlines() == [f"warning: {name}: import skipped: no torch" for name in (CU12, CPU)]
        assert f"{CPU}: install passed, without dependencies" in done.lines

    @pytest.mark.parametrize("option", ["-o", "--wheel"])
    def test_an_empty_path_is_a_mistake(self, plan: Path, option: str) -> None:
        done = te_wheel("release", plan, option, "")
        assert (done.code, done.errors) == (2, [f"argument {option}: expected a path, got ''"])

    def test_a_project_that_is_not_there_is_named(self, tmp_path: Path) -> None:
        done = te_wheel("release", tmp_path / "nodir")
        assert done.errors == [f"'{tmp_path / 'nodir'}' is not there, expected the folder of a project"]


def test_every_output_name_is_in_normal_form(plan: Path, tmp_path: Path) -> None:
    wheel = make_wheel(
        tmp_path / "in", name="Demo.Pkg", dist_info="Demo.Pkg-1.0.dist-info", filename="Demo.Pkg-1.0-py3-none-any.whl"
    )
    done = release(plan, tmp_path / "out", wheel=wheel, smoke=False)
    for artifact in done.artifacts:
        assert WheelName.parse(artifact.file.path.name).filename == artifact.file.path.name


def test_a_full_disk_is_told_with_the_folder_that_the_user_named(
    plan: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(release_module, "check_wheel", full)
    with pytest.raises(FileError) as refused:
        release(plan, tmp_path / "out", wheel=make_wheel(tmp_path / "in"), smoke=False)
    assert refused.value.faults == (f"cannot write {str(tmp_path / 'out')!r}: No space left on device",)
