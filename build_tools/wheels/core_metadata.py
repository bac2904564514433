"""The fields of METADATA: since which Metadata-Version each is there, and which may repeat.

Source: Core metadata specification, <https://packaging.python.org/specifications/core-metadata/>.
Values are checked by ``packaging.metadata``.
"""

from __future__ import annotations

import re

from build_tools.errors import EditError
from build_tools.wheels.limits import MAX_VALUE
from build_tools.wheels.name import shorten

NEWEST = (2, 5)
"""The newest Metadata-Version that this tool knows."""

WITHDRAWN = (2, 0)
"""A draft that wheels bore for years, with the fields that 2.1 has."""

_SINCE: dict[tuple[int, int], str] = {
    (1, 0): "Metadata-Version Name Version Platform Summary Description Keywords Home-page Author Author-email License",
    (1, 1): "Supported-Platform Download-URL Classifier Requires Provides Obsoletes",
    (1, 2): "Maintainer Maintainer-email Requires-Dist Provides-Dist Obsoletes-Dist Requires-Python "
    "Requires-External Project-URL",
    (2, 1): "Description-Content-Type Provides-Extra",
    (2, 2): "Dynamic",
    (2, 4): "License-Expression License-File",
    (2, 5): "Import-Name Import-Namespace",
}
_FIELDS = {field.lower(): (field, since) for since, fields in _SINCE.items() for field in fields.split()}
_REPEATABLE = frozenset(
    """platform supported-platform classifier requires provides obsoletes requires-dist provides-dist obsoletes-dist
    requires-external project-url provides-extra dynamic license-file import-name import-namespace""".split()  # noqa: SIM905
)
_SPECIFIERS = {"requires-dist", "requires-python"}
_HUGE = r"[0-9]{20,}"
"""A number in a version that uv cannot hold; pip cannot read one of a few thousand digits."""
_OWN_OPTION = {
    "name": "use --name",
    "version": "use --version or --local",
    "metadata-version": "it says how the file is read, so it stays",
    "description": "the description stands below the headers",
}


def is_repeatable(field: str) -> bool:
    """Whether ``field`` may stand more than once; an unknown field may."""
    return field.lower() in _REPEATABLE or field.lower() not in _FIELDS


def check_field(field: str, present: bool = False) -> None:
    """Refuse a field that an edit may not touch.

    Args:
        field: the name of a header.
        present: whether the wheel has it already, which admits an unknown one.

    Raises:
        EditError: the field has an option of its own, or is no core metadata field.
    """
    lower = field.lower()
    if lower in _OWN_OPTION:
        raise EditError(f"{field} cannot be edited as a header: {_OWN_OPTION[lower]}")
    if lower not in _FIELDS and not present:
        import difflib

        near = difflib.get_close_matches(lower, _FIELDS, 1)
        raise EditError(
            f"{field!r} is no core metadata field", hint=f"did you mean {_FIELDS[near[0]][0]!r}?" if near else None
        )


def check_needed_version(field: str, metadata_version: str) -> None:
    """Refuse to add a field that the file's Metadata-Version does not know.

    Raises:
        EditError: with the version that the field needs.
    """
    needed = since(field)
    have = tuple(int(part) for part in metadata_version.split("."))
    if have < needed:
        raise EditError(
            f"{field} needs Metadata-Version {needed[0]}.{needed[1]}, this wheel has {metadata_version}",
            hint="build the wheel with a newer backend: a rewrite never changes Metadata-Version",
        )


def check_values(field: str, values: list[str]) -> None:
    """Check the values of ``field`` with ``packaging.metadata``.

    Raises:
        EditError: with every value that the specification does not allow.
    """
    faults = [fault for value in values for fault in value_faults(field, value)]
    if faults:
        raise EditError(faults)


def since(field: str) -> tuple[int, int]:
    """The Metadata-Version that first knew ``field``; of one that none knows, the first."""
    return _FIELDS.get(field.lower(), (field, (1, 0)))[1]


def value_faults(field: str, value: str) -> list[str]:
    """What ``packaging.metadata`` says against one value of ``field``; nothing of a field that it does not know."""
    from packaging.metadata import InvalidMetadata, Metadata, parse_email

    _, known = _FIELDS.get(field.lower(), (field, None))
    if known is None:
        return []
    shown = shorten(value)
    if len(value) > MAX_VALUE:
        return [f"{field}: {shown!r} has {len(value)} characters, at most {MAX_VALUE} are parsed"]
    # Keywords and the like need no version; License-Expression and its kin need theirs.
    version = ".".join(map(str, max(known, (2, 1))))
    text = f"Metadata-Version: {version}\nName: x\nVersion: 0\n{field}: {value}\n"
    try:
        raw, unparsed = parse_email(text.encode())
        if unparsed:
            return [f"{field}: {shown!r} is not what the core metadata specification allows"]
        Metadata.from_raw(raw)
    except ExceptionGroup as group:
        # An older packaging does not know the newest Metadata-Version: nothing to say then.
        return [
            f"{field}: {shown!r}: {shorten(str(error).replace('{field}', repr(field)), 400)}"
            for error in group.exceptions
            if isinstance(error, InvalidMetadata) and error.field != "metadata-version"
        ]
    except (ValueError, RecursionError) as error:
        # A number of thousands of digits, a marker of thousands of parentheses: no installer reads it either.
        return [f"{field}: {shown!r} cannot be read ({type(error).__name__})"]
    if field.lower() in _SPECIFIERS and "@" not in value and has_huge_number(value):
        return [f"{field}: {shown!r} holds a number of over 19 digits, which uv refuses"]
    return []


def has_huge_number(text: str) -> bool:
    """Whether a version holds a number that no tool but Python itself can hold."""
    return re.search(_HUGE, text) is not None


def whole_faults(data: bytes) -> list[str]:
    """What ``packaging.metadata``, which PyPI runs, says of a whole METADATA, values of single fields left out.

    Args:
        data: the bytes of METADATA or PKG-INFO.
    """
    from packaging.metadata import InvalidMetadata, Metadata, parse_email

    faults = []
    try:
        raw, unparsed = parse_email(data)
        faults += [f"{field.title()} is unknown, stands twice, or cannot be read" for field in sorted(unparsed)]
        Metadata.from_raw(raw)
    except ExceptionGroup as group:
        # The fields with a form are looked at one by one elsewhere.
        faults += [
            shorten(str(error).replace("{field}", repr(error.field)), 400)
            for error in group.exceptions
            if isinstance(error, InvalidMetadata)
            and error.field not in ("metadata-version", "name", "version")
            # setuptools wrote it before 2.4 had it, and twine leaves it out.
            and not (error.field == "license-file" and "introduced" in str(error))
        ]
    except (ValueError, RecursionError) as error:
        faults.append(f"it cannot be read ({type(error).__name__})")
    return faults
