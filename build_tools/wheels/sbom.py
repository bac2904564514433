"""A software bill of materials (SBOM) in a wheel: where it speaks of the wheel itself, it follows a rewrite.

CycloneDX and SPDX documents in JSON lie in ``.dist-info/sboms/``. The wheel's own entries are told by their package
URL (purl), ``pkg:pypi/NAME@VERSION``; every other entry stays byte for byte.

Sources: PEP 770; Package-URL specification, type ``pypi``; CycloneDX 1.6; SPDX 2.3 and 3.0.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote, unquote

from build_tools.errors import EditError, FileError, ReleaseError, WheelError
from build_tools.version import parse_version
from build_tools.wheels.headers import Headers
from build_tools.wheels.json_text import JsonPath, JsonString, read_strings, replace_strings
from build_tools.wheels.limits import MAX_SBOM
from build_tools.wheels.name import WheelName, normalize_name

# Of CycloneDX, SPDX 2 and SPDX 3.
_MARKS = {"bomFormat", "spdxVersion", "@context"}
_PURL = re.compile(r"(pkg:pypi/)([^@?#/]+)@([^@?#/]+)([?#].*)?\Z", re.IGNORECASE | re.DOTALL)
# What CycloneDX says that it is about, with or without a purl.
_SUBJECT = ("metadata", "component", "name")
# The keys by which CycloneDX, SPDX 2 and SPDX 3 call the same things.
_VERSIONS = ("version", "versionInfo", "packageVersion", "software_packageVersion")
_FILES = ("packageFileName",)


class Purl(NamedTuple):
    """A package URL of the type ``pypi``, in the parts of its text: ``pkg:pypi/NAME@VERSION`` and what follows."""

    scheme: str
    name: str
    version: str
    rest: str

    @classmethod
    def parse(cls, text: str) -> Purl | None:
        """The parts of ``text``; ``None`` where it is no such URL with a version.

        >>> Purl.parse("pkg:pypi/Demo_Pkg@1.0%2Bcpu?file_name=x.whl")
        Purl(scheme='pkg:pypi/', name='Demo_Pkg', version='1.0%2Bcpu', rest='?file_name=x.whl')
        """
        match = _PURL.match(text)
        return cls(*match.groups("")) if match else None

    def is_of(self, wheel: WheelName) -> bool:
        """Whether it means the release that ``wheel`` is of."""
        try:
            return (normalize_name(unquote(self.name)), parse_version(unquote(self.version))) == (
                wheel.name, wheel.version
            )  # fmt: skip
        except ReleaseError:
            return False

    def follow(self, old: WheelName, new: WheelName) -> Purl:
        """The URL of ``new`` in place of that of ``old``; a part that is the same keeps its spelling."""
        query, hash, subpath = self.rest.partition("#")
        pairs = [pair.partition("=") for pair in query.removeprefix("?").split("&")]
        renamed = [
            key + equals + (quote(new.filename) if key == "file_name" and unquote(value) == old.filename else value)
            for key, equals, value in pairs
        ]
        return self._replace(
            name=self.name if new.name == old.name else new.name,
            version=self.version if new.version == old.version else quote(str(new.version), safe=""),
            rest=query[:1] + "&".join(renamed) + hash + subpath,
        )

    def __str__(self) -> str:
        return f"{self.scheme}{self.name}@{self.version}{self.rest}"


def check_sbom(file: Path) -> Path:
    """Return ``file`` if it is a document that may go into a wheel.

    Raises:
        EditError: it is no CycloneDX or SPDX document in JSON, or too large.
        FileError: it cannot be read.
    """
    try:
        with file.open("rb") as stream:
            data = stream.read(MAX_SBOM + 1)
    except OSError as error:
        raise FileError.of("read", file, error) from error
    if len(data) > MAX_SBOM:
        raise EditError(f"{str(file)!r} is larger than {MAX_SBOM} bytes")
    try:
        read_strings(data.decode())
        document = json.loads(data)
    except ValueError as error:
        raise EditError(f"{str(file)!r} is not JSON in UTF-8: {error}") from None
    if not isinstance(document, dict) or not _MARKS & document.keys():
        raise EditError(f"{str(file)!r} is no SBOM: expected a CycloneDX or SPDX document in JSON")
    return file


def identities(name: WheelName, metadata: Headers) -> list[WheelName]:
    """The wheels that a document in a wheel may speak of: that of the file name, and that of METADATA."""
    found = [name]
    try:
        stated = WheelName((metadata.get("Name") or "").strip(), parse_version((metadata.get("Version") or "").strip()))
    except ReleaseError:
        return found
    if (stated.name, stated.version) != (name.name, name.version):
        found.append(stated)
    return found


def follow_sbom(data: bytes, olds: Iterable[WheelName], new: WheelName, project: str) -> bytes:
    """The document after the wheel became ``new``.

    Args:
        data: a CycloneDX or SPDX document in JSON.
        olds: the wheel before; several where its parts disagreed.
        new: the wheel after.
        project: the new name as METADATA spells it.

    Returns:
        The document in which name, version and purl of the wheel itself are the new ones, its ``file_name`` qualifier
        too, and so every reference to it. The same bytes where it does not speak of the wheel.

    Raises:
        WheelError: the document is no JSON in UTF-8.
    """
    try:
        text = data.decode()
        for old in olds:
            text = _follow(text, old, new, project)
    except ValueError as error:
        raise WheelError(f"not JSON in UTF-8: {error}") from None
    return text.encode()


def _follow(text: str, old: WheelName, new: WheelName, project: str) -> str:
    strings = read_strings(text)
    purls = {string.value: _follow_purl(string.value, old, new) for string in strings}
    own = {_owner(string.path) for string in strings if purls[string.value] and not _is_reference(string.path)}
    own |= {string.path[:-1] for string in strings if string.path == _SUBJECT and _is_name(string.value, old)}

    def replaced() -> Iterator[tuple[JsonString, str]]:
        for string in strings:
            value = purls[string.value]
            if value is None and string.path[:-1] in own:
                value = _follow_fact(str(string.path[-1]), string.value, old, new, project)
            if value is not None and value != string.value:
                yield string, value

    return replace_strings(text, replaced())


def _follow_purl(text: str, old: WheelName, new: WheelName) -> str | None:
    """The new purl in place of ``text``; ``None`` where that is not the purl of the wheel itself."""
    purl = Purl.parse(text)
    return str(purl.follow(old, new)) if purl and purl.is_of(old) else None


def _is_name(text: str, wheel: WheelName) -> bool:
    try:
        return normalize_name(text) == wheel.name
    except ReleaseError:
        return False


def _follow_fact(key: str, value: str, old: WheelName, new: WheelName, project: str) -> str | None:
    """The new value of a fact that stands beside the wheel's purl; ``None`` for one that stays."""
    if key == "name":
        return project if new.name != old.name and _is_name(value, old) else None
    if key in _VERSIONS:
        try:
            return str(new.version) if parse_version(value) == old.version != new.version else None
        except ReleaseError:
            return None
    return new.filename if key in _FILES and value == old.filename else None


def _owner(path: JsonPath) -> JsonPath:
    """The object that a purl belongs to: the one that holds it, or the package around its list of references."""
    return path[:-3] if len(path) > 3 and path[-3] in ("externalRefs", "externalIdentifier") else path[:-1]


def _is_reference(path: JsonPath) -> bool:
    """Whether a purl only points to an entry that stands elsewhere."""
    return isinstance(path[-1], int) or path[-1] == "ref"
