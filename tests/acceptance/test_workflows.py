"""The workflows of this project and the action for others: what the judges say of them, and what their shell does."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.acceptance.judges import run
from tests.build_tools.test_scripts import BASH, STAND_IN
from tests.build_tools.tiny_project import CHECKOUT, copy_checkout
from tests.build_tools.wheel_factory import make_wheel

GITHUB = CHECKOUT / ".github"
WORKFLOWS = sorted((GITHUB / "workflows").glob("*.yml"))
ACTION = GITHUB / "actions" / "repack" / "action.yml"
DEMO = "demo-1.0-py3-none-any.whl"


def program(name: str) -> str:
    """A program of this environment or of the path; the test is skipped where there is none."""
    found = shutil.which(name, path=str(Path(sys.executable).parent)) or shutil.which(name)
    if found is None:
        pytest.skip(f"{name} is not installed (the dependency group `workflows` brings it)")
    return found


def test_actionlint_has_nothing_to_say() -> None:
    verdict = run([program("actionlint"), "-no-color", *map(str, WORKFLOWS)])
    assert verdict.accepted, verdict.said


def test_zizmor_has_nothing_to_say() -> None:
    verdict = run([program("zizmor"), "--offline", "--pedantic", "--no-progress", str(GITHUB)])
    assert verdict.accepted, verdict.said


def test_shellcheck_has_nothing_to_say() -> None:
    command = [program("shellcheck"), "-x", str(ACTION.with_name("repack.sh"))]
    done = subprocess.run(command, cwd=CHECKOUT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("path", [*WORKFLOWS, ACTION], ids=lambda path: path.name)
class TestPinned:
    def test_every_action_is_pinned_to_a_commit_and_says_its_version(self, path: Path) -> None:
        used = re.findall(r"^\s*(?:- )?uses: *(.*)$", path.read_text(), re.MULTILINE)
        assert [line for line in used if not re.fullmatch(r"[\w-]+/[\w./-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+", line)] == []

    def test_no_expression_stands_in_a_script(self, path: Path) -> None:
        scripts = re.findall(r"^( *)(?:- )?run: (?:\|\n((?:\1 +.*\n|\n)*)|(.*))", path.read_text(), re.MULTILINE)
        assert scripts or path.name != "ci.yml"
        assert not [script for script in scripts if "${{" in "".join(script)]


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_a_workflow_may_do_nothing_but_what_a_job_asks_for(path: Path) -> None:
    text = path.read_text()
    assert "\npermissions: {}\n" in text
    jobs = re.split(r"\n  (?=\w+:\n    name:)", text.partition("\njobs:")[2])[1:]
    assert jobs
    for job in jobs:
        assert "\n    permissions:\n" in job
        assert "\n    timeout-minutes: " in job


def test_each_action_has_one_version_in_all_workflows() -> None:
    pins: dict[str, set[str]] = {}
    for path in (*WORKFLOWS, ACTION):
        for action, pin in re.findall(r"uses: *([\w./-]+)@(.*)$", path.read_text(), re.MULTILINE):
            pins.setdefault(action, set()).add(pin)
    assert {action: pin for action, pin in pins.items() if len(pin) > 1} == {}
    assert {"pypa/gh-action-pypi-publish", "actions/attest-build-provenance"} <= pins.keys()


@dataclass(frozen=True)
class Step:
    """The step of the action, as a runner starts it."""

    action: Path
    workspace: Path
    env: dict[str, str]

    def run(self, wheels: str, options: str = "") -> subprocess.CompletedProcess[str]:
        env = {**os.environ, **self.env, "WHEELS": wheels, "OPTIONS": options}
        script = re.search(r"^      run: '(.*)'$", (self.action / "action.yml").read_text(), re.MULTILINE)
        assert script is not None
        command = [str(BASH), "--noprofile", "--norc", "-eo", "pipefail", "-c", script[1]]
        return subprocess.run(command, cwd=self.workspace, env=env, capture_output=True, text=True)

    @property
    def output(self) -> list[str]:
        """The value of the output ``wheels``, as the runner reads it."""
        lines = Path(self.env["GITHUB_OUTPUT"]).read_text().splitlines()
        name, _, end = lines[0].partition("<<")
        assert (name, lines[-1]) == ("wheels", end)
        assert lines.index(end) == len(lines) - 1
        return lines[1:-1]


@pytest.fixture
def step(tmp_path: Path) -> Step:
    if BASH is None:
        pytest.skip("no bash")
    root, stand_in, workspace = copy_checkout(tmp_path / "the action"), tmp_path / "python", tmp_path / "work space"
    shutil.copytree(GITHUB, root / ".github")
    for folder in (stand_in, workspace, tmp_path / "temp"):
        folder.mkdir()
    (stand_in / "python3").write_text(STAND_IN)
    (stand_in / "python3").chmod(0o755)
    action = root / ".github" / "actions" / "repack"
    env = {
        "PYTHON": str(stand_in / "python3"),
        "STAND_IN": str(stand_in),
        "GITHUB_ACTION_PATH": str(action),
        "GITHUB_OUTPUT": str(tmp_path / "output"),
        "RUNNER_TEMP": str(tmp_path / "temp"),
    }
    return Step(action, workspace, env)


class TestAction:
    def test_it_hands_over_every_input_of_its_description(self) -> None:
        text = ACTION.read_text()
        names = re.findall(
            r"^  (\w+):\n    description", text.partition("\ninputs:")[2].partition("\noutputs:")[0], re.M
        )
        assert re.findall(r"^        (\w+): \$\{\{ inputs\.(\w+) }}$", text, re.M) == [(n.upper(), n) for n in names]
        for name in names:
            assert re.search(rf"\b{name.upper()}\b", ACTION.with_name("repack.sh").read_text())

    def test_patterns_and_paths_with_blanks_become_wheels_and_an_output(self, step: Step) -> None:
        make_wheel(step.workspace / "my dist")
        make_wheel(step.workspace / "my dist", name="other")
        make_wheel(step.workspace, name="third")
        options = "--local cu128 -o 'my out' --add 'Requires-Dist: helper>=1; python_version > \"3\"'"
        done = step.run("\n  my dist/*.whl\n\n  third-1.0-py3-none-any.whl  \n", options)
        assert done.returncode == 0, done.stderr
        made = [f"my out/{name}-1.0+cu128-py3-none-any.whl" for name in ("demo", "other", "third")]
        assert step.output == made == done.stdout.splitlines()
        assert all((step.workspace / path).is_file() for path in made)
        assert list((step.workspace.parent / "temp").iterdir()) == []

    def test_what_an_input_holds_is_never_run(self, step: Step) -> None:
        make_wheel(step.workspace)
        done = step.run(DEMO, '--add "Summary: $(touch run) `touch run`" --set "Author: ; touch run" -o out')
        assert done.returncode == 2
        assert step.run("$(touch run)*\n").returncode == 2
        assert not list(step.workspace.rglob("run"))

    def test_a_pattern_that_matches_nothing_is_an_error(self, step: Step) -> None:
        done = step.run("nothing/*.whl")
        assert (done.returncode, done.stdout) == (2, "")
        assert done.stderr.splitlines()[0] == "error: no file matches 'nothing/*.whl'"
        assert step.run(" \n").stderr.splitlines()[0] == "error: no wheel is given"

    def test_options_that_cannot_be_split_are_said_to_be_so(self, step: Step) -> None:
        make_wheel(step.workspace)
        done = step.run(DEMO, "--add 'Requires")
        assert done.returncode == 2
        assert "error: the input `options` cannot be split: No closing quotation" in done.stderr.splitlines()

    def test_no_options_are_a_normalising_pass(self, step: Step) -> None:
        make_wheel(step.workspace)
        done = step.run(DEMO)
        assert (done.returncode, step.output) == (0, [DEMO])

    def test_a_broken_wheel_fails_the_step_and_the_good_ones_are_told(self, step: Step) -> None:
        make_wheel(step.workspace)
        (step.workspace / "bad-1.0-py3-none-any.whl").write_text("text")
        done = step.run("*.whl", "--local x")
        assert done.returncode == 2
        assert step.output == ["demo-1.0+x-py3-none-any.whl"]
        assert "bad-1.0-py3-none-any.whl" in done.stderr

    def test_it_can_be_run(self) -> None:
        assert os.access(ACTION.with_name("repack.sh"), os.X_OK)
