"""All judges on many wheels: every one of them for each wheel, in a process of its own, started once for all.

A judge is imported once and then copied (fork) for each wheel, so that hundreds of verdicts take seconds. Run as a
script it reads a JSON list of ``[command line, folder, log]`` and prints the list of exit codes.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.acceptance.judges import JUDGES, Verdict, require

_SCRIPT = """\
import importlib, json, os, runpy, sys
for module in sys.argv[1].split():
    importlib.import_module(module)
codes = []
for command, folder, log in json.load(sys.stdin):
    os.makedirs(folder, exist_ok=True)
    child = os.fork()
    if not child:
        code = 1
        try:
            fd = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            os.dup2(fd, 1), os.dup2(fd, 2)
            if command[0] == "-m":
                sys.argv = command[1:]
                runpy.run_module(command[1], run_name="__main__", alter_sys=True)
                code = 0
            else:
                os.execvp(command[0], command)
        except SystemExit as done:
            code = done.code if isinstance(done.code, int) else 1 if done.code else 0
            if isinstance(done.code, str):
                print(done.code)
        except BaseException:
            import traceback
            traceback.print_exc()
        finally:
            sys.stdout.flush(), sys.stderr.flush()
            os._exit(code)
    codes.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
print(json.dumps(codes))
"""
# What a judge spends its start on. uv and unzip are programs of their own.
_IMPORTS = {
    "pip": "pip._internal.cli.main pip._internal.commands.install",
    "installer": "installer.__main__",
    "wheel unpack": "wheel._commands.unpack",
    "twine": "twine.commands.check",
    "check-wheel-contents": "check_wheel_contents.__main__",
    "auditwheel": "auditwheel.main auditwheel.main_show",
    "zipfile": "zipfile",
}
UNZIP = "unzip"
NAMES = (*JUDGES, UNZIP)


def ask_all(name: str, wheels: Mapping[str, Path], folder: Path) -> dict[str, Verdict]:
    """One judge's verdict on each wheel, by its key. Skips the test where the judge is not installed."""
    import pytest

    commands = []
    for number, (key, wheel) in enumerate(wheels.items()):
        place = folder / name.replace(" ", "-") / str(number)
        if name == UNZIP:
            command = [UNZIP, "-t", "-qq", str(wheel)]
        else:
            command = JUDGES[name].command([wheel], place)
            if name == "uv":
                # Its cache alone spares it to ask the interpreter about itself each time.
                at = command.index("--no-cache")
                command = [_uv(), *command[2:at], "--cache-dir", str(folder / "uv-cache"), *command[at + 1 :]]
        commands.append((key, command, place))
    if name == UNZIP and shutil.which(UNZIP) is None:
        pytest.skip("Info-ZIP unzip is not installed")
    if name != UNZIP and JUDGES[name].distribution is not None:
        require(str(JUDGES[name].distribution))
    (folder / name.replace(" ", "-")).mkdir(parents=True, exist_ok=True)
    logs = [f"{place}.log" for _, _, place in commands]
    given = json.dumps([[command, str(place), log] for (_, command, place), log in zip(commands, logs, strict=True)])
    quiet = {"NO_COLOR": "1", "PIP_DISABLE_PIP_VERSION_CHECK": "1", "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(
        [sys.executable, "-c", _SCRIPT, _IMPORTS.get(name, "")],
        input=given, text=True, capture_output=True, env={**os.environ, **quiet},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    codes: Sequence[int] = json.loads(done.stdout.splitlines()[-1])
    verdicts = {}
    for (key, command, place), log, code in zip(commands, logs, codes, strict=True):
        said = Path(log).read_text(errors="replace")
        verdicts[key] = Verdict(code == 0, f"$ {' '.join(command)}\n{said}")
        shutil.rmtree(place, ignore_errors=True)
    return verdicts


def _uv() -> str:
    import uv

    return str(uv.find_uv_bin())
