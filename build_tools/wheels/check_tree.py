"""The files of a wheel: where installers put them, and what may not stand beside what.

Sources: Binary distribution format, Entry points, Wheel variants (draft); names that Windows reserves:
<https://learn.microsoft.com/windows/win32/fileio/naming-a-file>.
"""

from __future__ import annotations

import stat

from build_tools.errors import WheelError
from build_tools.wheels.entry_points import entry_point_faults
from build_tools.wheels.finding import Finding, Findings
from build_tools.wheels.limits import MAX_SMALL
from build_tools.wheels.member_names import is_extension_module, is_reserved
from build_tools.wheels.variant import FILE as VARIANT
from build_tools.wheels.variant import variant_faults
from build_tools.wheels.wheel import Wheel

_INSTALLER_FILES = ("INSTALLER", "REQUESTED", "direct_url.json")
_TYPES = (0, stat.S_IFREG, stat.S_IFDIR, stat.S_IFLNK)
_ROOT = {"purelib": "", "platlib": ""}


def check_tree(wheel: Wheel) -> list[Finding]:
    """Every finding that the names and kinds of members give, and the small files of .dist-info."""
    found = Findings()
    _check_members(wheel, found)
    _check_targets(wheel, found)
    if wheel.dist_info is not None:
        for file in _INSTALLER_FILES:
            if wheel.member(file) in wheel.archive.by_name:
                found.add("dist-info-installer-file", "only an installer writes it", wheel.member(file))
        entry_points = _read(wheel, "entry_points.txt", "entry-points", found)
        for fault in entry_point_faults(entry_points) if entry_points is not None else ():
            found.add("entry-points", fault, wheel.member("entry_points.txt"))
        _check_variant(wheel, wheel.dist_info, found)
    if wheel.wheel is not None and not (wheel.wheel.get("Generator") or "").strip():
        found.add("wheel-generator", "Generator is missing", wheel.member("WHEEL"))
    return found.all()


def _check_members(wheel: Wheel, found: Findings) -> None:
    # Without a file name nobody knows what the wheel is for.
    platforms = wheel.name.platform if wheel.name else ()
    windows = any(platform == "any" or platform.startswith("win") for platform in platforms)
    anywhere = platforms == ("any",)
    for member in wheel.archive.members:
        name = member.name
        if stat.S_IFMT(member.mode) not in _TYPES:
            found.add("zip-file-type", f"its mode {member.mode:#o} is that of no file, folder or symlink", name)
        if windows and is_reserved(name):
            found.add("zip-reserved-name", "Windows cannot have a file of this name", name)
        if anywhere and is_extension_module(name):
            found.add("wheel-pure", "an extension module, and the platform tag is 'any'", name)
        top, _, rest = name.partition("/")
        if not top.endswith(".data"):
            continue
        scheme, _, file = rest.partition("/")
        if scheme == "scripts" and "/" in file:
            found.add("data-scripts", "uv refuses folders among the scripts, pip drops them", name)
        if scheme == "platlib" and file and anywhere and not member.is_dir:
            found.add("data-platlib", "it goes to platlib, and the platform tag is 'any'", name)


def _check_targets(wheel: Wheel, found: Findings) -> None:
    """Members of ``.data`` that are installed over another one."""
    names = set(wheel.archive.by_name)
    targets: dict[str, str] = {}
    for member in wheel.archive.members:
        top, _, rest = member.name.partition("/")
        scheme, _, file = rest.partition("/")
        if not top.endswith(".data") or scheme not in _ROOT or not file or member.is_dir:
            continue
        # On all but a few systems purelib and platlib are one folder.
        other = file if file in names else targets.setdefault(file, member.name)
        if other != member.name:
            found.add("data-conflict", f"it is installed to the path of {other}", member.name)


def _check_variant(wheel: Wheel, dist_info: str, found: Findings) -> None:
    label = wheel.name.variant if wheel.name else None
    where = wheel.member(VARIANT)
    if where not in wheel.archive.by_name:
        if label is not None:
            message = f"the file name has the variant label {label!r}, {dist_info} holds no {VARIANT}"
            found.add("variant-label", message, dist_info)
        return
    if wheel.name is not None and label is None:
        found.add("variant-label", "it is there, and the file name has no variant label", where)
    data = _read(wheel, VARIANT, "variant-json", found)
    if data is not None:
        faults, disagreements = variant_faults(data, label)
        for fault in faults:
            found.add("variant-json", fault, where)
        for fault in disagreements:
            found.add("variant-label", fault, where)


def _read(wheel: Wheel, file: str, code: str, found: Findings) -> bytes | None:
    """A small file of .dist-info, ``None`` where it is not there or cannot be read."""
    member = wheel.archive.by_name.get(wheel.member(file))
    if member is None or any(
        finding.member == member.name and finding.code in ("zip-encrypted", "zip-method") for finding in wheel.findings
    ):
        return None
    if member.size > MAX_SMALL:
        found.add("limit-exceeded", f"it holds {member.size} bytes, at most {MAX_SMALL} are read", member.name)
        return None
    try:
        return wheel.archive.read(member, MAX_SMALL)
    except WheelError as error:
        found.add("zip-data", error.reason, member.name)
        return None
