"""When a project's sources were last changed: the time that everything built from them bears.

Source: SOURCE_DATE_EPOCH specification, <https://reproducible-builds.org/specs/source-date-epoch/>.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from build_tools.wheels.times import FIRST_SECOND, LAST_SECOND, epoch_seconds

_PATIENCE = 60
"""Seconds that git may take."""


def source_time(project: Path) -> int:
    """SOURCE_DATE_EPOCH if it is set; else the time of the last commit to ``project``; of an unpacked sdist the time
    of its PKG-INFO; else 1980-01-01. In seconds since 1970, as far as a zip archive can hold it.

    Changes that are not committed do not count: the same commit gives the same time on every machine.

    Raises:
        EditError: SOURCE_DATE_EPOCH is no whole number of seconds.
    """
    given = epoch_seconds()
    if given is not None:
        return given
    seconds = _commit_time(project)
    if seconds is None:
        try:
            seconds = int((project / "PKG-INFO").stat().st_mtime)
        except OSError:
            seconds = FIRST_SECOND
    return min(max(seconds, FIRST_SECOND), LAST_SECOND)


def _commit_time(project: Path) -> int | None:
    # Of this folder alone: it may lie in somebody else's checkout, which says nothing of it.
    command = ["git", "-C", os.fspath(project), "log", "-1", "--format=%ct", "--", "."]
    inherited = {key: value for key, value in os.environ.items() if not key.startswith("GIT_")}
    try:
        run = subprocess.run(command, env=inherited, capture_output=True, text=True, timeout=_PATIENCE)
    except (OSError, subprocess.TimeoutExpired):
        return None
    text = run.stdout.strip()
    return int(text) if run.returncode == 0 and text.isascii() and text.isdigit() else None
