"""Names of archive members: which are safe on every system, and which get in each other's way."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Iterator, Mapping

from build_tools.wheels.finding import Finding

_UNSAFE = re.compile(r"[\x00-\x1f\x7f-\x9f\\\u2028\u2029]|\A/|\A[A-Za-z]:|//|[ .](?:/|\Z)|\A\Z")
_NO_TARGET = re.compile(r"\A/|\A[A-Za-z]:|[\\\0]")
_MAX_HOPS = 40
_MAX_LINK_PARTS = 255
MAX_NAME = 4096
"""Bytes of a whole name; no file system takes longer ones."""
MAX_PART = 255
"""Bytes of one part of a name."""
DATA_SCHEMES = ("purelib", "platlib", "headers", "scripts", "data")
"""The folders that ``.data`` may hold: each goes to its own place when the wheel is installed."""
_INVISIBLE = {"Cf", "Co", "Cn"}


def is_unsafe(name: str) -> bool:
    """Whether a name could leave its folder, or means another file, on some system.

    Absolute paths, drive letters, backslashes, control characters, parts that are empty, ``.`` or
    ``..``, and parts that end in a blank or a dot (which Windows drops).
    """
    return len(name) > MAX_NAME or _UNSAFE.search(name.removesuffix("/")) is not None


def is_odd(name: str) -> bool:
    """Whether installers refuse a name: invisible, private or unassigned characters, a part over 255 bytes."""
    if name.isascii():
        return len(name) > MAX_PART and max(map(len, name.split("/"))) > MAX_PART
    invisible = any(unicodedata.category(char) in _INVISIBLE for char in name)
    return invisible or max(len(part.encode()) for part in name.split("/")) > MAX_PART


def is_data_path(rest: str) -> bool:
    """Whether a path below ``.data`` is one that installers know where to put."""
    scheme, slash, file = rest.partition("/")
    return scheme in DATA_SCHEMES and bool(slash and file)


def check_names(names: Iterable[str]) -> list[Finding]:
    """Unsafe names, names that are file and folder at once, names that differ by case alone.

    Args:
        names: every member, folders with their ``/``; symlinks count as files.
    """
    findings: list[Finding] = []
    names = list(names)
    files = {name for name in names if not name.endswith("/")}
    folded: dict[str, str] = {}
    sound: set[str] = set()
    for member in names:
        name = member.removesuffix("/")
        if is_unsafe(member):
            shown = member if len(member) <= 200 else f"{member[:197]}..."
            findings.append(Finding("zip-unsafe-name", f"unsafe member name {shown!r}", shown))
            continue
        if is_odd(name):
            findings.append(Finding("zip-odd-name", f"installers refuse the name {member!r}", member))
        if member is not name and name in files:
            findings.append(Finding("zip-name-conflict", "the name is a file and a folder", name))
        for folder in _parents(name):
            if folder in sound:
                break
            if folder in files:
                findings.append(
                    Finding("zip-name-conflict", f"{folder} is a file, so nothing can stand below it", member)
                )
                break
            sound.add(folder)
        fold = name.lower() if name.isascii() else unicodedata.normalize("NFC", name).casefold()
        if folded.setdefault(fold, name) != name:
            findings.append(Finding("zip-case-collision", f"differs from {folded[fold]} by case alone", member))
    return findings


def leaves_tree(name: str, links: Mapping[str, str]) -> bool:
    """Whether following the symlink ``name`` ever steps out of the tree, or never ends, or has too many steps.

    Steps are taken as a file system takes them: ``..`` after a symlink leaves the folder that the
    symlink led to.

    Args:
        name: a key of ``links``.
        links: every symlink of the tree with its target.
    """
    target: str | None = links[name]
    here = name.split("/")[:-1]
    todo: list[str] = []
    for _ in range(_MAX_HOPS):
        if target is None or target.count("/") > _MAX_LINK_PARTS or _NO_TARGET.search(target):
            return True
        todo.extend(reversed(target.split("/")))
        target = None
        while todo and target is None:
            part = todo.pop()
            if part == "..":
                if not here:
                    return True
                here.pop()
            elif part not in ("", "."):
                target = links.get("/".join([*here, part]))
                if target is None:
                    here.append(part)
        if target is None:
            return False
    return True


def _parents(name: str) -> Iterator[str]:
    """The folders of ``name``, the nearest first."""
    while (cut := name.rfind("/")) > 0:
        name = name[:cut]
        yield name
