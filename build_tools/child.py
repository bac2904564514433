"""A child process: its output kept, and nothing of its family left when it ends or this run is interrupted."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from build_tools.errors import ToolError
from build_tools.parallel import require_running

_GRACE = 5.0
"""Seconds that an interrupted child has to clean up before it is killed."""
_running: set[subprocess.Popen[str]] = set()
_UMASK = 0o022
"""What children make has the same modes whoever runs them."""


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

    What it started and left running is killed when it ends; files that it makes have modes of 0644 and 0755.

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
            umask=_UMASK,
        )
    except OSError as error:
        raise ToolError(f"cannot run {os.fspath(command[0])!r}: {error.strerror or error}") from error
    lines: list[str] = []
    assert child.stdout is not None
    _running.add(child)
    # Something that it leaves behind may hold its output open for ever.
    threading.Thread(target=_kill_rest, args=(child,), daemon=True).start()
    try:
        require_running()  # whoever ended all children may have looked a moment before this one was there
        for line in child.stdout:
            lines.append(line.rstrip())
            if report is not None:
                report(lines[-1])
        child.wait()
    except BaseException:
        _end(child)
        raise
    finally:
        _running.discard(child)
        child.stdout.close()
    return Finished(child.returncode, tuple(lines))


def end_all() -> None:
    """End every child that runs, in whichever thread: an interrupt reaches only one of them."""
    for child in list(_running):
        _signal(child, signal.SIGINT)


def environment(scratch: Path, **extra: str) -> dict[str, str]:
    """The environment of a child: this one's, but with its temporary files in ``scratch``."""
    return {**os.environ, **dict.fromkeys(("TMPDIR", "TEMP", "TMP"), str(scratch)), **extra}


def _kill_rest(child: subprocess.Popen[str]) -> None:
    """Wait until the child itself has ended, then kill what is left of its group."""
    if not (hasattr(os, "waitid") and hasattr(os, "killpg")):
        return
    # It is not reaped before its group was signalled: no other process can have its number until then.
    with contextlib.suppress(ChildProcessError):
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        _signal(child, signal.SIGKILL)


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
