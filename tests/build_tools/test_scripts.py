from __future__ import annotations

import ast
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import tomllib
import venv
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.build_tools.command_line import te_wheel
from tests.build_tools.tiny_project import CHECKOUT, copy_checkout, need_registry
from tests.build_tools.wheel_factory import make_wheel

SCRIPTS = CHECKOUT / "scripts"
BASH = shutil.which("bash")

STAND_IN = f"""\
#!{BASH}
# A Python that installs nothing: it notes what it is asked for in $STAND_IN/log, and fails where a file says so.
note() {{ printf '%s|' "$@" >>"$STAND_IN/log"; echo >>"$STAND_IN/log"; }}
fail() {{ [ ! -e "$STAND_IN/fail-$1" ] || exit 1; }}
case "$*" in
  '-m venv -- '*) note venv; mkdir -p "$4/bin"; cp "$0" "$4/bin/python" ;;
  '-m pip install '*' atheris') note pip atheris; fail atheris ;;
  '-m pip install '*) shift 6; note pip "$@"; fail pip ;;
  'scripts/fuzz.py '*) note fuzz; fail fuzz ;;
  '-m pytest'*) shift 2; note pytest "$@"; echo '== 3 passed in 0.01s =='; fail pytest ;;
  '-m ruff check'*) note ruff-check; fail ruff-check ;;
  '-m ruff format --check'*) note ruff-format; fail ruff-format ;;
  '-m mypy'*) note mypy; fail mypy ;;
  '-P -m build_tools '*) shift 3; note build_tools "$@" ;;
  *purelib*) note checkout.pth ;;
  *) exec '{sys.executable}' "$@" ;;
esac
"""


@dataclass(frozen=True)
class Copy:
    """A checkout in a folder with a blank in its name, and a Python that only notes what it is asked for."""

    root: Path
    stand_in: Path

    def run(self, script: str, *arguments: str | Path, **env: str) -> subprocess.CompletedProcess[str]:
        variables = {"PYTHON": str(self.stand_in / "python3"), "STAND_IN": str(self.stand_in), **env}
        elsewhere = self.stand_in / "else where"
        elsewhere.mkdir(exist_ok=True)
        return subprocess.run(
            [str(self.root / script), *arguments],
            cwd=elsewhere,
            env={**os.environ, **variables},
            capture_output=True,
            text=True,
        )

    def take_log(self) -> list[list[str]]:
        """What was asked for since the last look; the folder of the checkout reads ``ROOT``."""
        log = self.stand_in / "log"
        text = log.read_text().replace(str(self.root), "ROOT") if log.exists() else ""
        log.unlink(missing_ok=True)
        return [line.removesuffix("|").split("|") for line in text.splitlines()]


@pytest.fixture
def copy(tmp_path: Path) -> Copy:
    if BASH is None:
        pytest.skip("no bash")
    root, stand_in = tmp_path / "check out", tmp_path / "stand in"
    for folder in ("scripts", ".ci"):
        shutil.copytree(CHECKOUT / folder, root / folder, ignore=shutil.ignore_patterns("__pycache__"))
    (root / "build_tools").mkdir()
    for file in ("pyproject.toml", "build_tools/pyproject.toml"):
        shutil.copy(CHECKOUT / file, root / file)
    stand_in.mkdir()
    (stand_in / "python3").write_text(STAND_IN)
    (stand_in / "python3").chmod(0o755)
    return Copy(root, stand_in)


PINNED = next(
    text
    for text in tomllib.loads((CHECKOUT / "pyproject.toml").read_text())["project"]["optional-dependencies"]["test"]
    if re.match(r"torch\b", text)
)
FILLED = [["pip", PINNED], ["pip", "-e", "ROOT[test]"], ["pip", "-e", "ROOT/build_tools"]]


class TestTestScript:
    def test_torch_goes_in_first_and_by_itself_then_pytest_gets_the_arguments(self, copy: Copy) -> None:
        done = copy.run("scripts/test.sh", "-k", "one or two", "--co")
        assert done.returncode == 0, done.stderr
        assert copy.take_log() == [["venv"], *FILLED, ["pytest", "-k", "one or two", "--co"]]

    def test_an_environment_that_is_complete_is_used_again(self, copy: Copy) -> None:
        copy.run("scripts/test.sh")
        copy.take_log()
        assert copy.run("scripts/test.sh", "-x").returncode == 0
        assert copy.take_log() == [["pytest", "-x"]]

    @pytest.mark.parametrize("file", ["pyproject.toml", "build_tools/pyproject.toml"])
    def test_changed_requirements_are_installed_into_the_same_environment(self, copy: Copy, file: str) -> None:
        copy.run("scripts/test.sh")
        copy.take_log()
        with (copy.root / file).open("a") as stream:
            stream.write("\n# changed\n")
        copy.run("scripts/test.sh", "-x")
        assert copy.take_log() == [*FILLED, ["pytest", "-x"]]

    def test_an_installation_that_was_broken_off_starts_anew(self, copy: Copy) -> None:
        (copy.stand_in / "fail-pip").touch()
        assert copy.run("scripts/test.sh").returncode != 0
        assert copy.take_log() == [["venv"], ["pip", PINNED]]
        (copy.stand_in / "fail-pip").unlink()
        assert copy.run("scripts/test.sh", "-x").returncode == 0
        assert copy.take_log() == [["venv"], *FILLED, ["pytest", "-x"]]

    def test_failing_tests_fail_the_script(self, copy: Copy) -> None:
        (copy.stand_in / "fail-pytest").touch()
        assert copy.run("scripts/test.sh").returncode == 1


class TestBuildWheelsScript:
    def test_it_releases_the_checkout_from_any_folder_and_passes_its_arguments_on(self, copy: Copy) -> None:
        done = copy.run("scripts/build_wheels.sh", "-o", "out dir", "--only", "cpu", "--wheel", "a b.whl")
        assert done.returncode == 0, done.stderr
        assert copy.take_log() == [
            ["venv"],
            ["pip", "packaging>=24.2", "build>=1.3"],
            ["checkout.pth"],
            ["build_tools", "release", "ROOT", "-o", "out dir", "--only", "cpu", "--wheel", "a b.whl"],
        ]
        assert "installing packaging>=24.2 build>=1.3" in done.stderr
        assert done.stdout == ""

    @pytest.mark.parametrize("option", ["-h", "--help"])
    def test_its_help_is_its_own_and_needs_no_environment(self, copy: Copy, option: str) -> None:
        done = copy.run("scripts/build_wheels.sh", "-o", "x", option, PYTHON="no such python")
        assert (done.returncode, done.stderr) == (0, "")
        assert done.stdout.startswith("usage: scripts/build_wheels.sh [options]\n")
        theirs = set(re.findall(r"--[a-z-]+", te_wheel("release", "--help").out))
        assert set(re.findall(r"--[a-z-]+", done.stdout)) == theirs
        assert copy.take_log() == []

    def test_the_checkout_is_found_in_any_locale(self, tmp_path: Path) -> None:
        code = re.search(
            r"-c 'import os, pathlib.*?\n(.*?)' \"\$root\"", (SCRIPTS / "build_wheels.sh").read_text(), re.S
        )
        assert code is not None
        home, root = tmp_path / "env", tmp_path / "ch\xe9ck out"
        venv.create(home, with_pip=False, symlinks=os.name != "nt")
        (root / "marker").mkdir(parents=True)
        python = next((home / "bin").glob("python3"))
        for locale in ("C", "C.UTF-8"):
            env = {**os.environ, "LC_ALL": locale}
            subprocess.run([python, "-c", f"import os, pathlib, sys, sysconfig\n{code[1]}", root], env=env, check=True)
            done = subprocess.run(
                [python, "-c", "import marker"], env=env, cwd=tmp_path, capture_output=True, text=True
            )
            assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("script", ["scripts/build_wheels.sh", "scripts/test.sh"])
class TestPython:
    """What is missing is said in one line, with what helps."""

    def test_a_python_that_is_not_there(self, copy: Copy, script: str) -> None:
        done = copy.run(script, PYTHON="no such python")
        assert (done.returncode, done.stdout) == (2, "")
        assert done.stderr.splitlines()[0] == "error: PYTHON is 'no such python', which is no program"

    def test_a_python_that_is_too_old(self, copy: Copy, script: str) -> None:
        old = copy.stand_in / "old"
        old.write_text('#!/bin/sh\n[ "$1" = --version ] && echo Python 3.8.1 && exit 0\nexit 1\n')
        old.chmod(0o755)
        done = copy.run(script, PYTHON=str(old))
        assert done.returncode == 2
        assert done.stderr.splitlines()[0] == f"error: Python 3.11 or newer is needed, found Python 3.8.1 ({old})"

    def test_a_python_without_venv(self, copy: Copy, script: str) -> None:
        bare = copy.stand_in / "bare"
        bare.write_text('#!/bin/sh\ncase "$*" in *ensurepip*) exit 1 ;; *te-wheel*) echo te-wheel ;; esac\n')
        bare.chmod(0o755)
        done = copy.run(script, PYTHON=str(bare))
        assert done.returncode == 2
        assert "has no module venv, or none of ensurepip" in done.stderr.splitlines()[0]
        assert done.stderr.splitlines()[1].startswith("hint: ")

    @pytest.mark.parametrize("program", ["false", "true"])
    def test_a_program_that_is_no_python(self, copy: Copy, script: str, program: str) -> None:
        path = shutil.which(program)
        assert path
        done = copy.run(script, PYTHON=path)
        assert done.returncode == 2
        assert done.stderr.splitlines()[0] == f"error: Python 3.11 or newer is needed, found no version ({path})"

    def test_a_dead_shim_is_passed_by(self, copy: Copy, script: str) -> None:
        shims = copy.stand_in / "shims"
        shims.mkdir()
        (shims / "python3").write_text("#!/bin/sh\necho 'pyenv: no version is set' >&2\nexit 127\n")
        (shims / "python3.14").write_text((copy.stand_in / "python3").read_text())
        for shim in shims.iterdir():
            shim.chmod(0o755)
        done = copy.run(script, PYTHON="", PATH=f"{shims}{os.pathsep}{os.environ['PATH']}")
        assert done.returncode == 0, done.stderr
        assert ["venv"] in copy.take_log()

    @pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
    def test_a_signal_ends_what_the_script_started(self, copy: Copy, script: str, number: signal.Signals) -> None:
        slow = copy.stand_in / "slow"
        note = 'echo $! >"$STAND_IN/new"; mv "$STAND_IN/new" "$STAND_IN/pid"'
        wait = f"'-m pip install '*) sleep 300 & {note}; wait"
        slow.write_text(STAND_IN.replace("'-m pip install '*) shift 6;", f"{wait} ;;\n  never) "))
        slow.chmod(0o755)
        env = {**os.environ, "PYTHON": str(slow), "STAND_IN": str(copy.stand_in)}
        with subprocess.Popen([copy.root / script], env=env, stderr=subprocess.PIPE) as running:
            pid = int(wait_for(copy.stand_in / "pid"))
            running.send_signal(number)
            assert running.wait(20) == 128 + number
        deadline = time.monotonic() + 10
        while Path(f"/proc/{pid}").exists() and "State:\tZ" not in Path(f"/proc/{pid}/status").read_text():
            assert time.monotonic() < deadline, "the child lives on"
            time.sleep(0.02)

    @pytest.mark.skipif(shutil.which("flock") is None, reason="no flock")
    def test_of_two_first_runs_one_makes_the_environment(self, copy: Copy, script: str) -> None:
        slow = copy.stand_in / "python3"
        slow.write_text(STAND_IN.replace("'-m venv -- '*) note venv;", "'-m venv -- '*) note venv; sleep 1;"))
        env = {**os.environ, "PYTHON": str(slow), "STAND_IN": str(copy.stand_in)}
        runs = [subprocess.Popen([copy.root / script], env=env, stderr=subprocess.PIPE) for _ in range(2)]
        said = b"".join(run.communicate()[1] for run in runs)
        assert [run.returncode for run in runs] == [0, 0]
        assert copy.take_log().count(["venv"]) == 1
        assert b"waiting for another run" in said


def wait_for(path: Path) -> str:
    deadline = time.monotonic() + 20
    while not path.exists():
        assert time.monotonic() < deadline, f"{path.name} never came"
        time.sleep(0.02)
    return path.read_text()


class TestCi:
    def test_the_last_lines_are_those_of_pytest(self, copy: Copy) -> None:
        done = copy.run(".ci/run")
        assert done.returncode == 0, done.stderr
        assert done.stdout.splitlines()[-1] == "== 3 passed in 0.01s =="
        checks = [["pip", "-e", ".[dev]"], ["ruff-check"], ["ruff-format"], ["mypy"], ["pip", "atheris"], ["fuzz"]]
        assert copy.take_log() == [
            ["venv"],
            *FILLED,
            ["pytest", "-n", str(os.cpu_count()), "--dist", "loadfile"],
            *checks,
        ]

    def test_without_a_fuzzer_the_run_says_so_and_passes(self, copy: Copy) -> None:
        (copy.stand_in / "fail-atheris").touch()
        done = copy.run(".ci/run")
        assert done.returncode == 0
        assert "== fuzz: SKIPPED, no atheris for this Python\n" in done.stdout
        assert ["fuzz"] not in copy.take_log()

    @pytest.mark.parametrize("what", ["pytest", "ruff-check", "ruff-format", "mypy", "fuzz"])
    def test_any_failure_fails_the_run_and_the_rest_is_still_checked(self, copy: Copy, what: str) -> None:
        (copy.stand_in / f"fail-{what}").touch()
        done = copy.run(".ci/run")
        assert done.returncode == 1
        assert done.stdout.splitlines()[-1] == "== 3 passed in 0.01s =="
        assert ["mypy"] in copy.take_log()


class TestRepackWheelScript:
    def test_it_takes_the_options_of_te_wheel_repack(self, tmp_path: Path) -> None:
        wheel = make_wheel(tmp_path)
        command = [sys.executable, str(SCRIPTS / "repack_wheel.py"), str(wheel), "--name", "demo-cu12", "-o", "out"]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
        assert done.stdout == f"{Path('out', 'demo_cu12-1.0-py3-none-any.whl')}\n"
        assert (tmp_path / "out" / "demo_cu12-1.0-py3-none-any.whl").is_file()

    def test_a_mistake_is_exit_2_without_a_traceback(self, tmp_path: Path) -> None:
        command = [sys.executable, str(SCRIPTS / "repack_wheel.py"), str(tmp_path / "nowhere.whl")]
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.returncode == 2
        assert done.stderr.startswith("error: ")
        assert "Traceback" not in done.stderr


@pytest.mark.parametrize("path", [SCRIPTS / "repack_wheel.py", CHECKOUT / "build_tools" / "__main__.py"])
class TestBarePython:
    """What starts from a checkout says in one line what the Python lacks."""

    def test_without_packaging(self, path: Path, tmp_path: Path) -> None:
        venv.create(tmp_path / "bare", with_pip=False, symlinks=os.name != "nt")
        python = next((tmp_path / "bare").glob("[bS]*/python*"))
        done = subprocess.run([python, path], capture_output=True, text=True)
        assert done.returncode == 2
        (line,) = done.stderr.splitlines()
        assert line.startswith("error: the package 'packaging' is not installed: ")

    def test_with_an_old_python(self, path: Path) -> None:
        code = f"import sys, runpy; sys.version_info = (3, 6, 15); runpy.run_path({str(path)!r}, run_name='__main__')"
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
        assert done.returncode == 2
        assert re.fullmatch(r"error: Python 3\.11 or newer is needed, this is \S+\n", done.stderr)

    def test_an_old_python_can_parse_it(self, path: Path) -> None:
        for file in (path, CHECKOUT / "build_tools" / "__init__.py"):
            ast.parse(file.read_text(), feature_version=(3, 4))


@pytest.mark.parametrize("script", ["build_wheels.sh", "test.sh", "repack_wheel.py", "../.ci/run"])
def test_what_is_to_be_run_is_executable(script: str) -> None:
    assert os.access(SCRIPTS / script, os.X_OK)


@pytest.mark.network
class TestForReal:
    """The README's command, on a copy of the checkout."""

    def run(self, root: Path, folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
        env = {**os.environ, "PYTHON": sys.executable}
        command = [str(root / "scripts" / "build_wheels.sh"), *arguments]
        return subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True)

    def test_the_release_is_made_twice_with_the_same_bytes(self, tmp_path: Path) -> None:
        need_registry()
        root = copy_checkout(tmp_path / "check out")
        done = self.run(root, tmp_path, "-o", "out dir", "--no-smoke")
        assert done.returncode == 0, done.stderr
        sums = (tmp_path / "out dir" / "SHA256SUMS").read_text()
        assert [line.split("  ")[1] for line in sums.splitlines()] == [
            "te_pkg-2.21.0.dev0+cpu-py3-none-any.whl",
            "te_pkg-2.21.0.dev0-py3-none-any.whl",
            "te_pkg-2.21.0.dev0.tar.gz",
            "te_pkg_cu12-2.21.0.dev0-py3-none-manylinux_2_28_x86_64.whl",
            "te_pkg_cu13-2.21.0.dev0-py3-none-manylinux_2_28_x86_64.whl",
        ]
        again = self.run(root, tmp_path, "-o", "other", "--no-smoke")
        assert "installing" not in again.stderr
        assert (tmp_path / "other" / "SHA256SUMS").read_text() == sums

    @pytest.mark.slow
    def test_every_wheel_of_the_release_installs_and_imports(self, tmp_path: Path) -> None:
        need_registry()
        root = copy_checkout(tmp_path / "checkout")
        done = self.run(root, tmp_path)
        assert done.returncode == 0, done.stderr
        facts = json.loads((tmp_path / "dist" / "release.json").read_text())
        assert [artifact["variant"] for artifact in facts["artifacts"]] == [None, "cu12", "cu13", "cpu"]
        for artifact in facts["artifacts"]:
            trial = artifact["smoke"]
            if "could not be installed" in trial["import"] or "is not for Python" in trial["install"]:
                pytest.skip(f"{artifact['file']}: {trial}")
            assert trial == dict.fromkeys(["install", "import", "version"], "passed")
