from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from build_tools import smoke
from build_tools.errors import FileError, ToolError, WheelNameError
from build_tools.smoke import Base, smoke_wheel
from build_tools.smoke_result import SmokeResult, Status
from tests.build_tools.command_line import te_wheel
from tests.build_tools.wheel_factory import make_wheel

PASSED = Status.passed()
VERSIONED = {"demo/__init__.py": "__version__ = '1.0'\n", "demo/core.py": "def add(a, b):\n    return a + b\n"}


@pytest.fixture(scope="module")
def offline() -> Iterator[pytest.MonkeyPatch]:
    """What pip finds here is what a test puts into a folder, and nothing else."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PIP_CONFIG_FILE", "/dev/null")
        patch.setenv("PIP_NO_INDEX", "1")
        patch.delenv("PIP_FIND_LINKS", raising=False)
        yield patch


@pytest.fixture(scope="module")
def empty(offline: pytest.MonkeyPatch) -> Iterator[Base]:
    """A base without requirements, for the tests that need no other."""
    with Base() as base:
        yield base


@pytest.fixture(scope="module")
def with_helper(offline: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Base]:
    """A base in which ``helper`` 1.0 is installed."""
    folder = tmp_path_factory.mktemp("links")
    make_wheel(folder, name="helper")
    offline.setenv("PIP_FIND_LINKS", str(folder))
    with Base(["helper==1.0"]) as base:
        assert base.missing == ""
        yield base


class TestPassed:
    def test_a_good_wheel_passes_in_every_part(self, empty: Base, tmp_path: Path) -> None:
        wheel = make_wheel(tmp_path, files=VERSIONED)
        result = smoke_wheel(wheel, imports=["demo", "demo.core"], run="demo.core.add(1, 2) == 3", base=empty)
        assert result == SmokeResult(wheel.name, PASSED, PASSED, PASSED)
        assert not result.failed

    def test_what_the_wheel_holds_at_its_top_is_imported_unless_somebody_says_what(
        self, empty: Base, tmp_path: Path
    ) -> None:
        fails = "raise ImportError('{} was imported')\n"
        files = {
            "one/__init__.py": fails.format("one"),
            "two.py": fails.format("two"),
            "_private.py": fails.format("private"),
            "tests/__init__.py": fails.format("tests"),
            "data/notes.txt": "",
            "no-module/__init__.py": "",
            "demo-1.0.data/purelib/three/__init__.py": fails.format("three"),
            "demo-1.0.data/scripts/four.py": "",
        }
        result = smoke_wheel(make_wheel(tmp_path, files=files), base=empty)
        assert str(result.imported) == "failed: " + "; ".join(
            f"import {name}: ImportError: {name} was imported" for name in ("one", "three", "two")
        )

    def test_requirements_of_the_base_are_there_for_the_wheel(self, with_helper: Base, tmp_path: Path) -> None:
        files = {"demo/__init__.py": "import helper\n"}
        wheel = make_wheel(tmp_path, files=files, headers=["Requires-Dist: helper>=1"])
        assert smoke_wheel(wheel, base=with_helper).imported == PASSED

    def test_no_wheel_sees_what_an_earlier_one_brought(self, with_helper: Base, tmp_path: Path) -> None:
        assert smoke_wheel(make_wheel(tmp_path, name="first"), base=with_helper).imported == PASSED
        result = smoke_wheel(make_wheel(tmp_path, name="second"), imports=["first"], base=with_helper)
        assert str(result.imported) == "failed: import first: ModuleNotFoundError: No module named 'first'"

    @pytest.mark.parametrize("said", ["1.0", "1.0+cu128", "1.0+CU128"])
    def test_the_code_of_a_labelled_wheel_may_say_the_public_version(
        self, empty: Base, tmp_path: Path, said: str
    ) -> None:
        wheel = make_wheel(tmp_path, version="1.0+cu128", files={"demo/__init__.py": f"__version__ = {said!r}"})
        assert smoke_wheel(wheel, base=empty).version == PASSED


class TestFailed:
    def test_an_import_that_fails_gives_its_last_line_and_reports_the_rest(self, empty: Base, tmp_path: Path) -> None:
        said: list[str] = []
        wheel = make_wheel(tmp_path, files={"demo/__init__.py": "import nowhere\n"})
        result = smoke_wheel(wheel, base=empty, report=said.append)
        assert result.install == PASSED
        assert str(result.imported) == "failed: import demo: ModuleNotFoundError: No module named 'nowhere'"
        assert "Traceback (most recent call last):" in said
        assert result.failed

    def test_every_import_is_tried(self, empty: Base, tmp_path: Path) -> None:
        result = smoke_wheel(make_wheel(tmp_path), imports=["a", "demo", "b"], run="1", base=empty)
        assert str(result.imported).count("ModuleNotFoundError") == 2

    @pytest.mark.parametrize(
        ("run", "why"),
        [
            ("demo.VALUE == 2", "run: AssertionError: demo.VALUE == 2 is False"),
            ("assert demo.VALUE == 2", "run: AssertionError"),
            ("x = 1\n1 / (x - 1)", "run: ZeroDivisionError: division by zero"),
            ("raise SystemExit(0)", "run: SystemExit: 0"),
        ],
    )
    def test_a_snippet_fails_by_an_exception_or_by_being_false(
        self, empty: Base, tmp_path: Path, run: str, why: str
    ) -> None:
        assert smoke_wheel(make_wheel(tmp_path), run=run, base=empty).imported == Status.failed(why)

    @pytest.mark.parametrize(
        ("code", "how"),
        [("import os; os._exit(0)", "with exit code 0"), ("import os; os.kill(os.getpid(), 9)", "by signal 9")],
    )
    def test_an_interpreter_that_dies_has_not_passed(self, empty: Base, tmp_path: Path, code: str, how: str) -> None:
        result = smoke_wheel(make_wheel(tmp_path, files={"demo/__init__.py": code}), base=empty)
        assert str(result.imported) == f"failed: the interpreter ended {how}: it printed nothing"
        assert str(result.version) == "skipped: the interpreter died"

    @pytest.mark.parametrize(
        "answer", ["{}", "[]", "[" * 100_000, '{"installed": 1, "versions": {}, "faults": []}', "\\xff"], ids=range(5)
    )
    def test_an_answer_that_the_wheel_wrote_itself_has_not_passed(
        self, empty: Base, tmp_path: Path, answer: str
    ) -> None:
        code = f"import os, sys\nopen(sys.argv[2], 'wb').write({answer!r}.encode('latin-1'))\nos._exit(0)\n"
        result = smoke_wheel(make_wheel(tmp_path, files={"demo/__init__.py": code}), base=empty)
        assert str(result.imported) == "failed: the interpreter ended with exit code 0: it printed nothing"

    def test_a_requires_python_with_thousands_of_digits_is_the_installers_to_judge(
        self, empty: Base, tmp_path: Path
    ) -> None:
        wheel = make_wheel(tmp_path, headers=[f"Requires-Python: >={'9' * 5000}"])
        assert str(smoke_wheel(wheel, base=empty).install).startswith("failed: ")

    def test_a_version_of_the_code_that_is_not_the_wheels_is_named(self, empty: Base, tmp_path: Path) -> None:
        wheel = make_wheel(tmp_path, files={"demo/__init__.py": "__version__ = '2.0'"})
        result = smoke_wheel(wheel, base=empty)
        assert str(result.version) == "failed: demo.__version__ is '2.0', expected '1.0'"

    def test_a_dependency_that_cannot_be_had_fails_the_installation(self, empty: Base, tmp_path: Path) -> None:
        wheel = make_wheel(tmp_path, headers=["Requires-Dist: helper>=2"])
        result = smoke_wheel(wheel, base=empty)
        assert str(result.install) == "failed: No matching distribution found for helper>=2"
        assert str(result.imported) == "skipped: not installed"

    def test_a_file_that_is_no_wheel_fails_the_installation_and_names_no_folder(
        self, empty: Base, tmp_path: Path
    ) -> None:
        wheel = tmp_path / "demo-1.0-py3-none-any.whl"
        wheel.write_text("no zip")
        result = smoke_wheel(wheel, base=empty)
        assert str(result.install).startswith("failed: ")
        assert str(tmp_path) not in str(result.install)

    def test_a_module_of_the_wheel_must_come_from_the_wheel(self, with_helper: Base, tmp_path: Path) -> None:
        shadow = "import sys, os\nsys.modules[__name__].__file__ = os.devnull\n"
        result = smoke_wheel(make_wheel(tmp_path, files={"demo.py": shadow}), base=with_helper)
        assert str(result.imported) == "failed: import demo: came from another place than the wheel"


class TestSkipped:
    """What could not be tried is never reported as passed."""

    def test_without_the_requirements_the_import_is_skipped(self, offline: pytest.MonkeyPatch, tmp_path: Path) -> None:
        said: list[str] = []
        wheel = make_wheel(tmp_path, files=VERSIONED, headers=["Requires-Dist: helper"])
        result = smoke_wheel(wheel, requires=["helper==7.0"], imports=["demo"], run="1", report=said.append)
        why = "helper==7.0 could not be installed, so the wheel was installed without dependencies"
        alone = Status.passed("without dependencies")
        assert result == SmokeResult(wheel.name, alone, Status.skipped(why), PASSED)
        assert str(result.install) == "passed, without dependencies"
        assert any("No matching distribution found for helper==7.0" in line for line in said)

    def test_a_wheel_without_modules_is_installed_and_its_version_compared(self, empty: Base, tmp_path: Path) -> None:
        result = smoke_wheel(make_wheel(tmp_path, files={"demo/data.txt": "x"}), base=empty)
        why = "the wheel holds no module at its top, and none was asked for"
        assert [str(status) for _, status in result.parts] == ["passed", f"skipped: {why}", "passed"]


class TestCannotBeTried:
    @pytest.mark.parametrize(
        ("tags", "python"),
        [("cp27-none-any", ""), ("py3-none-win32", ""), ("py3-none-any", ">=4"), ("py3-none-any", "<3")],
    )
    def test_a_wheel_for_other_interpreters_is_no_failure(self, tmp_path: Path, tags: str, python: str) -> None:
        headers = [f"Requires-Python: {python}"] if python else []
        with pytest.raises(ToolError, match="so it cannot be tried"):
            smoke_wheel(make_wheel(tmp_path, tags=tags, headers=headers))

    def test_an_interpreter_that_makes_no_environment_says_what_it_needs(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        python = tmp_path / "python"
        python.write_text("#!/bin/sh\necho 'No module named ensurepip'\nexit 1\n")
        python.chmod(0o755)
        monkeypatch.setattr(sys, "executable", str(python))
        with pytest.raises(ToolError, match="no virtual environment can be made: No module named ensurepip") as caught:
            smoke_wheel(make_wheel(tmp_path))
        assert "python3-venv" in (caught.value.hint or "")
        python.unlink()
        with pytest.raises(ToolError, match="cannot run"):
            smoke_wheel(make_wheel(tmp_path))

    def test_a_missing_file_and_a_wrong_name_are_errors(self, tmp_path: Path) -> None:
        for name in ("demo-1.0-py3-none-any.whl", "nofile.whl"):
            with pytest.raises(FileError, match=f"cannot read '.*{name}': No such file"):
                smoke_wheel(tmp_path / name)
        (tmp_path / "demo.whl").write_text("")
        with pytest.raises(WheelNameError):
            smoke_wheel(tmp_path / "demo.whl")


@pytest.mark.parametrize("locale", ["C", "C.UTF-8"])
def test_the_base_is_found_in_any_locale(
    offline: pytest.MonkeyPatch, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, locale: str
) -> None:
    temporary = tmp_path / "t\xe9mp"
    temporary.mkdir()
    make_wheel(tmp_path / "links", name="helper")
    for name, value in {"LC_ALL": locale, "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "links"))
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    with Base(["helper==1.0"]) as base:
        assert smoke_wheel(make_wheel(tmp_path), imports=["helper"], base=base).imported == PASSED


class TestIsolation:
    def test_neither_the_current_folder_nor_pythonpath_can_be_imported(
        self, empty: Base, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        (tmp_path / "stray.py").write_text("")
        monkeypatch.chdir(tmp_path)
        monkeypatch.setenv("PYTHONPATH", str(tmp_path))
        result = smoke_wheel(make_wheel(tmp_path / "dist"), imports=["stray"], base=empty)
        assert str(result.imported) == "failed: import stray: ModuleNotFoundError: No module named 'stray'"

    def test_nothing_is_left_after_an_interrupt(
        self, offline: pytest.MonkeyPatch, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        temporary = tmp_path / "temporary"
        temporary.mkdir()
        monkeypatch.setattr(tempfile, "tempdir", str(temporary))

        def interrupt(line: str) -> None:
            assert list(temporary.iterdir())
            raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            smoke_wheel(make_wheel(tmp_path), report=interrupt)
        assert list(temporary.iterdir()) == []

    def test_each_layer_goes_when_its_wheel_is_done(self, empty: Base, tmp_path: Path) -> None:
        smoke_wheel(make_wheel(tmp_path), base=empty)
        assert not list(empty.folder.glob("layer*"))


class TestCommandLine:
    """Exit 0 passed or skipped, 1 failed, 2 could not be tried."""

    @pytest.fixture(autouse=True)
    def _one_base(self, empty: Base, monkeypatch: pytest.MonkeyPatch) -> None:
        def layered(wheel: Path, **options: object) -> SmokeResult:
            options["base"] = empty
            return smoke_wheel(wheel, **options)  # type: ignore[arg-type]

        monkeypatch.setattr(smoke, "smoke_wheel", layered)

    def test_each_part_is_printed_with_its_status(self, tmp_path: Path) -> None:
        done = te_wheel("smoke", make_wheel(tmp_path), "--run", "demo.VALUE == 1")
        assert (done.code, done.lines) == (0, ["install: passed", "import: passed", "version: passed"])

    def test_a_failed_import_is_exit_1(self, tmp_path: Path) -> None:
        done = te_wheel("smoke", "-q", make_wheel(tmp_path), "--import", "demo", "--import", "nowhere")
        assert done.code == 1
        assert done.lines[1] == "import: failed: import nowhere: ModuleNotFoundError: No module named 'nowhere'"

    def test_a_wheel_that_cannot_be_tried_is_exit_2(self, tmp_path: Path) -> None:
        done = te_wheel("smoke", make_wheel(tmp_path, tags="py3-none-win32"))
        assert (done.code, done.out, len(done.errors)) == (2, "", 1)

    def test_every_mistake_in_what_is_asked_for_is_named_before_an_environment_is_made(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(smoke, "smoke_wheel", lambda *_, **__: pytest.fail("it was tried"))
        wrong = ("--requires", "-r x", "--import", "a-b", "--import", "demo", "--run", "1 +")
        done = te_wheel("smoke", make_wheel(tmp_path), *wrong)
        assert (done.code, done.out) == (2, "")
        assert done.errors == [
            "--requires holds '-r x', which is no requirement such as 'torch==2.13.0'",
            "--import holds 'a-b', which is no module name such as 'demo.core'",
            "--run is no Python: invalid syntax in '1 +'",
        ]

    def test_what_the_wheel_says_cannot_steer_a_terminal(self, tmp_path: Path) -> None:
        code = "raise ImportError('\\x1b]0;owned\\x07')"
        done = te_wheel("smoke", "-q", make_wheel(tmp_path, files={"demo.py": code}))
        assert all(line.isprintable() for line in done.out.split("\n"))
        assert done.code == 1
