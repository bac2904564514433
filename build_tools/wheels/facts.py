"""What a wheel says of itself: the facts that ``te-wheel show`` prints."""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass
from pathlib import Path

from build_tools.errors import WheelError, WheelNameError
from build_tools.input_file import open_input
from build_tools.wheels.finding import Finding
from build_tools.wheels.name import WheelName, compress_tags
from build_tools.wheels.wheel import Wheel


@dataclass(frozen=True, slots=True, kw_only=True)
class WheelFacts:
    """The facts of one wheel.

    Attributes:
        name, version: of METADATA, as they are spelled there.
        build: the build tag in WHEEL, ``""`` for none.
        tags: the tags in WHEEL, expanded and sorted.
        filename: the file name in normal form that METADATA and WHEEL ask for.
        requires_python, requires_dist: of METADATA.
        files: how many files there are, folders not counted.
        size: bytes of the wheel.
        sha256: of the wheel, in hex.
        findings: where it disagrees with itself or breaks a rule.
    """

    path: Path
    name: str
    version: str
    build: str
    tags: tuple[str, ...]
    filename: str
    requires_python: str | None
    requires_dist: tuple[str, ...]
    files: int
    size: int
    sha256: str
    findings: tuple[Finding, ...]

    @property
    def agrees(self) -> bool:
        """Whether file name, folders, METADATA, WHEEL and RECORD say the same."""
        return not any(finding.blocks for finding in self.findings)


def read_facts(path: str | os.PathLike[str]) -> WheelFacts:
    """Read the facts of a wheel.

    Raises:
        WheelError: the file is no wheel, or METADATA or WHEEL cannot be read.
        FileError: the file cannot be read.
    """
    with Wheel.open(path) as wheel:
        if wheel.metadata is None or wheel.wheel is None or wheel.version is None:
            wheel.refuse(wheel.findings)
        assert wheel.metadata
        assert wheel.wheel
        assert wheel.version
        build = (wheel.wheel.get("Build") or "").strip()
        try:
            tags = compress_tags(tag.strip() for tag in wheel.wheel.get_all("Tag") if tag.strip())
            variant = wheel.name.variant if wheel.name else None
            name = WheelName(wheel.project, wheel.version, build, *tags, variant=variant)
        except WheelNameError as error:
            raise WheelError([f"{wheel.path.name}: {fault}" for fault in error.faults]) from None
        with open_input(path, os.dup(wheel.archive.fd)) as file:
            file.seek(0)
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        return WheelFacts(
            path=Path(path),
            name=wheel.project,
            version=(wheel.metadata.get("Version") or "").strip(),
            build=build,
            tags=name.tags,
            filename=name.filename,
            requires_python=wheel.metadata.get("Requires-Python"),
            requires_dist=tuple(" ".join(value.split()) for value in wheel.metadata.get_all("Requires-Dist")),
            files=sum(not member.is_dir for member in wheel.archive.members),
            size=wheel.archive.size,
            sha256=digest,
            findings=tuple(wheel.findings),
        )
