"""Wheel file names, and every other path that a name and a version make.

The only place where the dashes of a file name are counted.

Sources: Binary distribution format, <https://packaging.python.org/specifications/binary-distribution-format/>;
Names and normalization, <https://packaging.python.org/specifications/name-normalization/>;
the variant label is that of PEP 825 (draft).
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import partial
from itertools import product
from math import prod
from typing import Any, NamedTuple, NewType, Self

from packaging.version import Version

from build_tools.errors import Faults, VersionError, WheelNameError
from build_tools.version import parse_version
from build_tools.wheels.limits import MAX_TAGS

NormalizedName = NewType("NormalizedName", str)
"""A project name in normal form (runs of ``-_.`` -> ``-``, lower case): proof that it is valid."""

_PROJECT_NAME = re.compile(r"([A-Z0-9]|[A-Z0-9][A-Z0-9._-]*[A-Z0-9])\Z", re.IGNORECASE | re.ASCII)
TAG_KINDS = ("python", "abi", "platform")
_TAG_ATOM = re.compile(r"[a-z0-9_]+\Z")
# With a variant label behind it, a Python tag must be one for certain: else `1.0-dev0-py3-none-any` would pass.
_PYTHON_TAG = r"(?i:py|cp|pp|ip|jy|graalpy)[0-9]"
# As texts: what few runs ask for is compiled when they do.
_BUILD = r"[0-9][A-Za-z0-9_.]*\Z"
_VARIANT = r"[0-9a-z_.]+\Z"


def normalize_name(name: str) -> NormalizedName:
    """The normal form of a project name.

    >>> normalize_name("Zope.Interface__X")
    'zope-interface-x'

    Raises:
        WheelNameError: ``name`` is no project name.
    """
    if not _PROJECT_NAME.match(name):
        raise WheelNameError(
            f"invalid project name {name!r}: expected ASCII letters, digits, '.', '-' and '_', "
            "with a letter or digit first and last"
        )
    return NormalizedName(normal_form(name))


def normal_form(text: str) -> str:
    """Runs of ``-_.`` -> ``-``, lower case: texts with one normal form mean the same name."""
    return re.sub(r"[-_.]+", "-", text).lower()


def stem(name: str, version: Version) -> str:
    """``{name}-{version}``: the folder that a wheel unpacks to and the start of its file name.

    >>> stem("te-pkg", Version("2.21.0-dev0"))
    'te_pkg-2.21.0.dev0'
    """
    return f"{normalize_name(name).replace('-', '_')}-{version}"


def parse_stem(text: str) -> tuple[NormalizedName, Version]:
    """Read ``{name}-{version}`` in any spelling that wheels bear: ``Django-3.2.5`` too.

    Raises:
        WheelNameError: not exactly one ``-``, or an invalid name or version.
    """
    name, dash, version = text.partition("-")
    if not dash or "-" in version:
        raise WheelNameError(f"{text!r} holds {text.count('-')} dashes, expected one: {{name}}-{{version}}")
    try:
        return normalize_name(name), parse_version(version)
    except VersionError as error:
        raise WheelNameError(str(error), hint=error.hint) from None


def parse_tag_set(text: str, kind: str) -> tuple[str, ...]:
    """Read a compressed tag set: ``manylinux2014_x86_64.manylinux_2_17_x86_64`` -> both, sorted.

    Args:
        text: the atoms, joined by dots.
        kind: ``python``, ``abi`` or ``platform``; for the message alone.

    Raises:
        WheelNameError: an atom is empty or holds something else than letters, digits and ``_``.
    """
    atoms = text.lower().split(".")
    if not all(map(_TAG_ATOM.match, atoms)):
        example = {"python": "py3", "abi": "none", "platform": "manylinux_2_28_x86_64"}[kind]
        raise WheelNameError(
            f"invalid {kind} tag {text!r}: expected letters, digits and '_', several joined by '.', such as {example!r}"
        )
    return tuple(sorted(set(atoms)))


def check_build_tag(text: str) -> str:
    """Return a build tag as it is.

    Raises:
        WheelNameError: it does not start with a digit, or holds a ``-``.
    """
    if not re.match(_BUILD, text):
        raise WheelNameError(
            f"invalid build tag {text!r}: expected a digit, then letters, digits, '_' and '.', such as '1' or '7019'"
        )
    return text


class _WheelName(NamedTuple):
    project: str
    version: Version
    build: str
    python: tuple[str, ...]
    abi: tuple[str, ...]
    platform: tuple[str, ...]
    variant: str | None


class WheelName(_WheelName):
    """The name of a wheel: valid, its tags in normal form. What it cannot be is refused with every fault.

    Attributes:
        project: the project name as the file name spells it (or as the user gave it).
        version: the version, local label included.
        build: the build tag, ``""`` for none.
        python, abi, platform: the compressed tag sets, sorted.
        variant: the variant label (PEP 825), or ``None``.

    >>> name = WheelName.parse("Demo.Pkg-1.0-7-py3-none-any.whl")
    >>> name.filename, name.dist_info
    ('demo_pkg-1.0-7-py3-none-any.whl', 'demo_pkg-1.0.dist-info')
    """

    __slots__ = ()

    def __new__(
        cls,
        project: str,
        version: Version,
        build: str = "",
        python: Iterable[str] = ("py3",),
        abi: Iterable[str] = ("none",),
        platform: Iterable[str] = ("any",),
        variant: str | None = None,
    ) -> Self:
        """Check and normalise the parts."""
        faults = Faults()
        faults.attempt(partial(normalize_name, project))
        if build:
            faults.attempt(partial(check_build_tag, build))
        pythons, abis, platforms = (
            faults.attempt(partial(parse_tag_set, ".".join(atoms), kind)) or ()
            for kind, atoms in zip(TAG_KINDS, (python, abi, platform), strict=True)
        )
        if variant is not None:
            faults.attempt(partial(_check_variant, variant))
        if len(pythons) * len(abis) * len(platforms) > MAX_TAGS:
            faults.errors.append(WheelNameError(f"the tag set stands for more than {MAX_TAGS} tags"))
        faults.raise_any(WheelNameError)
        return super().__new__(cls, project, version, build, pythons, abis, platforms, variant)

    def _replace(self, **changes: Any) -> Self:
        return type(self)(**{**self._asdict(), **changes})  # checked as well

    @classmethod
    def parse(cls, filename: str) -> WheelName:
        """Read a file name in any spelling that the specification lets readers accept.

        ``%2B``, left over where a URL was saved as a file, is read as ``+``.

        Raises:
            WheelNameError: with every fault of the name.
        """
        if not filename.endswith(".whl"):
            raise WheelNameError(f"{filename!r} does not end in '.whl'")
        stem_part = decode_url(filename.removesuffix(".whl"))
        parts = stem_part.split("-")
        build, variant = "", None
        if len(parts) >= 6 and parts[2][:1].isdigit():
            build = parts.pop(2)
        if len(parts) == 6 and re.match(_PYTHON_TAG, parts[2], re.ASCII):
            variant = parts.pop()
        elif len(parts) == 6:
            raise WheelNameError(
                f"{filename!r}: {parts[2]!r} after the version is neither a build tag (a digit first) nor a Python tag",
                hint="a '-' inside a name or version is written '_' or '.' in a file name",
            )
        if len(parts) != 5:
            raise WheelNameError(
                f"{filename!r} has {stem_part.count('-') + 1} parts joined by '-', expected "
                "{name}-{version}(-{build})?-{python}-{abi}-{platform}.whl"
            )
        faults: list[str] = []
        try:
            version = parse_version(parts[1])
        except VersionError as error:
            version, faults = Version("0"), list(error.faults)  # the faults behind it are named too
        try:
            python, abi, platform = (tuple(part.split(".")) for part in parts[2:])
            name = cls(parts[0], version, build, python, abi, platform, variant)
        except WheelNameError as error:
            faults += error.faults
        if faults:
            raise WheelNameError([f"{filename!r}: {fault}" for fault in faults])
        return name

    @property
    def name(self) -> NormalizedName:
        """The project name in normal form (with ``-``)."""
        return normalize_name(self.project)

    @property
    def stem(self) -> str:
        """``{name}-{version}``, normalised."""
        return stem(self.project, self.version)

    @property
    def dist_info(self) -> str:
        """The folder of METADATA, WHEEL and RECORD."""
        return f"{self.stem}.dist-info"

    @property
    def data(self) -> str:
        """The folder of what goes elsewhere than site-packages."""
        return f"{self.stem}.data"

    @property
    def tag_set(self) -> str:
        """The compressed tag set, such as ``py3-none-manylinux2014_x86_64.manylinux_2_17_x86_64``."""
        return "-".join(".".join(atoms) for atoms in (self.python, self.abi, self.platform))

    @property
    def tags(self) -> tuple[str, ...]:
        """The expanded tags, one for each ``Tag:`` line of WHEEL."""
        return tuple("-".join(atoms) for atoms in product(self.python, self.abi, self.platform))

    @property
    def filename(self) -> str:
        """The file name in normal form."""
        parts = [self.stem, self.build, self.tag_set, self.variant]
        return "-".join(part for part in parts if part) + ".whl"


def compress_tags(tags: Iterable[str]) -> tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]]:
    """The tag sets (python, abi, platform) whose product is exactly ``tags``.

    >>> compress_tags(["py2-none-any", "py3-none-any"])
    (('py2', 'py3'), ('none',), ('any',))

    Raises:
        WheelNameError: a tag has not three parts, there is none, or no file name can hold the set,
            since it is no full product.
    """
    expanded: set[str] = set()
    for tag in tags:
        parts = tag.split("-")
        if len(parts) != 3:
            raise WheelNameError(
                f"invalid tag {shorten(tag)!r}: expected {{python}}-{{abi}}-{{platform}}, such as 'py3-none-any'"
            )
        sets = [parse_tag_set(part, kind) for part, kind in zip(parts, TAG_KINDS, strict=True)]
        if len(expanded) + prod(map(len, sets)) > MAX_TAGS:
            raise WheelNameError(f"the tags stand for more than {MAX_TAGS}")
        expanded.update("-".join(atoms) for atoms in product(*sets))
    if not expanded:
        raise WheelNameError("no tag, expected at least one such as 'py3-none-any'")
    columns = [tag.split("-") for tag in expanded]
    python, abi, platform = (tuple(sorted(set(column))) for column in zip(*columns, strict=True))
    if len(python) * len(abi) * len(platform) != len(expanded):
        missing = next(tag for tag in map("-".join, product(python, abi, platform)) if tag not in expanded)
        raise WheelNameError(
            f"the tags {shorten(', '.join(sorted(expanded)))} are no full product of python, abi and platform tags "
            f"({missing} is missing), so no file name can hold them"
        )
    return python, abi, platform


def shorten(text: str, limit: int = 200) -> str:
    """``text`` for a message: cut where it is long."""
    return text if len(text) <= limit else f"{text[: limit - 3]}..."


def decode_url(filename: str) -> str:
    """Decode ``%2B`` and ``%21`` once: what stays in a file name when a URL is saved."""
    return re.sub("%2b", "+", filename, flags=re.IGNORECASE).replace("%21", "!")


def _check_variant(text: str) -> str:
    if not re.match(_VARIANT, text):
        raise WheelNameError(
            f"invalid variant label {text!r} (PEP 825): expected a-z, 0-9, '_' and '.', such as 'cu128'"
        )
    return text
