"""What PyPI refuses on upload beyond the specifications.

Sources: <https://docs.pypi.org/archives/>, and what its upload endpoint does (read in 2026-11).
"""

from __future__ import annotations

import re
import sys

from packaging.version import Version

from build_tools.errors import WheelNameError
from build_tools.wheels.core_metadata import NEWEST, WITHDRAWN, value_faults, whole_faults
from build_tools.wheels.finding import Finding, Findings
from build_tools.wheels.header_checks import metadata_number
from build_tools.wheels.headers import Headers
from build_tools.wheels.name import WheelName, normal_form, normalize_name, shorten
from build_tools.wheels.wheel import Wheel

MAX_SIZE = 100 << 20
"""Bytes of a file, unless the project was given more."""
_RATIO, _RATIO_FROM = 50, 64 << 20
_MAX_SUMMARY = 512
_MAX_FILENAME = 255 - len(".metadata")

_LINUX = "x86_64 i686 aarch64 armv7l ppc64le s390x riscv64"
_PLATFORMS = [
    r"any|win32|win_arm64|win_amd64|win_ia64|linux_armv6l|linux_armv7l",
    r"manylinux(1|2010)_(x86_64|i686)|manylinux2014_(x86_64|i686|aarch64|armv7l|ppc64|ppc64le|s390x)",
    rf"manylinux_\d+_\d+_({'|'.join(_LINUX.split())}|ppc64)",
    rf"musllinux_\d+_\d+_({'|'.join(_LINUX.split())})",
    r"macosx_(10_\d+|(11|12|13|14|15|26)_0)_(ppc|ppc64|i386|x86_64|arm64|intel|fat|fat3|fat64|universal|universal2)",
    r"ios_\d+_\d+_(arm64|x86_64)_(iphoneos|iphonesimulator)",
    r"android_\d+_(armeabi_v7a|arm64_v8a|x86|x86_64)",
    r"pyemscripten_\d+_\d+_wasm32",
]
_PLATFORM = re.compile("|".join(_PLATFORMS))

_STRICT = {"zip-gap", "zip-prefix", "zip-trailing-data", "zip-header-mismatch", "zip-extra", "zip-flags"}
"""What PyPI refuses too, and has an error of its own here."""


def check_pypi(wheel: Wheel) -> list[Finding]:
    """Everything that PyPI refuses and the other rules let pass.

    Args:
        wheel: an open wheel.
    """
    found = Findings()
    _check_archive(wheel, found)
    if wheel.name is not None:
        _check_filename(wheel, wheel.name, found)
    if wheel.metadata is not None:
        check_pypi_metadata(wheel.metadata, wheel.version, wheel.member("METADATA"), found)
    return found.all()


def check_size(size: int, found: Findings) -> None:
    """The size of a file in bytes."""
    if size > MAX_SIZE:
        found.add("pypi-size", f"the file has {size} bytes, PyPI takes {MAX_SIZE} unless the project was given more")


def _check_archive(wheel: Wheel, found: Findings) -> None:
    check_size(wheel.archive.size, found)
    total = sum(member.size for member in wheel.archive.members)
    if total > _RATIO_FROM and total > _RATIO * wheel.archive.size:
        found.add("pypi-ratio", f"it inflates to {total} bytes, {total / wheel.archive.size:.0f} times its own size")
    for finding in wheel.findings:
        # Warnings for everybody else: PyPI takes no data descriptor and no comment of a member.
        # One of the archive itself is taken.
        if finding.code == "zip-not-clean" and finding.member and finding.message.endswith(("descriptor", "comment")):
            found.add("pypi-archive", finding.message, finding.member)


def _check_filename(wheel: Wheel, name: WheelName, found: Findings) -> None:
    if name.variant is not None:
        found.add("pypi-filename", f"it has the variant label {name.variant!r}, which PyPI does not know yet")
    if name.project != name.name.replace("-", "_"):
        found.add("pypi-filename", f"{wheel.path.name!r} should start with {name.stem!r}")
    if len(wheel.path.name.encode()) > _MAX_FILENAME:
        found.add("pypi-filename", f"it has {len(wheel.path.name)} characters, at most {_MAX_FILENAME} are taken")
    # PyPI takes the file name apart and looks for just that folder.
    literal = "-".join(wheel.path.name.split("-")[:2]) + ".dist-info"
    if wheel.dist_info is not None and wheel.dist_info != literal:
        found.add("pypi-filename", f"PyPI looks for {literal}, the wheel has {wheel.dist_info}", wheel.dist_info)
    for platform in name.platform:
        if not _PLATFORM.fullmatch(platform):
            found.add("pypi-platform", f"the platform tag {platform!r} is none that PyPI takes")


def check_pypi_metadata(metadata: Headers, version: Version | None, where: str, found: Findings) -> None:
    """METADATA or PKG-INFO as PyPI reads it.

    Args:
        metadata: the headers.
        version: what its Version says.
        where: the member that they come from.
        found: takes the findings.
    """
    if version is not None and version.local is not None:
        found.add("pypi-local-version", f"the version {version} has the local label {version.local!r}", where)
    text = (metadata.get("Metadata-Version") or "").strip()
    number = metadata_number(text)
    if number is not None and number > NEWEST:
        newest = f"{NEWEST[0]}.{NEWEST[1]}"
        found.add("pypi-metadata", f"Metadata-Version {text} is newer than {newest}, the newest that PyPI takes", where)
    elif number == WITHDRAWN:
        found.add("pypi-metadata", f"Metadata-Version {text} was withdrawn", where)
    for fault in whole_faults(metadata.to_bytes()):
        found.add("pypi-metadata", fault, where)
    _check_values(metadata, where, found)
    try:
        name = normalize_name((metadata.get("Name") or "").strip())
    except WheelNameError:
        return
    if name in {normal_form(module) for module in sys.stdlib_module_names if not module.startswith("_")}:
        found.add("pypi-name", f"{name!r} is a module of the standard library: PyPI lets no new project have it", where)


def _check_values(metadata: Headers, where: str, found: Findings) -> None:
    from packaging.requirements import Requirement

    summary = metadata.get("Summary") or ""
    if len(summary) > _MAX_SUMMARY:
        found.add("pypi-metadata", f"Summary has {len(summary)} characters, at most {_MAX_SUMMARY} are taken", where)
    for field in ("Requires-Dist", "Provides-Dist", "Obsoletes-Dist"):
        for value in metadata.get_all(field):
            one_line = " ".join(value.split())
            if not value_faults("Requires-Dist", one_line) and Requirement(one_line).url is not None:
                message = f"{field}: {shorten(one_line)!r} is a direct reference, which PyPI takes from nobody"
                found.add("pypi-metadata", message, where)
    for value in metadata.get_all("Classifier"):
        if value.strip().lower().startswith("private ::"):
            found.add("pypi-metadata", f"the classifier {shorten(value.strip())!r} is there to be refused", where)
    if metadata.get("License") and metadata.get("License-Expression"):
        found.add("pypi-metadata", "License and License-Expression stand together", where)
