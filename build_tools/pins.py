"""The pins of a release: the exact requirements that tie its parts together."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from packaging.version import Version

from build_tools.errors import FileError, ReleaseError
from build_tools.wheels.distribution import find_distributions, read_name
from build_tools.wheels.name import NormalizedName


class Pin(NamedTuple):
    """A requirement that one version alone meets.

    >>> from packaging.version import Version
    >>> str(Pin(NormalizedName("te-pkg-cu12"), Version("2.21.0-dev0")))
    'te-pkg-cu12==2.21.0.dev0'
    """

    project: NormalizedName
    version: Version

    def __str__(self) -> str:
        return f"{self.project}=={self.version}"


@dataclass(frozen=True, slots=True)
class Pins:
    """The pins of the parts that lie in a folder.

    Attributes:
        pins: one for each version of each project, sorted.
        broken: what is no part, since it cannot be read, each with the reason.
    """

    pins: tuple[Pin, ...]
    broken: tuple[tuple[Path, ReleaseError], ...]

    @property
    def warnings(self) -> tuple[str, ...]:
        """The projects with several versions: no environment holds more than one of them."""
        versions: dict[str, list[str]] = {}
        for pin in self.pins:
            versions.setdefault(pin.project, []).append(str(pin.version))
        return tuple(
            f"{project} has {len(found)} versions ({', '.join(found)}), and no environment holds two"
            for project, found in versions.items()
            if len(found) > 1
        )

    @property
    def facts(self) -> dict[str, Any]:
        """The pins for programs."""
        return {
            "pins": [{"name": pin.project, "version": str(pin.version), "requirement": str(pin)} for pin in self.pins],
            "broken": [{"path": str(path), "error": str(error)} for path, error in self.broken],
        }


def read_pins(folder: str | os.PathLike[str]) -> Pins:
    """The pins of the wheels and sdists below a folder; only their headers are read.

    Raises:
        FileError: the folder is not there, or cannot be read.

    Example: where ``dist`` holds ``te_pkg_cu12-2.21.0.dev0-py3-none-any.whl``,
    ``[str(pin) for pin in read_pins("dist").pins]`` is ``["te-pkg-cu12==2.21.0.dev0"]``.
    """
    root = Path(folder)
    if not root.is_dir():
        raise FileError(
            f"{str(root)!r} is {'no folder' if root.exists() else 'not there'}, expected a folder of wheels"
        )
    pins: set[Pin] = set()
    broken: list[tuple[Path, ReleaseError]] = []
    for path in find_distributions(root):
        try:
            pins.add(Pin(*read_name(root / path)))
        except ReleaseError as error:
            broken.append((root / path, error))
    return Pins(tuple(sorted(pins)), tuple(broken))
