"""The SBOM files of a wheel: JSON, and of one mind with METADATA about the wheel itself.

Sources: CycloneDX and SPDX, whose package URLs (``pkg:pypi/name@version``) name the wheel; where
they stand is said by the Binary distribution format (``.dist-info/sboms``).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from urllib.parse import unquote

from build_tools.errors import WheelError
from build_tools.version import normalize_version
from build_tools.wheels.finding import Finding, Findings
from build_tools.wheels.limits import MAX_SBOM
from build_tools.wheels.name import normal_form, shorten
from build_tools.wheels.wheel import Wheel

_PURL = re.compile(r"pkg:pypi/(?P<name>[^@?#/]+)@(?P<version>[^?#]+)")


def check_sboms(wheel: Wheel) -> list[Finding]:
    """Every SBOM that is no JSON, and every package URL of the wheel itself with another version."""
    found = Findings()
    folder = wheel.member("sboms/")
    for member in wheel.archive.members:
        if wheel.dist_info is None or not member.name.startswith(folder) or not member.name.endswith(".json"):
            continue
        if member.size > MAX_SBOM:
            found.add("limit-exceeded", f"it holds {member.size} bytes, at most {MAX_SBOM} are read", member.name)
            continue
        try:
            content = json.loads(wheel.archive.read(member, MAX_SBOM))
        except WheelError:
            continue  # --hashes tells
        except (ValueError, RecursionError) as error:
            found.add("sbom", f"not JSON: {shorten(str(error))}", member.name)
            continue
        _check_purls(wheel, content, member.name, found)
    return found.all()


def _check_purls(wheel: Wheel, content: object, where: str, found: Findings) -> None:
    version = wheel.version
    if version is None or not wheel.project:
        return
    seen: set[str] = set()
    for text in _texts(content):
        match = _PURL.match(text)
        if match is None or normal_form(unquote(match["name"])) != normal_form(wheel.project):
            continue
        said = unquote(match["version"])
        if said not in seen and _normal(said) != str(version):
            found.add("sbom", f"{shorten(text)!r} is this wheel, whose version is {version}", where)
        seen.add(said)


def _normal(text: str) -> str:
    try:
        return normalize_version(text)
    except ValueError:
        return text


def _texts(content: object) -> Iterator[str]:
    todo = [content]
    while todo:
        value = todo.pop()
        if isinstance(value, str):
            yield value
        elif isinstance(value, list):
            todo.extend(reversed(value))
        elif isinstance(value, dict):
            todo.extend(reversed(value.values()))
