"""A metapackage: a wheel without files whose requirements are the parts of a release, exactly.

``pip install "demo[cu12]"`` takes ``demo`` 1.0, and with it ``demo-cu12==1.0``: the extra chooses the part, the
pin holds both together. METADATA is that of the wheel which the release starts from, with other requirements.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from packaging.version import Version

from build_tools import __version__
from build_tools.pins import Pin
from build_tools.variant import Variant
from build_tools.wheels.change import Change, header_changes
from build_tools.wheels.core_metadata import check_needed_version
from build_tools.wheels.header_edit import edit_metadata
from build_tools.wheels.headers import Headers
from build_tools.wheels.name import NormalizedName, WheelName, normal_form, normalize_name
from build_tools.wheels.unpacked import pack
from build_tools.wheels.wheel import SoundWheel, Wheel


class Metapackage(NamedTuple):
    """A metapackage that is ready to be written.

    Attributes:
        name: the name of its wheel, tagged ``py3-none-any``.
        metadata: its METADATA.
        licenses: the licence files that METADATA names, by their path in ``.dist-info``.
        changes: what differs from the wheel that it is made from, but for the files, which all go.
    """

    name: WheelName
    metadata: Headers
    licenses: Mapping[str, bytes]
    changes: tuple[Change, ...]

    def write(self, folder: Path) -> Path:
        """Write the wheel into ``folder``; the same parts always give the same bytes.

        Raises:
            OutputExistsError: it is there with other bytes.
            FileError: the operating system refuses.
        """
        wheel = f"Wheel-Version: 1.0\nGenerator: te-wheel {__version__}\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        files = {"METADATA": self.metadata.to_bytes(), "WHEEL": wheel.encode(), **self.licenses}
        with tempfile.TemporaryDirectory(prefix="te-wheel-metapackage-") as tree:
            for file, data in files.items():
                target = Path(tree, self.name.dist_info, file)
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(data)
            return pack(tree, folder).path


def is_named(variant: Variant, source: NormalizedName) -> bool:
    """Whether a metapackage bears the name of the wheel that it is made from, and so takes its place."""
    return variant.is_metapackage and (variant.edit.name is None or normalize_name(variant.edit.name) == source)


def read_metapackage(source: Path, variant: Variant, pins: Mapping[str, Pin]) -> Metapackage:
    """Decide the metapackage of a variant; nothing is written.

    Args:
        source: the wheel that the release starts from.
        variant: a variant that is a metapackage.
        pins: those of the variants that it names, by their ids.

    Raises:
        WheelError: ``source`` is none that can be rewritten.
        EditError: its edit does not fit, or the Metadata-Version of ``source`` knows no extras.
        FileError: ``source`` cannot be read.
    """
    with Wheel.open(source) as opened:
        wheel = opened.require_sound()
        project = variant.edit.name if variant.edit.name is not None else wheel.project
        name = WheelName(project, Version(wheel.name.version.public))
        bare = wheel.metadata.with_values("Requires-Dist", []).with_values("Provides-Extra", [])
        if variant.extras:
            check_needed_version("Provides-Extra", (bare.get("Metadata-Version") or "").strip())
        metadata = edit_metadata(bare, wheel.name, name, variant.edit)
        for field, value in _requirements(variant, pins):
            metadata = metadata.with_added(field, value)
        changes = [Change("filename", "name", wheel.path.name, name.filename)]
        changes += header_changes("METADATA", wheel.metadata, metadata)
        return Metapackage(name, metadata, dict(_licenses(wheel)), tuple(changes))


def _requirements(variant: Variant, pins: Mapping[str, Pin]) -> Iterator[tuple[str, str]]:
    for id_ in variant.requires:
        yield "Requires-Dist", str(pins[id_])
    for id_ in variant.extras:
        extra = normal_form(id_)
        yield "Provides-Extra", extra
        yield "Requires-Dist", f'{pins[id_]}; extra == "{extra}"'


def _licenses(wheel: SoundWheel) -> Iterator[tuple[str, bytes]]:
    for value in dict.fromkeys(wheel.metadata.get_all("License-File")):
        for path in (f"licenses/{value}", value):  # since Metadata-Version 2.4, and before
            member = wheel.archive.by_name.get(wheel.member(path))
            if member is not None and not member.is_dir:
                yield path, wheel.archive.read(member, wheel.archive.limits.metadata)
                break
