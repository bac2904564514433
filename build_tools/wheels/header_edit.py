"""What an edit makes of the headers of METADATA and WHEEL."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import zip_longest
from typing import NamedTuple

from packaging.version import Version

from build_tools.errors import EditError, Faults
from build_tools.wheels.core_metadata import check_field, check_needed_version, is_repeatable
from build_tools.wheels.edit import WheelEdit, split_header
from build_tools.wheels.headers import Headers
from build_tools.wheels.name import WheelName
from build_tools.wheels.requires import follow


class Change(NamedTuple):
    """One thing that a rewrite changes.

    Attributes:
        where: ``filename``, ``folder``, ``METADATA``, ``WHEEL``, ``files``, ``RECORD`` or ``archive``.
        field: the header, the member, or the rule that the archive broke.
        old, new: what stood there before and after; ``None`` for nothing.
    """

    where: str
    field: str
    old: str | None
    new: str | None

    @property
    def facts(self) -> dict[str, str | None]:
        """The change for programs: ``where``, ``field``, ``old`` and ``new``."""
        return {"where": self.where, "field": self.field, "old": self.old, "new": self.new}

    def __str__(self) -> str:
        head = f"{self.where} {self.field}"
        if self.old is None:
            return f"{head}: + {self.new}"
        if self.new is None:
            return f"{head}: - {self.old}"
        return f"{head}: {self.old} -> {self.new}"


def edit_metadata(headers: Headers, old: WheelName, new: WheelName, edit: WheelEdit) -> Headers:
    """METADATA after ``edit``: name, version, what refers to them, then the headers asked for.

    Raises:
        EditError: a header needs a newer Metadata-Version, or stands already and may not repeat.
    """
    if edit.name is not None:
        headers = headers.with_values("Name", [edit.name])
    headers = headers.with_values("Version", [str(new.version)])
    headers = _follow_itself(headers, old, edit.name, new.version)
    for field in edit.remove:
        check_field(field, present=bool(headers.get_all(field)) or field.lower().startswith("x-"))
        headers = headers.with_values(field, [])
    groups: dict[str, list[str]] = {}
    for field, value in map(split_header, edit.set):
        groups.setdefault(field.lower(), [field]).append(value)
    added = [split_header(text) for text in edit.add]
    faults = Faults()
    faults.attempt(lambda: _check_admitted(headers, [(names[0], None) for names in groups.values()]))
    replaced = headers
    for field, *values in groups.values():
        replaced = replaced.with_values(field, values)
    faults.attempt(lambda: _check_admitted(replaced, added))
    faults.raise_any(EditError)
    headers = replaced
    for field, value in added:
        headers = headers.with_added(field, value)
    return headers


def _follow_itself(headers: Headers, old: WheelName, name: str | None, version: Version) -> Headers:
    values = headers.get_all("Requires-Dist")
    return headers.with_values(
        "Requires-Dist", [follow(value, old.name, name, old.version, version) for value in values]
    )


def _check_admitted(headers: Headers, wanted: Sequence[tuple[str, str | None]]) -> None:
    """Refuse a field that this Metadata-Version does not know, or a second line of one that may not repeat."""
    faults: dict[str, None] = {}
    hints: dict[str, None] = {}
    for field, added in wanted:
        present = headers.get_all(field)
        try:
            if not present:
                check_needed_version(field, (headers.get("Metadata-Version") or "").strip())
            elif added is not None and added not in present and not is_repeatable(field):
                raise EditError(
                    f"{field} stands already ({present[0]!r}) and may stand once only",
                    hint=f"use --set '{field}: ...' to replace it",
                )
        except EditError as error:
            faults |= dict.fromkeys(error.faults)
            hints |= {error.hint: None} if error.hint else {}
    if faults:
        raise EditError(list(faults), hint="; ".join(hints) or None)


def edit_wheel(headers: Headers, new: WheelName) -> Headers:
    """WHEEL with the tags and the build tag of ``new``; lines that say just that stay as they are."""
    if sorted(value.strip() for value in headers.get_all("Tag")) != sorted(new.tags):
        headers = headers.with_values("Tag", new.tags)
    builds = [new.build] if new.build else []
    if [value.strip() for value in headers.get_all("Build")] != builds:
        headers = headers.with_values("Build", builds)
    return headers


def header_changes(where: str, before: Headers, after: Headers) -> list[Change]:
    """What differs between two header blocks, field by field."""
    changes = []
    names = {field.name.lower(): field.name for field in (*after.fields, *before.fields)}
    was, will = before.by_name(), after.by_name()
    for lower in dict.fromkeys([*was, *will]):
        old, new = was.get(lower, []), will.get(lower, [])
        if old == new:
            continue
        if len(old) == len(new) == 1:
            changes.append(Change(where, names[lower], old[0], new[0]))
            continue
        from difflib import SequenceMatcher  # costly, and few edits change a field of several lines

        for kind, a, b, c, d in SequenceMatcher(a=old, b=new, autojunk=False).get_opcodes():
            if kind != "equal":
                changes += [Change(where, names[lower], *pair) for pair in zip_longest(old[a:b], new[c:d])]
    return changes
