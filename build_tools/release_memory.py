"""What a release that did not end has done already: so that the next run in its folder goes on from there.

It lies in the hidden folder :data:`FOLDER` of the output folder, and goes when the release is whole. What is found
there counts only where it is still right: a wheel that was built from the very bytes of the sdist, by this Python on
this system, and a trial of the very bytes of a wheel that was asked the same. Anything else is as good as nothing.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import platform
import shutil
import sysconfig
import threading
from pathlib import Path
from typing import Any

from build_tools.errors import ReleaseError
from build_tools.release_record import ReleasedFile
from build_tools.smoke_plan import SmokePlan
from build_tools.smoke_result import Outcome, SmokeResult, Status
from build_tools.wheels.output import OutputFile

FOLDER = ".te-wheel-release"
_FACTS = "memory.json"
_SCHEMA = 1


class Memory:
    """What is known of an earlier run.

    Args:
        folder: the output folder.
        fresh: know nothing.

    It serves several threads. What cannot be written down is forgotten: the next run then does it again.
    """

    def __init__(self, folder: Path, *, fresh: bool = False) -> None:
        self._home = folder / FOLDER
        self._lock = threading.Lock()
        self._built: dict[str, Any] = {}
        self._trials: dict[str, Any] = {}
        if fresh:
            self.forget()
            return
        with contextlib.suppress(OSError, ValueError, TypeError, RecursionError):
            facts = json.loads((self._home / _FACTS).read_bytes())
            if (facts["schema"], facts["system"]) == (_SCHEMA, _system()):
                self._built, self._trials = dict(facts["built"]), dict(facts["trials"])

    def find_wheel(self, sdist: Path) -> Path | None:
        """The wheel that was built from these very bytes, if it is still there and whole."""
        with contextlib.suppress(ReleaseError, KeyError, TypeError):
            wheel = self._home / os.path.basename(str(self._built["wheel"]))
            if self._built["sdist"] == _digest(sdist) and self._built["sha256"] == _digest(wheel):
                return wheel
        return None

    def keep_wheel(self, sdist: Path, wheel: Path) -> None:
        """Know ``wheel`` as what was built from ``sdist``."""
        with contextlib.suppress(ReleaseError, OSError):
            with OutputFile(self._home / wheel.name) as output, wheel.open("rb") as stream:
                with output.stream() as sink:
                    shutil.copyfileobj(stream, sink, 1 << 20)
                output.publish(replace=True, fsync=False)
            self._built = {"sdist": _digest(sdist), "wheel": wheel.name, "sha256": _digest(wheel)}
            self._write()

    def find_trial(self, wheel: ReleasedFile, asked: SmokePlan) -> SmokeResult | None:
        """How the trial of this very wheel ended, where it was asked the same and everything passed."""
        with contextlib.suppress(KeyError, TypeError, ValueError):
            parts = self._trials[_trial(wheel, asked)]
            return SmokeResult(wheel.path.name, *(Status.passed(str(parts[part])) for part in _PARTS))
        return None

    def keep_trial(self, wheel: ReleasedFile, asked: SmokePlan, result: SmokeResult) -> None:
        """Know how a trial ended, if everything passed: what failed or was skipped is tried again."""
        if all(status.outcome is Outcome.PASSED for _, status in result.parts):
            with self._lock, contextlib.suppress(ReleaseError, OSError):
                self._trials[_trial(wheel, asked)] = {part: status.why for part, status in result.parts}
                self._write()

    def forget(self) -> None:
        """Take all of it away; the release is whole."""
        shutil.rmtree(self._home, ignore_errors=True)

    def _write(self) -> None:
        facts = {"schema": _SCHEMA, "system": _system(), "built": self._built, "trials": self._trials}
        with OutputFile(self._home / _FACTS) as output:
            with output.stream() as sink:
                sink.write(json.dumps(facts, indent=2).encode() + b"\n")
            output.publish(replace=True, fsync=False)


_PARTS = ("install", "import", "version")


def _system() -> str:
    return f"{platform.python_implementation()} {platform.python_version()} on {sysconfig.get_platform()}"


def _digest(path: Path) -> str:
    return ReleasedFile.of(path).sha256


def _trial(wheel: ReleasedFile, asked: SmokePlan) -> str:
    """What tells one trial from another: the wheel, its name, and what it was asked."""
    text = json.dumps([wheel.path.name, asked.requires, asked.imports, asked.run])
    return f"{wheel.sha256}-{hashlib.sha256(text.encode()).hexdigest()[:16]}"
