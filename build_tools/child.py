"""A child process: its output kept, its whole family ended when this run is interrupted."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from build_tools.errors import ToolError

_GRACE = 5.0
"""Seconds that an interrupted child has to clean up before it is killed."""


@dataclass(frozen=True, slots=True)
class Finished:
    """What a child left: its exit code (minus the signal that ended it) and its output."""

    code: int
    lines: tuple[str, ...]


def run_child(
    command: Sequence[str | os.PathLike[str]],
    *,
    folder: Path,
    env: Mapping[str, str],
    report: Callable[[str], None] | None = None,
) -> Finished:
    """Run ``command`` in ``folder`` without input, and wait for it.

    Args:
        command: the program and its arguments.
        folder: its current directory.
        env: its whole environment.
        report: gets each line of its output (both streams) as it comes.

    Raises:
        ToolError: the program could not be started.
    """
    try:
        child = subprocess.Popen(
            command,
            cwd=folder,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            encoding="utf-8",
            errors="replace",
            start_new_session=True,
        )
    except OSError as error:
        raise ToolError(f"cannot run {os.fspath(command[0])!r}: {error.strerror or error}") from error
    lines: list[str] = []
    assert child.stdout is not None
    try:
        for line in child.stdout:
            lines.append(line.rstrip())
            if report is not None:
                report(lines[-1])
        child.wait()
    except BaseException:
        _end(child)
        raise
    finally:
        child.stdout.close()
    return Finished(child.returncode, tuple(lines))


def environment(scratch: Path, **extra: str) -> dict[str, str]:
    """The environment of a child: this one's, but with its temporary files in ``scratch``."""
    return {**os.environ, **dict.fromkeys(("TMPDIR", "TEMP", "TMP"), str(scratch)), **extra}


def _end(child: subprocess.Popen[str]) -> None:
    """End a child and all that it started: as Ctrl-C would, and by force where that takes too long."""
    with contextlib.suppress(subprocess.TimeoutExpired, KeyboardInterrupt):
        _signal(child, signal.SIGINT)
        child.wait(_GRACE)
    _signal(child, getattr(signal, "SIGKILL", signal.SIGTERM))
    child.wait()


def _signal(child: subprocess.Popen[str], number: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        if hasattr(os, "killpg"):
            os.killpg(child.pid, number)  # a session of its own, so its group bears its number
        else:
            child.terminate()
