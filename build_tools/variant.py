"""One wheel of a release plan: what is changed about the built wheel, or which other variants it ties together."""

from __future__ import annotations

import os
from dataclasses import dataclass

from packaging.version import Version

from build_tools.errors import ReleaseError
from build_tools.version import parse_local, parse_version, with_local
from build_tools.wheels.edit import WheelEdit
from build_tools.wheels.name import normalize_name, parse_tag_set


@dataclass(frozen=True, slots=True)
class Variant:
    """One wheel that the release rewrites from the built one, or a metapackage that ties others together.

    Attributes:
        id: what the plan calls it.
        edit: what is changed.
        extras: of a metapackage, the variants that an extra of the same name takes.
        requires: of a metapackage, the variants that it always takes.
    """

    id: str
    edit: WheelEdit
    extras: tuple[str, ...] = ()
    requires: tuple[str, ...] = ()

    @property
    def is_metapackage(self) -> bool:
        """Whether it holds requirements on other variants in place of files."""
        return bool(self.extras or self.requires)

    @property
    def facts(self) -> dict[str, str | list[str]]:
        """What the plan asks of it, in the words of the plan; files without the folder that they lie in."""
        facts: dict[str, str | list[str]] = {}
        for field, value in (*self.edit._asdict().items(), ("extras", self.extras), ("requires", self.requires)):
            key = field.replace("_", "-")
            if field in ("add_file", "sbom_add"):
                value = [os.path.basename(text) if field == "sbom_add" else _without_folder(text) for text in value]
            if value not in (None, (), [], False):
                facts[key] = value if isinstance(value, str) else list(value)
        return facts

    @property
    def parts(self) -> tuple[str, ...]:
        """The variants that a metapackage takes, always or by an extra."""
        return (*self.requires, *self.extras)

    def project(self, project_name: str | None) -> str | None:
        """The project that its wheel belongs to, in normal form; that of the built wheel is ``project_name``."""
        name = self.edit.name if self.edit.name is not None else project_name
        try:
            return normalize_name(name) if name is not None else None
        except ReleaseError:
            return name  # the project's own name is its backend's to refuse

    def output(self, project_name: str | None) -> tuple[object, ...]:
        """What tells the file name that it makes from others, as far as the edit alone says."""
        edit = self.edit
        local = parse_local(edit.local) if edit.local else edit.local
        tags = ((edit.python_tag, "python"), (edit.abi_tag, "abi"), (edit.platform_tag, "platform"))
        return (
            self.project(project_name),
            None if edit.version is None else str(parse_version(edit.version)),
            local,
            edit.build,
            *(None if text is None else parse_tag_set(text, kind) for text, kind in tags),
        )

    def keeps_name(self, name: str | None, version: Version | None) -> bool:
        """Whether its wheel certainly bears the file name of the built one, as far as that is known."""
        edit = self.edit
        if self.project(name) != Variant("", WheelEdit()).project(name) or edit.build:
            return False
        if not edit.python_tag is edit.abi_tag is edit.platform_tag is None:
            return False
        if version is None:
            return edit.version is None and edit.local is None
        new = parse_version(edit.version) if edit.version is not None else version
        return str(new if edit.local is None else with_local(new, edit.local)) == str(version)


def _without_folder(text: str) -> str:
    source, _, target = text.rpartition("=")
    return f"{os.path.basename(source)}={target}"
