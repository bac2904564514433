"""Names of archive members: which are safe on every system, and which get in each other's way."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Mapping

from build_tools.wheels.finding import Finding, Findings
from build_tools.wheels.limits import MAX_DEPTH, MAX_NAME, MAX_PART

_UNSAFE = re.compile(r"[\x00-\x1f\x7f-\x9f\\\u2028\u2029]|\A/|\A[A-Za-z]:|//|[ .](?:/|\Z)|\A\Z")
# As texts: what few runs ask for is compiled when they do.
_NO_TARGET = r"\A/|\A[A-Za-z]:|[\\\0]"
_FAULTY = ("\n\n", "\n/", "//", "./", " /", ".\n", " \n")
"""What a list of names, one a line, holds where one is empty, absolute or has a part that :data:`_UNSAFE` finds."""
_BATCH = 1024
_MAX_HOPS = 40
_MAX_LINK_PARTS = 255
_MAX_STEPS = 1000
DATA_SCHEMES = ("purelib", "platlib", "headers", "scripts", "data")
"""The folders that ``.data`` may hold: each goes to its own place when the wheel is installed."""
_INVISIBLE = {"Cf", "Co", "Cn"}
_RESERVED = (
    r'(?i)[<>:"|?*]|(?:\A|/)(?:con|prn|aux|nul|conin\$|conout\$|(?:com|lpt)[0-9\u00b9\u00b2\u00b3])(?:\.[^/]*)?(?:/|\Z)'
)
_EXTENSION = r"\.(?:cpython-\d+[a-z]*-[\w-]+|abi3|pypy\d+-[\w-]+)\.so\Z|\.pyd\Z"


def is_unsafe(name: str) -> bool:
    """Whether a name could leave its folder, or means another file, on some system.

    Absolute paths, drive letters, backslashes, control characters, parts that are empty, ``.`` or
    ``..``, parts that end in a blank or a dot (which Windows drops), and more parts or bytes than a
    file system takes.
    """
    return is_too_long(name) or _UNSAFE.search(name.removesuffix("/")) is not None


def is_too_long(name: str) -> bool:
    """Whether a name has more bytes or parts than any file system takes, or than can be walked in good time."""
    return len(name) > MAX_NAME or name.count("/") > MAX_DEPTH


def is_odd(name: str) -> bool:
    """Whether installers refuse a name: invisible, private or unassigned characters, a part over 255 bytes."""
    if name.isascii():
        return len(name) > MAX_PART and max(map(len, name.split("/"))) > MAX_PART
    invisible = any(unicodedata.category(char) in _INVISIBLE for char in name)
    return invisible or max(len(part.encode()) for part in name.split("/")) > MAX_PART


def is_reserved(name: str) -> bool:
    """Whether Windows has no file of this name: devices such as ``aux`` and ``nul.txt``, characters such as ``:``."""
    return re.search(_RESERVED, name) is not None


def is_extension_module(name: str) -> bool:
    """Whether a name is for certain that of a compiled module: ``x.cpython-311-x86_64-linux-gnu.so``, ``x.pyd``."""
    return re.search(_EXTENSION, name) is not None


def is_data_path(rest: str) -> bool:
    """Whether a path below ``.data`` is one that installers know where to put."""
    scheme, slash, file = rest.partition("/")
    return scheme in DATA_SCHEMES and bool(slash and file)


def check_names(names: Iterable[str]) -> list[Finding]:
    """Unsafe names, names that are file and folder at once, names that differ by case alone.

    Args:
        names: every member, folders with their ``/``; symlinks count as files.
    """
    names = list(names)
    if _are_faultless(names):
        return []
    found = Findings()
    find = found.add
    files = {name for name in names if not name.endswith("/")}
    folded: dict[str, str] = {}
    below = _below_files(names, files)
    for member in names:
        name = member.removesuffix("/")
        if is_unsafe(member):
            shown = member if len(member) <= 200 else f"{member[:197]}..."
            find("zip-unsafe-name", f"unsafe member name {shown!r}", shown)
            if is_too_long(member):
                continue
        elif is_odd(name):
            find("zip-odd-name", f"installers refuse the name {member!r}", member)
        if member is not name and name in files:
            find("zip-name-conflict", "the name is a file and a folder", name)
        if name in below:
            find("zip-name-conflict", f"{below[name]} is a file, so nothing can stand below it", member)
        fold = name.lower() if name.isascii() else unicodedata.normalize("NFC", name).casefold()
        if folded.setdefault(fold, name) != name:
            find("zip-case-collision", f"differs from {folded[fold]} by case alone", member)
    return found.all()


def _are_faultless(names: list[str]) -> bool:
    """Whether these names are short, printable ASCII and for certain without fault; told by whole batches.

    ``False`` says nothing: then each name is looked at by itself.
    """
    for start in range(0, len(names), _BATCH):
        batch = names[start : start + _BATCH]
        if max(map(len, batch)) > MAX_PART:
            return False
        text = "".join(batch)
        if not (text.isascii() and text.isprintable()) or ":" in text or "\\" in text:
            return False
        # Printable, so each line is one name.
        lines = "\n" + "\n".join(batch) + "\n"
        if any(trouble in lines for trouble in _FAULTY):
            return False
    folders = {name.rpartition("/")[0] for name in names}
    for folder in list(folders):
        parent = folder
        while (parent := parent.rpartition("/")[0]) not in folders:
            folders.add(parent)
        if len(folders) > len(names) + MAX_DEPTH:  # in time and memory the square of their depth
            return False
    # The folder at the top is called "", as no member is.
    if not folders.isdisjoint(names):
        return False
    # Of two names that differ by case alone, one has a capital letter.
    capitals = [name.removesuffix("/") for name in names if name.lower() != name]
    folds = {name.lower() for name in capitals}
    bare = (name.removesuffix("/") for name in names)
    return len(folds) == len(capitals) and folds.isdisjoint(bare)


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
    steps = 0
    for _ in range(_MAX_HOPS):
        if target is None or target.count("/") > _MAX_LINK_PARTS or re.search(_NO_TARGET, target):
            return True
        todo.extend(reversed(target.split("/")))
        target = None
        while todo and target is None:
            part = todo.pop()
            steps += 1
            if steps > _MAX_STEPS:
                return True
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


def _below_files(names: list[str], files: set[str]) -> dict[str, str]:
    """Each name that stands below a file, with that file.

    In the order of their parts, what stands below a name follows it at once; to ask for every folder
    of every name would take the square of their depth.
    """
    below: dict[str, str] = {}
    file = "/"
    for name in sorted((name.removesuffix("/") for name in names), key=lambda name: name.replace("/", "\0")):
        if name.startswith(file):
            below[name] = file[:-1]
        elif name in files:
            file = f"{name}/"
    return below
