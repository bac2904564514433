"""The values of METADATA and PKG-INFO: what installers and indexes read and a rewrite carries as it is.

Source: Core metadata specification, <https://packaging.python.org/specifications/core-metadata/>.
"""

from __future__ import annotations

from collections.abc import Container

from build_tools.wheels.core_metadata import NEWEST, WITHDRAWN, has_huge_number, since, value_faults
from build_tools.wheels.finding import Finding, Findings
from build_tools.wheels.header_checks import metadata_number
from build_tools.wheels.headers import Headers, line_break
from build_tools.wheels.name import normal_form, shorten

_CHECKED = {
    "requires-dist", "requires-python", "provides-extra", "description-content-type", "dynamic",
    "license-expression", "license-file", "import-name", "import-namespace",
}  # fmt: skip
_TOLERATED = {"license-file", "license-expression"}
"""setuptools and hatchling wrote these before any Metadata-Version had them, and everybody reads them."""
_MAX_LABEL = 32
_LICENSES = (2, 4)


def check_values(metadata: Headers, where: str) -> list[Finding]:
    """Every value of a field that has a form, and fields that their Metadata-Version does not know.

    Args:
        metadata: the headers.
        where: the member that they come from.
    """
    found = Findings()
    version = metadata_number((metadata.get("Metadata-Version") or "").strip()) or NEWEST
    for field, values in metadata.by_name().items():
        shown = field.title()
        if since(field) > (version if version != WITHDRAWN else (2, 1)) and field not in _TOLERATED:
            needs = ".".join(map(str, since(field)))
            found.add("metadata-field-version", f"{shown} needs Metadata-Version {needs}", where)
        for value in values:
            char = line_break(value)
            if char is not None:
                found.add("metadata-control", f"{shown} holds {char!r}, at which some readers end a line", where)
        if field == "version" and has_huge_number(values[0].partition("+")[0]):
            found.add("metadata-value", f"Version {shorten(values[0])!r} has a number of over 19 digits", where)
        if field == "project-url":
            _check_urls(values, where, found)
        if field not in _CHECKED or (field in _TOLERATED and version < _LICENSES):
            continue
        for value in values:
            for fault in value_faults(field, " ".join(value.split())):
                found.add("metadata-value", fault, where)
    extras: dict[str, str] = {}
    for extra in metadata.get_all("Provides-Extra"):
        first = extras.setdefault(normal_form(extra.strip()), extra)
        if first.strip() != extra.strip():
            message = f"Provides-Extra: {shorten(first)!r} and {shorten(extra)!r} are one name in normal form"
            found.add("metadata-value", message, where)
    if metadata.get("Description") is not None and metadata.body.strip():
        found.add("metadata-field-repeated", "the description stands in a header and below the headers", where)
    return found.all()


def check_license_files(metadata: Headers, folder: str, names: Container[str], where: str) -> list[Finding]:
    """License-File values that name no file, from Metadata-Version 2.4 on.

    Args:
        metadata: the headers.
        folder: where they must stand, such as ``demo-1.0.dist-info/licenses``.
        names: the files of the archive.
        where: the member that the headers come from.
    """
    version = metadata_number((metadata.get("Metadata-Version") or "").strip())
    if version is None or version < _LICENSES:
        return []
    found = Findings()
    for value in metadata.get_all("License-File"):
        if f"{folder}/{value.strip()}" not in names:
            message = f"License-File names {shorten(value.strip())!r}, {folder} holds no such file"
            found.add("license-file", message, where)
    return found.all()


def _check_urls(values: list[str], where: str, found: Findings) -> None:
    labels: set[str] = set()
    for value in values:
        label, comma, url = (part.strip() for part in value.partition(","))
        shown = f"Project-URL: {shorten(' '.join(value.split()))!r}"
        if not comma or not label or not url:
            found.add("metadata-value", f"{shown}: expected 'Label, URL'", where)
        elif len(label) > _MAX_LABEL:
            found.add("metadata-value", f"{shown}: a label has at most {_MAX_LABEL} characters", where)
        elif label in labels:
            found.add("metadata-value", f"{shown}: the label stands twice", where)
        labels.add(label)
