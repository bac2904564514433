"""The fuzzer's targets hold for what it starts from, and see what they are there to see."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from build_tools.wheels.headers import Headers
from tests.build_tools.fuzz_targets import TARGETS, corpus
from tests.build_tools.wheel_factory import metadata_text

SCRIPT = Path(__file__).parents[2] / "scripts" / "fuzz.py"


@pytest.mark.parametrize("target", TARGETS)
def test_a_target_holds_for_its_own_corpus(target: str) -> None:
    inputs = list(corpus(target))
    assert len(inputs) > 3
    for data in inputs:
        TARGETS[target](data)


def test_a_splice_that_loses_a_line_breaks_its_target(monkeypatch: pytest.MonkeyPatch) -> None:
    data = metadata_text().encode()
    TARGETS["headers"](data)
    right = Headers.with_values

    def lose_a_line(self: Headers, name: str, values: list[str]) -> Headers:
        edited = right(self, name, values)
        return edited._replace(fields=edited.fields[:-1])

    monkeypatch.setattr(Headers, "with_values", lose_a_line)
    with pytest.raises(AssertionError):
        TARGETS["headers"](data)


def test_an_input_can_be_tried_alone(tmp_path: Path) -> None:
    (tmp_path / "input").write_bytes(b"Name: x\n")
    command = [sys.executable, SCRIPT, "--target", "headers", tmp_path / "input"]
    run = subprocess.run(command, capture_output=True, text=True)
    assert (run.returncode, run.stdout) == (0, f"headers: {tmp_path / 'input'}: right\n"), run.stderr


# Stands for the real one, which ends the process without any cleaning up.
ATHERIS = """
import contextlib, os, time
instrument_imports = lambda include: contextlib.nullcontext()
def Setup(arguments, target):
    global take
    take = target
def Fuzz():
    take(b"[project]\\nname = 'demo'\\n")
    with open(os.environ["BEGUN"], "w") as file:
        file.write(f"{os.getpid()} {os.environ['TMPDIR']}\\n")
    while os.environ["ENDS"] == "no":
        time.sleep(1)
    os._exit(0) if os.environ["ENDS"] == "well" else os.kill(os.getpid(), 9)
"""


@pytest.mark.parametrize("ends", ["well", "killed", "no"])
def test_a_run_leaves_no_file_behind_however_it_ends(ends: str, tmp_path: Path) -> None:
    (tmp_path / "atheris.py").write_text(ATHERIS)
    (tmp_path / "scratch").mkdir()
    begun = tmp_path / "begun"
    env = {**os.environ, "PYTHONPATH": str(tmp_path), "TMPDIR": str(tmp_path / "scratch")}
    env |= {"ENDS": ends, "BEGUN": str(begun)}
    command = [sys.executable, SCRIPT, "--target", "plan", "--seconds", "1"]
    run = subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    if ends == "no":
        while not begun.exists() or not begun.read_text():
            assert run.poll() is None, run.communicate()
            time.sleep(0.01)
        run.send_signal(signal.SIGTERM)
    _, said = run.communicate(timeout=60)
    assert run.returncode == {"well": 0, "killed": 1, "no": 130}[ends], said
    assert "Traceback" not in said
    pid, folder = begun.read_text().split()
    assert "te-wheel-fuzz" in folder
    assert not os.path.exists(folder)
    assert os.listdir(tmp_path / "scratch") == []
    with pytest.raises(ProcessLookupError):
        os.kill(int(pid), 0)
