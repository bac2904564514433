"""Runs ``te-wheel`` in this process, as a shell would see it."""

from __future__ import annotations

import io
import json
import os
import sys
from dataclasses import dataclass
from typing import Any
from unittest import mock


@dataclass(frozen=True, slots=True)
class Outcome:
    """Exit code, data and talk of one run."""

    code: int
    out: str
    err: str

    @property
    def lines(self) -> list[str]:
        return self.out.splitlines()

    @property
    def json(self) -> Any:
        return json.loads(self.out)

    @property
    def errors(self) -> list[str]:
        """The faults, one for each ``error:`` line."""
        return [line.removeprefix("error: ") for line in self.err.splitlines() if line.startswith("error: ")]


def te_wheel(*arguments: str | os.PathLike[str]) -> Outcome:
    """Run one command; every error reaches the caller as an exit code and a line on stderr."""
    from build_tools.cli import main

    out, err = (io.TextIOWrapper(io.BytesIO(), encoding="utf-8", write_through=True) for _ in range(2))
    with mock.patch.multiple(sys, stdout=out, stderr=err):
        code = main([os.fspath(argument) for argument in arguments])
    texts = [stream.buffer.getvalue().decode() for stream in (out, err)]  # type: ignore[attr-defined]
    assert "Traceback" not in texts[1]
    return Outcome(code, *texts)
