"""The script for machines with a GPU, as far as a machine without one can tell."""

from __future__ import annotations

import ast
import importlib.util
import subprocess
import sys
import textwrap
import time
import warnings
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
import torch

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "scripts/gpu_check.py"


@pytest.fixture(scope="module")
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("gpu_check", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    sys.modules["gpu_check"] = module  # dataclasses look there
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def hide(monkeypatch):
    """Make packages look as if they were not installed."""
    find = importlib.util.find_spec

    def hide(*names: str) -> None:
        monkeypatch.setattr(
            importlib.util, "find_spec", lambda name, *rest: None if name in names else find(name, *rest)
        )

    return hide


@pytest.fixture
def with_gpu(monkeypatch, script):
    monkeypatch.setattr(script, "why_no_gpu", lambda: None)
    monkeypatch.setattr(script, "gpu_names", lambda: ["NVIDIA Abacus"] * 2)


needs_triton = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton is not installed")


class TestCommandLine:
    @pytest.mark.skipif(torch.cuda.is_available(), reason="has a GPU")
    def test_without_a_gpu_it_says_so_and_is_content(self, tmp_path):
        done = subprocess.run([sys.executable, str(SCRIPT)], cwd=tmp_path, capture_output=True, text=True)
        assert (done.returncode, done.stderr) == (0, "")
        assert done.stdout.startswith("no check was made: torch")
        assert "GPU" in done.stdout or "CUDA" in done.stdout

    @pytest.mark.parametrize(
        ("arguments", "complaint"),
        [
            (["--only", "all"], "invalid choice: 'all'"),
            (["--device", "cpu"], "expected cuda or cuda:N, got 'cpu'"),
            (["--device", "cuda:"], "expected cuda or cuda:N, got 'cuda:'"),
            (["--device", "cuda:x"], "expected cuda or cuda:N, got 'cuda:x'"),
            (["--seconds", "0"], "expected more than 0 and less than 1000000, got 0"),
            (["--device", "cuda:\u0663"], "expected cuda or cuda:N, got"),
            (["--seconds", "nan"], "expected more than 0 and less than 1000000, got nan"),
            (["--seconds", "inf"], "expected more than 0 and less than 1000000, got inf"),
            (["--seconds", "soon"], "invalid float value: 'soon'"),
            (["file"], "unrecognized arguments: file"),
        ],
    )
    def test_arguments_that_cannot_be_meant(self, script, capsys, arguments, complaint):
        with pytest.raises(SystemExit) as raised:
            script.main(arguments)
        assert raised.value.code == 2
        assert complaint in capsys.readouterr().err

    def test_defaults(self, script):
        assert vars(script.parse([])) == {"only": None, "device": "cuda:0", "seconds": 225.0, "goals": False}
        assert script.parse(["--device", "cuda"]).device == "cuda:0"
        assert script.parse(["--device", "cuda:1"]).device == "cuda:1"

    @needs_triton
    @pytest.mark.parametrize(
        ("only", "ran"), [(None, ["checks", "speed"]), ("checks", ["checks"]), ("speed", ["speed"])]
    )
    def test_one_half_or_both(self, script, monkeypatch, with_gpu, only, ran):
        seen = []
        monkeypatch.setattr(script, "run_checks", lambda seconds: seen.append("checks") or 0)
        monkeypatch.setattr(script, "measure", lambda *_: seen.append("speed") or [])
        monkeypatch.setattr(importlib.util, "find_spec", lambda *_: object())
        assert script.main(["--only", only] if only else []) == 0
        assert seen == ran

    @needs_triton
    def test_the_worse_of_both_is_the_exit_status(self, script, monkeypatch, with_gpu, capsys):
        monkeypatch.setattr(script, "run_checks", lambda seconds: 1)
        monkeypatch.setattr(script, "measure", lambda *_: [])
        monkeypatch.setattr(importlib.util, "find_spec", lambda *_: object())
        assert script.main([]) == 1
        assert capsys.readouterr().out.endswith("not fine\n")

    def test_a_gpu_that_is_not_there(self, script, with_gpu, capsys):
        assert script.main(["--device", "cuda:2"]) == 2
        assert capsys.readouterr().err == "error: there is no cuda:2, expected cuda:0 to cuda:1\n"

    @needs_triton
    def test_the_machine_is_described(self, script, monkeypatch, with_gpu, capsys):
        monkeypatch.setattr(script, "run_checks", lambda seconds: 0)
        assert script.main(["--only", "checks", "--device", "cuda:1"]) == 0
        assert capsys.readouterr().out.startswith("2 x NVIDIA Abacus; the table on cuda:1; torch ")

    def test_without_torch_there_is_nothing_to_ask(self, script, hide):
        hide("torch")
        assert script.why_no_gpu() == "torch is not installed"

    def test_a_torch_for_another_kind_of_device_has_no_cuda(self, script, monkeypatch):
        monkeypatch.setattr(torch.version, "cuda", None)
        assert "is built without CUDA" in script.why_no_gpu()
        monkeypatch.setattr(torch.version, "cuda", "13.0")
        monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
        assert "finds no NVIDIA GPU" in script.why_no_gpu()
        monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
        assert script.why_no_gpu() is None

    def test_without_triton_it_could_not(self, script, with_gpu, hide, capsys):
        hide("triton")
        assert script.main([]) == 2
        assert "Triton is not installed" in capsys.readouterr().err


class TestChecks:
    def test_every_module_with_a_gpu_test_is_found(self, script):
        found = {path.name for path, _ in script.gpu_modules(ROOT / "tests/attention")}
        assert {"test_gpu.py", "test_backends_gpu.py", "test_capture.py", "test_caching_process.py"} <= found

    def test_the_gpu_tests_need_pytest_and_torch_alone(self, script):
        for module in ("test_gpu.py", "test_backends_gpu.py"):
            names = script.imported(ROOT / "tests/attention" / module, ROOT, set())
            assert names - {*sys.stdlib_module_names} == {"pytest", "torch", "te_pkg"}

    def test_what_a_module_needs_is_found_through_helpers(self, script, tmp_path):
        folder = tmp_path / "tests/attention"
        folder.mkdir(parents=True)
        (folder / "test_a.py").write_text("import os\nfrom tests.attention.helper import x\npytest.mark.gpu\n")
        (folder / "helper.py").write_text("import no_such_package.part\nfrom tests.attention import test_a, helper\n")
        (folder / "test_b.py").write_text("import another_package\n")
        (folder / "test_c.py").write_text("pytest.mark.gpu\ndef f():\n    import not_at_the_top\n")
        found = [(path.name, missing) for path, missing in script.gpu_modules(folder)]
        assert found == [("test_a.py", ["no_such_package"]), ("test_c.py", [])]

    def test_what_is_left_out_is_told(self, script, monkeypatch, hide, capsys):
        hide("hypothesis")
        commands = []
        run = lambda command, **_: commands.append(command) or SimpleNamespace(returncode=0)  # noqa: E731
        monkeypatch.setattr(subprocess, "run", run)
        assert script.run_checks(60) == 0
        out = capsys.readouterr().out
        assert "left out: tests/attention/test_cu_seqlens.py, because hypothesis is not installed" in out
        assert "tests/attention/test_gpu.py" in commands[0]
        assert "tests/attention/test_cu_seqlens.py" not in commands[0]

    def test_where_every_module_is_left_out_no_test_is_run(self, script, monkeypatch, capsys):
        monkeypatch.setattr(script, "gpu_modules", lambda folder: [(folder / "test_gpu.py", ["torch"])])
        monkeypatch.setattr(subprocess, "run", lambda *_, **__: pytest.fail("pytest would run every test"))
        assert script.run_checks(60) == 2
        assert "no test marked gpu could be run" in capsys.readouterr().err

    def test_without_pytest_it_says_so_and_could_not(self, script, hide, capsys):
        hide("pytest")
        assert script.run_checks(60) == 2
        assert "pytest is not installed" in capsys.readouterr().err

    @pytest.mark.parametrize(("code", "status"), [(0, 0), (1, 1), (2, 2), (3, 2), (4, 2), (5, 2), (-11, 2)])
    def test_the_exit_status_of_pytest(self, script, monkeypatch, code, status):
        monkeypatch.setattr(subprocess, "run", lambda *_, **__: SimpleNamespace(returncode=code))
        assert script.run_checks(60) == status

    def test_tests_that_hang_are_stopped(self, script, monkeypatch, capsys):
        monkeypatch.setattr(script, "gpu_modules", lambda folder: [(ROOT / "tests/attention/test_gpu.py", [])])
        real = subprocess.run
        monkeypatch.setattr(subprocess, "run", lambda command, **options: real(["sleep", "60"], **options))
        start = time.monotonic()
        assert script.run_checks(1) == 2
        assert time.monotonic() - start < 30
        assert "stopped after 1 s" in capsys.readouterr().err

    @pytest.mark.skipif(torch.cuda.is_available(), reason="has a GPU")
    def test_the_marked_tests_are_collected_without_any_plugin(self, script, capfd):
        # Without a GPU all are skipped, which is a pass: modules were imported, marks are known, no warning was raised.
        assert script.run_checks(120) == 0
        out = capfd.readouterr().out
        assert "skipped" in out
        assert "error" not in out.splitlines()[-1]


class TestAnnouncement:
    def test_is_ignored_and_nothing_else_is(self, script):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            script.ignore_announcement()
            warnings.warn("TRITON_DEFAULT_FP_FUSION is unset; its default will change", UserWarning, stacklevel=1)
            with pytest.raises(UserWarning, match="another"):
                warnings.warn("another", UserWarning, stacklevel=1)

    @pytest.mark.gpu
    def test_is_no_failure_of_a_test_marked_gpu(self):
        warnings.warn("TRITON_DEFAULT_FP_FUSION is unset; its default will change", UserWarning, stacklevel=1)


class TestTable:
    @pytest.fixture
    def case(self, script):
        def case(name="pack", goal=0.85, peer_name="copy"):
            return script.Case(name, lambda: None, lambda: None, lambda: True, 2_000_000, goal, peer_name)

        return case

    def test_lines(self, script, case):
        rows = [
            script.Row(case(), True, 0.001, 0.0009),
            script.Row(case("unpack"), True, 0.001, 0.0005),
            script.Row(case("zero_padding_", None, "masked_fill_"), True, 0.0001, 0.002),
            script.Row(case("wrong"), False),
            script.Row(case("late"), True),
        ]
        assert script.table(rows) == textwrap.dedent(
            """\
            operation      MB moved     ms  GB/s  against          ms  ours is  goal
            pack                2.0  1.000     2  copy          0.900      90%   85%
            unpack              2.0  1.000     2  copy          0.500      50%   85%  below goal
            zero_padding_       2.0  0.100    20  masked_fill_  2.000   20.0 x
            wrong               2.0               copy                           85%  WRONG RESULT
            late                2.0               copy                           85%  no time left"""
        )

    def test_verdict(self, script, case):
        good, slow = script.Row(case(), True, 1.0, 0.9), script.Row(case(), True, 1.0, 0.5)
        late, wrong = script.Row(case(), True), script.Row(case(), False)
        assert script.verdict([good, slow], goals=False) == 0
        assert script.verdict([good, slow], goals=True) == 1
        assert script.verdict([good], goals=True) == 0
        assert script.verdict([good, late], goals=False) == 2
        assert script.verdict([late, wrong], goals=False) == 1

    def test_every_operation_is_right_on_the_cpu_too(self, script):
        names = []
        for case in script.cases("cpu", 512, kernel="reference"):
            case.run()
            assert case.is_right(), case.name
            case.peer()
            assert case.bytes > 0
            names.append(case.name.split(",")[0])
        assert {*names} == {"pack", "unpack", "pad to 16", "zero_padding_", "attention"}

    def test_a_wrong_result_is_seen(self, script):
        for case in script.cases("cpu", 512, kernel="reference"):
            assert not case.is_right(), case.name  # nothing has run yet

    def test_measuring_stops_in_time_and_never_times_a_wrong_result(self, script, case, monkeypatch):
        wrong = script.Case("wrong", lambda: None, lambda: None, lambda: False, 1, None)
        monkeypatch.setattr(script, "cases", lambda device, rows: iter([case(), wrong]))
        monkeypatch.setattr(script, "cuda_seconds", lambda run, peer: (1.0, 2.0))
        monkeypatch.setattr(torch.cuda, "device", lambda device: torch.no_grad())
        monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: SimpleNamespace(total_memory=1 << 34))
        monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)
        rows = list(script.measure("cuda:0", time.monotonic() + 60))
        assert [(row.right, row.ratio) for row in rows] == [(True, 2.0), (False, None)]
        rows = list(script.measure("cuda:0", time.monotonic()))
        assert [(row.right, row.ratio) for row in rows] == [(True, None), (True, None)]


def test_the_script_imports_nothing_that_a_bare_checkout_lacks():
    top = ast.parse(SCRIPT.read_text()).body
    names = {alias.name for node in top if isinstance(node, ast.Import) for alias in node.names}
    names |= {node.module for node in top if isinstance(node, ast.ImportFrom)}
    assert {name.split(".")[0] for name in names} <= sys.stdlib_module_names
