"""Every finding of a wheel: the rules that reading it applies, and those that only a check asks for."""

from __future__ import annotations

import os

from build_tools.wheels.check_metadata import check_license_files, check_values
from build_tools.wheels.check_sbom import check_sboms
from build_tools.wheels.check_tree import check_tree
from build_tools.wheels.finding import Finding
from build_tools.wheels.limits import LIMITS, Limits
from build_tools.wheels.wheel import Wheel


def check_wheel(
    path: str | os.PathLike[str], *, hashes: bool = False, pypi: bool = False, limits: Limits = LIMITS
) -> list[Finding]:
    """Check that a wheel agrees with itself and with the specifications.

    Args:
        path: the wheel.
        hashes: whether to inflate every member and compare its size, CRC and digest too.
        pypi: whether to find what PyPI refuses too.
        limits: how much of the file is read.

    Returns:
        Every breach of every rule; empty for a wheel without fault. A file that is no wheel has
        findings, it is no error.

    Raises:
        FileError: the file is not there, is no regular file or cannot be read.
    """
    with Wheel.open(path, limits=limits) as wheel:
        return all_findings(wheel, hashes=hashes, pypi=pypi)


def all_findings(wheel: Wheel, *, hashes: bool = False, pypi: bool = False) -> list[Finding]:
    """As :func:`check_wheel`, of a wheel that is open."""
    findings = list(wheel.findings)
    if wheel.metadata is not None:
        where = wheel.member("METADATA")
        findings += check_values(wheel.metadata, where)
        folder = wheel.member("licenses")
        findings += check_license_files(wheel.metadata, folder, wheel.archive.by_name, where)
    findings += check_tree(wheel)
    findings += check_sboms(wheel)
    if hashes:
        from build_tools.wheels.check_hashes import check_hashes

        findings += check_hashes(wheel)
    if pypi:
        from build_tools.wheels.check_pypi import check_pypi

        findings += check_pypi(wheel)
    return findings
