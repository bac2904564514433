"""Every finding of a wheel: the rules that reading it applies, and its digests if asked for."""

from __future__ import annotations

import hashlib
import os

from build_tools.errors import EditError, WheelError
from build_tools.wheels import zip_format as fmt
from build_tools.wheels.core_metadata import check_values
from build_tools.wheels.finding import Finding
from build_tools.wheels.record import DIGEST_SIZES, digest_text
from build_tools.wheels.wheel import Wheel

_CHECKED = {"requires-dist", "requires-python", "provides-extra", "description-content-type"}


def check_wheel(path: str | os.PathLike[str], *, hashes: bool = False) -> list[Finding]:
    """Check that a wheel agrees with itself and with the specifications.

    Args:
        path: the wheel.
        hashes: whether to inflate every member and compare its size, CRC and digest too.

    Returns:
        Every breach of every rule; empty for a wheel without fault. A file that is no wheel has
        findings, it is no error.

    Raises:
        FileError: the file is not there, is no regular file or cannot be read.
    """
    with Wheel.open(path) as wheel:
        return all_findings(wheel, hashes=hashes)


def all_findings(wheel: Wheel, *, hashes: bool = False) -> list[Finding]:
    """As :func:`check_wheel`, of a wheel that is open."""
    findings = [*wheel.findings, *_check_values(wheel)]
    if hashes:
        findings += _check_hashes(wheel)
    return findings


def _check_values(wheel: Wheel) -> list[Finding]:
    """What packaging says of the values that installers and indexes read."""
    findings: list[Finding] = []
    if wheel.metadata is not None:
        for field, values in wheel.metadata.by_name().items():
            if field in _CHECKED:
                try:
                    check_values(field, [" ".join(value.split()) for value in values])
                except EditError as error:
                    where = wheel.member("METADATA")
                    findings += [Finding("metadata-value", fault, where) for fault in error.faults]
    return findings


def _check_hashes(wheel: Wheel) -> list[Finding]:
    findings: list[Finding] = []
    rows = {row.path: row for row in wheel.record.rows} if wheel.record else {}
    unreadable = {
        finding.member
        for finding in wheel.findings
        if finding.code in ("zip-encrypted", "zip-method", "zip-header-mismatch", "zip-truncated", "zip-data")
    }
    for member in wheel.archive.members:
        if member.name in unreadable or member.entry.method not in (fmt.STORED, fmt.DEFLATED):
            continue
        row = rows.get(member.name)
        algorithm = row.digest.partition("=")[0] if row else ""
        digest = hashlib.new(algorithm) if algorithm in DIGEST_SIZES else None
        try:
            for data in wheel.archive.chunks(member):
                if digest:
                    digest.update(data)
        except WheelError as error:
            findings.append(Finding("zip-data", error.reason, member.name))
            continue
        if row and digest:
            found = digest_text(algorithm, digest.digest())
            if found != row.digest:
                message = f"RECORD says {row.digest}, the file has {found}"
                findings.append(Finding("record-digest", message, member.name))
    return findings
