"""Runs inside the environment under test, by path and with ``-I``: imports modules, runs a snippet.

``python -I smoke_probe.py TASK RESULT``: TASK is JSON with ``distribution``, ``imports``, ``held``
(the modules that the wheel itself holds) and ``run``. RESULT gets JSON with ``installed`` (the version
that the metadata says), ``versions`` (``__version__`` of each held module that has one) and ``faults``.
No RESULT means that the interpreter died. Needs nothing but the standard library.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import json
import os
import sys
import traceback
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any


def main(task_file: str, result_file: str) -> None:
    """Do what the task asks and write the result, both JSON."""
    task = json.loads(Path(task_file).read_text(encoding="utf-8"))
    result: dict[str, Any] = {
        "installed": _installed(task["distribution"]),
        "versions": {},
        "faults": [],
    }
    for module in task["imports"]:
        _try(result["faults"], f"import {module}", partial(importlib.import_module, module))
    for module in task["held"]:
        if module in sys.modules:
            _look(sys.modules[module], module, result)
    if task["run"] is not None and not result["faults"]:
        names = {name: sys.modules[name] for name in {module.split(".")[0] for module in task["imports"]}}
        _try(result["faults"], "run", lambda: _run(task["run"], {"__name__": "__smoke__", **names}))
    Path(result_file).write_text(json.dumps(result), encoding="utf-8")


def _installed(distribution: str) -> str | None:
    """The version that this environment, and not one below it, says is installed."""
    own = [place for place in sys.path if _is_own(place)]
    found = next(iter(importlib.metadata.distributions(name=distribution, path=own)), None)
    return found.version if found else None


def _is_own(place: str) -> bool:
    return os.path.realpath(place).startswith(os.path.realpath(sys.prefix) + os.sep)


def _try(faults: list[str], what: str, call: Callable[[], object]) -> None:
    try:
        call()
    except BaseException as error:  # SystemExit too: a module that exits when imported is broken
        if isinstance(error, KeyboardInterrupt):
            raise
        traceback.print_exc()
        faults.append(f"{what}: {traceback.format_exception_only(error)[-1].strip()}")


def _look(module: Any, name: str, result: dict[str, Any]) -> None:
    """Note the version of a module that the wheel holds, and that it really came from there."""
    places = [getattr(module, "__file__", None) or "", *getattr(module, "__path__", [])]
    place = next((place for place in places if place), "")
    if place and not _is_own(place):
        print(f"{name} came from {place}")  # noqa: T201 the parent reports it
        result["faults"].append(f"import {name}: came from another place than the wheel")
    version = getattr(module, "__version__", None)
    if isinstance(version, str):
        result["versions"][name] = version


def _run(text: str, names: dict[str, Any]) -> None:
    try:
        code = compile(text.strip(), "<run>", "eval")
    except SyntaxError:
        exec(compile(text, "<run>", "exec"), names)  # noqa: S102 the plan's own snippet is what is asked for
        return
    if eval(code, names) is False:  # noqa: S307
        raise AssertionError(f"{text.strip()} is False")


if __name__ == "__main__":
    main(*sys.argv[1:])
