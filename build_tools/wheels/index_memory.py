"""What an index remembers from run to run, so that only new and changed files are read.

It is a file of its own beside the pages. Whatever is odd about it, the files are read again: it saves
time and decides nothing.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from build_tools import __version__
from build_tools.wheels.distribution import Distribution, Stamp

FILE = ".te-wheel-index.json"
SETTLED_NS = 2_000_000_000
"""A file that changed less than this before it was read is read again: times are that coarse on some disks."""

Memory = dict[str, tuple[Stamp, Distribution]]


def recall(folder: Path) -> Memory:
    """What an earlier run read, by path; nothing where that is not certain."""
    try:
        document = json.loads((folder / FILE).read_bytes())
        if document["tool"] != __version__:  # another release may see other faults
            return {}
        return {path: (Stamp(*stamp), Distribution(*file)) for path, (stamp, file) in document["files"].items()}
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return {}


def to_bytes(read: Mapping[str, tuple[Stamp, Distribution]], began_ns: int) -> bytes:
    """What the next run may rely on.

    Args:
        read: what this run knows, by path.
        began_ns: when it began, before it looked at any file.
    """
    settled = {
        path: entry for path, entry in read.items() if max(entry[0].mtime_ns, entry[0].ctime_ns) < began_ns - SETTLED_NS
    }
    return json.dumps({"tool": __version__, "files": settled}).encode()
