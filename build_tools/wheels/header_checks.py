"""What METADATA and WHEEL say, each alone and held against the file name: the rules that reading a wheel applies.

Values that a rewrite never looks at (requirements, licences, ...) are the business of
:mod:`build_tools.wheels.check_metadata`.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from itertools import product
from typing import NamedTuple, TypeVar

from packaging.version import Version

from build_tools.errors import ReleaseError
from build_tools.version import parse_version
from build_tools.wheels.core_metadata import NEWEST, is_repeatable
from build_tools.wheels.finding import Findings
from build_tools.wheels.headers import Headers
from build_tools.wheels.limits import MAX_TAGS
from build_tools.wheels.name import NormalizedName, WheelName, check_build_tag, compress_tags, normalize_name, shorten

KNOWN_WHEEL = (1, 0)
_REQUIRED = {"metadata-version", "name", "version"}

T = TypeVar("T")


class Claim(NamedTuple):
    """The name and version that METADATA must repeat, and who says so: the file name, else the dist-info folder.

    Attributes:
        name: in normal form.
        shown: as it is spelled.
        source: for messages, such as ``the file name``.
    """

    name: NormalizedName
    version: Version
    shown: str
    source: str

    @classmethod
    def of(cls, name: WheelName) -> Claim:
        """What a file name claims."""
        return cls(name.name, name.version, name.project, "the file name")


def attempt(found: Findings, parse: Callable[[], T], code: str, member: str | None = None) -> T | None:
    """What ``parse`` gives, or ``None`` where it refuses: each of its faults becomes a finding."""
    try:
        return parse()
    except ReleaseError as error:
        for fault in error.faults:
            found.add(code, fault, member)
        return None


def check_metadata(metadata: Headers, claim: Claim | None, where: str, found: Findings) -> None:
    """Metadata-Version, Name, Version, and fields that may not repeat.

    Args:
        metadata: the headers of METADATA or PKG-INFO.
        claim: what Name and Version are held against, if it is known.
        where: the member that they come from.
        found: takes the findings.
    """
    for version in _once(metadata, "Metadata-Version", "metadata-version", where, found):
        number = metadata_number(version)
        newest = f"{NEWEST[0]}.{NEWEST[1]}"
        if number is None:
            found.add("metadata-version", f"Metadata-Version {version!r} is no version such as '2.4'", where)
        elif number[0] > NEWEST[0]:
            found.add("metadata-version", f"Metadata-Version {version} is unknown, {newest} is the newest known", where)
        elif number > NEWEST:
            found.add("metadata-version-new", f"Metadata-Version {version} is newer than {newest}", where)
    for name in _once(metadata, "Name", "metadata-name", where, found):
        normal = attempt(found, lambda name=name: normalize_name(name), "metadata-name", where)  # type: ignore[misc]
        if normal is not None and claim is not None and normal != claim.name:
            found.add("metadata-name", f"Name {name!r} disagrees with {claim.shown!r} in {claim.source}", where)
    for text in _once(metadata, "Version", "metadata-version-field", where, found):
        parsed = attempt(found, lambda text=text: parse_version(text), "metadata-version-field", where)  # type: ignore[misc]
        if parsed is None:
            continue
        if claim is not None and str(parsed) != str(claim.version):
            message = f"Version {text!r} disagrees with {claim.version} in {claim.source}"
            found.add("metadata-version-field", message, where)
        elif str(parsed) != text:
            message = f"Version {text!r} is not in normal form {str(parsed)!r}"
            found.add("metadata-version-spelling", message, where)
    names = {field.name.lower(): field.name for field in metadata.fields}
    for field, count in Counter(field.name.lower() for field in metadata.fields).items():
        if count > 1 and not is_repeatable(field) and field not in _REQUIRED:
            message = f"{names[field]} stands {count} times, at most once is allowed"
            found.add("metadata-field-repeated", message, where)


def check_wheel_file(wheel: Headers, name: WheelName | None, where: str, found: Findings) -> None:
    """Wheel-Version, Root-Is-Purelib, Tag and Build.

    Args:
        wheel: the headers of WHEEL.
        name: the file name that tags and build tag are held against, if it is one.
        where: the member that they come from.
        found: takes the findings.
    """
    for version in _once(wheel, "Wheel-Version", "wheel-invalid", where, found):
        number = metadata_number(version)
        if number is None or number[0] > KNOWN_WHEEL[0]:
            found.add("wheel-invalid", f"Wheel-Version {version!r} is unknown, expected 1.x", where)
    for root in _once(wheel, "Root-Is-Purelib", "wheel-root", where, found):
        if root.lower() not in ("true", "false"):
            found.add("wheel-root", f"Root-Is-Purelib is {root!r}, expected true or false", where)
    _check_tags(wheel, name, where, found)
    builds = [value.strip() for value in wheel.get_all("Build")]
    if name is not None and builds != ([name.build] if name.build else []):
        said = ", ".join(map(repr, builds)) if builds else "no build tag"
        here = repr(name.build) if name.build else "none"
        found.add("wheel-build", f"WHEEL says {said}, the file name {here}", where)
    elif name is None:
        for build in builds:
            attempt(found, lambda build=build: check_build_tag(build), "wheel-build", where)  # type: ignore[misc]
        if len(builds) > 1:
            found.add("wheel-build", f"Build stands {len(builds)} times, at most once is allowed", where)


def _check_tags(wheel: Headers, name: WheelName | None, where: str, found: Findings) -> None:
    lines = [value.strip() for value in wheel.get_all("Tag")]
    expanded: set[str] = set()
    whole = True
    for tag in filter(None, lines):
        sets = attempt(found, lambda tag=tag: compress_tags([tag]), "wheel-tags", where)  # type: ignore[misc]
        if sets is None:
            whole = False
            continue
        expanded.update(map("-".join, product(*sets)))
        if len(expanded) > MAX_TAGS:
            found.add("limit-exceeded", f"the Tag lines stand for more than {MAX_TAGS} tags", where)
            return
    if name is None:
        return
    wanted = set(name.tags)
    # Beside a tag that cannot be read, those that are missing may be the ones that it meant.
    if expanded - wanted or (whole and expanded != wanted):
        found.add(
            "wheel-tags",
            f"WHEEL says {shorten(', '.join(sorted(expanded))) or 'no tag'}, "
            f"the file name {shorten(', '.join(name.tags))}",
            where,
        )
    elif whole and sorted(lines) != sorted(name.tags):
        found.add("wheel-tags-spelling", "the Tag lines are blank, repeated, compressed or in capitals", where)


def _once(headers: Headers, field: str, code: str, where: str, found: Findings) -> list[str]:
    """The values of a field that must stand exactly once, blank ones left out: each is looked at all the same."""
    values = [value.strip() for value in headers.get_all(field)]
    if not values:
        found.add(code, f"{field} is missing", where)
    elif len(values) > 1:
        shown = shorten(", ".join(map(repr, values)))
        found.add(code, f"{field} stands {len(values)} times ({shown}), expected once", where)
    elif not values[0]:
        found.add(code, f"{field} is empty", where)
    return list(dict.fromkeys(filter(None, values)))


def metadata_number(text: str) -> tuple[int, int] | None:
    """``2.4`` as numbers, or ``None`` where it is no such version."""
    match = re.match(r"(\d{1,6})\.(\d{1,6})\Z", text, re.ASCII)
    return (int(match[1]), int(match[2])) if match else None
