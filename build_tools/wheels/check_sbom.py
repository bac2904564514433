"""The SBOM files of a wheel: JSON, and of one mind with METADATA about the wheel itself.

Sources: CycloneDX and SPDX, whose package URLs (``pkg:pypi/name@version``) name the wheel; where
they stand is said by the Binary distribution format (``.dist-info/sboms``).
"""

from __future__ import annotations

from collections.abc import Iterable
from urllib.parse import unquote

from build_tools.errors import WheelError
from build_tools.version import normalize_version
from build_tools.wheels.finding import Finding, Findings
from build_tools.wheels.json_text import read_strings
from build_tools.wheels.limits import MAX_SBOM
from build_tools.wheels.name import normal_form, shorten
from build_tools.wheels.sbom import Purl
from build_tools.wheels.wheel import Wheel


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
            strings = read_strings(wheel.archive.read(member, MAX_SBOM).decode())
        except WheelError:
            continue  # --hashes tells
        except ValueError as error:
            found.add("sbom", f"not JSON: {shorten(str(error))}", member.name)
            continue
        _check_purls(wheel, dict.fromkeys(string.value for string in strings), member.name, found)
    return found.all()


def _check_purls(wheel: Wheel, texts: Iterable[str], where: str, found: Findings) -> None:
    version = wheel.version
    if version is None or not wheel.project:
        return
    seen: set[str] = set()
    for text in texts:
        purl = Purl.parse(text)
        if purl is None or normal_form(unquote(purl.name)) != normal_form(wheel.project):
            continue
        if purl.version not in seen and _normal(unquote(purl.version)) != str(version):
            found.add("sbom", f"{shorten(text)!r} is this wheel, whose version is {version}", where)
        seen.add(purl.version)


def _normal(text: str) -> str:
    try:
        return normalize_version(text)
    except ValueError:
        return text
