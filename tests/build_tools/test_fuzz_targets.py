"""The fuzzer's targets hold for what it starts from, and see what they are there to see."""

from __future__ import annotations

import subprocess
import sys
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
