"""The programs that have the last word on a wheel, each behind the same call.

A judge that is not installed is skipped where a test asks for it, visibly, never passed over.
"""

from __future__ import annotations

import importlib.metadata
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a judge says of a wheel, and the command that asked it."""

    accepted: bool
    said: str


@dataclass(frozen=True, slots=True)
class Judge:
    """One program.

    Attributes:
        distribution: what must be installed; ``None`` for a part of Python.
        command: wheels and an empty folder -> the command line, without the interpreter.
        takes_many: whether one run can look at many wheels.
    """

    distribution: str | None
    command: Callable[[Sequence[Path], Path], list[str]]
    takes_many: bool = False

    def ask(self, wheels: Sequence[Path], folder: Path) -> Verdict:
        if self.distribution is not None:
            require(self.distribution)
        return run([sys.executable, *self.command(wheels, folder)])


def require(distribution: str) -> None:
    """Skip the test where ``distribution`` is not installed; nothing of it is imported."""
    try:
        importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        pytest.skip(f"{distribution} is not installed")


def run(command: Sequence[str], **environment: str) -> Verdict:
    """Run a command with colours and caches of its own switched off."""
    quiet = {"NO_COLOR": "1", "PIP_DISABLE_PIP_VERSION_CHECK": "1", "PYTHONDONTWRITEBYTECODE": "1", **environment}
    done = subprocess.run(
        command, env={**os.environ, **quiet}, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    return Verdict(done.returncode == 0, f"$ {' '.join(command)}\n{done.stdout}")


def _names(wheels: Sequence[Path]) -> list[str]:
    return [str(wheel) for wheel in wheels]


def _install_with_pip(wheels: Sequence[Path], folder: Path) -> list[str]:
    options = ["--isolated", "--no-deps", "--no-index", "--no-compile", "--root-user-action", "ignore"]
    return ["-m", "pip", "install", *options, "--target", str(folder), *_names(wheels)]


def _install_with_uv(wheels: Sequence[Path], folder: Path) -> list[str]:
    options = ["--no-deps", "--offline", "--no-config", "--no-cache", "--python", sys.executable]
    return ["-m", "uv", "pip", "install", *options, "--target", str(folder), *_names(wheels)]


def _install_with_installer(wheels: Sequence[Path], folder: Path) -> list[str]:
    options = ["--validate-record", "all", "--no-compile-bytecode", "--destdir", str(folder)]
    return ["-m", "installer", *options, *_names(wheels)]


PIP = Judge("pip", _install_with_pip)
UV = Judge("uv", _install_with_uv)
INSTALLER = Judge("installer", _install_with_installer)
WHEEL_UNPACK = Judge("wheel", lambda wheels, folder: ["-m", "wheel", "unpack", "--dest", str(folder), *_names(wheels)])
TWINE = Judge("twine", lambda wheels, folder: ["-m", "twine", "check", "--strict", *_names(wheels)], takes_many=True)
CONTENTS = Judge(
    "check-wheel-contents",
    lambda wheels, folder: ["-m", "check_wheel_contents", "--no-config", *_names(wheels)],
    takes_many=True,
)
AUDITWHEEL = Judge("auditwheel", lambda wheels, folder: ["-m", "auditwheel", "show", *_names(wheels)])
ZIPFILE = Judge(None, lambda wheels, folder: ["-m", "zipfile", "-t", *_names(wheels)])

JUDGES: dict[str, Judge] = {
    "pip": PIP,
    "uv": UV,
    "installer": INSTALLER,
    "wheel unpack": WHEEL_UNPACK,
    "twine": TWINE,
    "check-wheel-contents": CONTENTS,
    "auditwheel": AUDITWHEEL,
    "zipfile": ZIPFILE,
}


def import_from(folder: Path, *modules: str) -> Verdict:
    """Import modules in a fresh interpreter that finds them in ``folder`` alone."""
    code = (
        f"import importlib, sys; sys.path.insert(0, {str(folder)!r})\n"
        f"for name in {list(modules)!r}:\n"
        "    module = importlib.import_module(name)\n"
        f"    assert module.__file__.startswith({str(folder)!r}), module.__file__\n"
    )
    return run([sys.executable, "-I", "-c", code])


def run_script(folder: Path, script: str, *arguments: str) -> Verdict:
    """Run a command that was installed into ``folder``."""
    found = shutil.which(script, path=str(folder / "bin"))
    if found is None:
        return Verdict(False, f"no executable {script!r} in {sorted(path.name for path in folder.glob('bin/*'))}")
    return run([found, *arguments], PYTHONPATH=str(folder))
