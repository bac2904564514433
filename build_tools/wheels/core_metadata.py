"""The fields of METADATA: since which Metadata-Version each is there, and which may repeat.

Source: Core metadata specification, <https://packaging.python.org/specifications/core-metadata/>.
Values are checked by ``packaging.metadata``.
"""

from __future__ import annotations

from build_tools.errors import EditError

NEWEST = (2, 5)
"""The newest Metadata-Version that this tool knows."""

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
    _, since = _FIELDS.get(field.lower(), (field, (1, 0)))
    have = tuple(int(part) for part in metadata_version.split("."))
    if have < since:
        raise EditError(
            f"{field} needs Metadata-Version {since[0]}.{since[1]}, this wheel has {metadata_version}",
            hint="build the wheel with a newer backend: a rewrite never changes Metadata-Version",
        )


def check_values(field: str, values: list[str]) -> None:
    """Check the values of ``field`` with ``packaging.metadata``.

    Raises:
        EditError: with every value that the specification does not allow.
    """
    from packaging.metadata import InvalidMetadata, Metadata, parse_email

    _, since = _FIELDS.get(field.lower(), (field, None))
    if since is None:
        return
    # Keywords and the like need no version; License-Expression and its kin need theirs.
    version = ".".join(map(str, max(since, (2, 1))))
    faults = []
    for value in values:
        text = f"Metadata-Version: {version}\nName: x\nVersion: 0\n{field}: {value}\n"
        raw, unparsed = parse_email(text.encode())
        if unparsed:
            faults.append(f"{field}: {value!r} is not what the core metadata specification allows")
            continue
        try:
            Metadata.from_raw(raw)
        except ExceptionGroup as group:
            for error in group.exceptions:
                # An older packaging does not know the newest Metadata-Version: nothing to say then.
                if isinstance(error, InvalidMetadata) and error.field != "metadata-version":
                    faults.append(f"{field}: {value!r}: {str(error).replace('{field}', repr(field))}")
        except ValueError:  # packaging stumbles over braces when it makes its message
            faults.append(f"{field}: {value!r} is not what the core metadata specification allows")
    if faults:
        raise EditError(faults)
