"""What to change in a wheel, as a value that is valid once it exists."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, Self

from build_tools.errors import EditError, Faults, ReleaseError
from build_tools.version import parse_local, parse_version
from build_tools.wheels.core_metadata import check_field, check_values, is_repeatable
from build_tools.wheels.headers import check_value, is_field_name
from build_tools.wheels.member_names import is_odd, is_unsafe
from build_tools.wheels.mending import SIDES
from build_tools.wheels.name import TAG_KINDS, check_build_tag, normalize_name, parse_tag_set

_ACROSS = {"**/": "(?:.*?/)??", "**": ".*?"}


class _WheelEdit(NamedTuple):
    name: str | None
    version: str | None
    local: str | None
    build: str | None
    python_tag: str | None
    abi_tag: str | None
    platform_tag: str | None
    sync: str | None
    repair: bool
    set: tuple[str, ...]
    add: tuple[str, ...]
    remove: tuple[str, ...]
    add_file: tuple[str, ...]
    sbom_add: tuple[str, ...]
    remove_file: tuple[str, ...]


class WheelEdit(_WheelEdit):
    """Changes to make to a wheel; ``None`` and ``()`` leave a thing as it is.

    Attributes:
        name: the new distribution name; METADATA keeps this spelling, paths its normal form.
        version: the whole new version; a local label that it does not have is dropped.
        local: the local label that replaces the present one; ``""`` removes it.
        build: the build tag; ``""`` removes it.
        python_tag, abi_tag, platform_tag: tag sets, several tags joined by ``.``.
        set: ``"Field: value"`` headers of METADATA that replace all lines of their field.
        add: ``"Field: value"`` headers to add, where they do not stand already.
        remove: fields of METADATA to remove.
        add_file: ``"SRC=DEST"`` files to put into the wheel (split at the last ``=``).
        sbom_add: CycloneDX or SPDX documents in JSON to put into ``.dist-info/sboms``.
        remove_file: patterns of members to remove: ``*`` within a part, ``**`` across parts.
        sync: where the parts of the wheel disagree, the side that wins: ``"filename"``, or ``"metadata"`` for
            METADATA and WHEEL. It comes first, every other change after it.
        repair: mend what takes no guess: RECORD, the form of the archive, the names of the folders.

    Raises:
        EditError: with every fault of every value.

    >>> WheelEdit(name="demo-cu12", local="cu128", add=["Requires-Dist: triton>=3"]).local
    'cu128'
    """

    __slots__ = ()

    def __new__(
        cls,
        *,
        name: str | None = None,
        version: str | None = None,
        local: str | None = None,
        build: str | None = None,
        python_tag: str | None = None,
        abi_tag: str | None = None,
        platform_tag: str | None = None,
        set: str | Iterable[str] = (),
        add: str | Iterable[str] = (),
        remove: str | Iterable[str] = (),
        add_file: str | Iterable[str] = (),
        sbom_add: str | Iterable[str] = (),
        remove_file: str | Iterable[str] = (),
        sync: str | None = None,
        repair: bool = False,
    ) -> Self:
        """Check every value."""
        texts = (name, version, local, build, python_tag, abi_tag, platform_tag, sync)
        lists = [
            (values,) if isinstance(values, str) else tuple(values)
            for values in (set, add, remove, add_file, sbom_add, remove_file)
        ]
        edit = super().__new__(cls, *texts, repair, *lists)
        edit._check()
        return edit

    def _replace(self, **changes: Any) -> Self:
        return type(self)(**{**self._asdict(), **changes})  # checked as well

    def __getnewargs_ex__(self) -> tuple[tuple[()], dict[str, Any]]:
        return (), self._asdict()  # for copy and pickle: all arguments are keywords

    def _check(self) -> None:
        faults = Faults()

        def check(function: Callable[[str], object], *values: str | None) -> None:
            for value in values:
                if value is not None:
                    faults.attempt(partial(function, value))

        check(normalize_name, self.name)
        check(parse_version, self.version)
        check(parse_local, self.local or None)
        check(check_build_tag, self.build or None)
        faults.attempt(self._check_locals)
        for kind in TAG_KINDS:
            check(partial(parse_tag_set, kind=kind), getattr(self, f"{kind}_tag"))
        check(_check_header, *self.set, *self.add)
        check(_check_removed, *self.remove)
        faults.attempt(self._check_repeated)
        check(split_file, *self.add_file)
        check(_check_sbom, *self.sbom_add)
        check(_check_pattern, *self.remove_file)
        check(_check_side, self.sync)
        faults.raise_any(EditError)

    def _check_locals(self) -> None:
        if self.version is None or self.local is None:
            return
        try:
            label = parse_version(self.version).local
        except ReleaseError:
            return
        if label is not None:
            raise EditError(
                f"the version {self.version!r} has the local label {label!r}, and local {self.local!r} is given too",
                hint="give one of the two",
            )

    def _check_repeated(self) -> None:
        faults = []
        for option, headers in (("set", self.set), ("add", self.add)):
            names = [header.partition(":")[0].strip().lower() for header in headers]
            faults += [
                f"--{option} gives {name!r} {names.count(name)} times, it may stand once only"
                for name in dict.fromkeys(names)
                if names.count(name) > 1 and not is_repeatable(name)
            ]
        both = {header.partition(":")[0].strip().lower() for header in self.set} & {f.lower() for f in self.remove}
        faults += [f"{name!r} is both set and removed" for name in sorted(both)]
        if faults:
            raise EditError(faults)


def split_header(text: str) -> tuple[str, str]:
    """``"Field: value"`` -> field and value.

    Raises:
        EditError: no colon, no field or no value, or a value that is no single line.
    """
    field, colon, value = text.partition(":")
    field, value = field.strip(), value.strip()
    if not colon or not is_field_name(field):
        raise EditError(f"invalid header {text!r}: expected 'Field: value', such as 'Requires-Dist: torch>=2.6'")
    check_value(field, text.partition(":")[2].strip(" \t"))
    if not value:
        raise EditError(f"{field} has no value in {text!r}", hint=f"to remove the field use --remove {field}")
    return field, value


def split_file(text: str) -> tuple[Path, str]:
    """``"SRC=DEST"`` -> the file and the member that it becomes.

    Raises:
        EditError: no ``=``, an unsafe member name, or a member that a rewrite makes itself.
    """
    source, equals, target = text.rpartition("=")
    if not equals or not source or not target:
        raise EditError(f"invalid file {text!r}: expected SRC=DEST, such as 'NOTICE.txt=demo/NOTICE.txt'")
    if is_unsafe(target) or is_odd(target) or target.endswith("/"):
        raise EditError(f"invalid destination {target!r}: expected a relative path inside the wheel, with '/'")
    _check_protected(target)
    return Path(source), target


def pattern_regex(pattern: str) -> re.Pattern[str]:
    """The regular expression of a member pattern: ``*`` and ``?`` within a part, ``**`` across parts.

    A wildcard that another one follows takes the first place that fits and never looks for a second, as a later
    one could only leave less to the other: a dozen of them would else try every place with every other.
    """
    pattern = re.sub(r"\*{3,}", "**", pattern)
    pattern = re.sub(r"(?<![^/])(\*\*/)+", "**/", pattern)
    first, *others = re.split(r"((?<![^/])\*\*/|\*\*)", pattern)
    regex = _within_part(first, last=not others)
    for number in range(0, len(others), 2):
        last = number + 2 == len(others)
        segment = _ACROSS[others[number]] + _within_part(others[number + 1], last=last)
        regex += segment if last else f"(?>{segment})"
    return re.compile(f"{regex}/?\\Z", re.DOTALL)


def _within_part(pattern: str, *, last: bool) -> str:
    """The regular expression of a pattern without ``**``; ``last`` says that nothing follows it."""
    head, *tails = ["[^/]".join(map(re.escape, piece.split("?"))) for piece in pattern.split("*")]
    firm = [f"(?>[^/]*?{tail})" for tail in tails]
    if last and firm:
        firm[-1] = f"[^/]*{tails[-1]}"
    return head + "".join(firm)


def is_protected(member: str) -> bool:
    """Whether a member is one that a rewrite writes itself: METADATA, WHEEL, RECORD of a top-level dist-info."""
    folder, _, file = member.partition("/")
    return folder.endswith(".dist-info") and file in ("METADATA", "WHEEL", "RECORD")


def _check_protected(member: str) -> None:
    if is_protected(member):
        raise EditError(
            f"{member} is written by the rewrite itself", hint="edit METADATA with --set, --add and --remove"
        )


def _check_header(text: str) -> None:
    field, value = split_header(text)
    check_field(field, present=field.lower().startswith("x-"))
    check_values(field, [value])


def _check_removed(field: str) -> None:
    if not is_field_name(field):
        raise EditError(f"invalid field name {field!r}: expected a header of METADATA, such as 'Requires-Dist'")
    check_field(field, present=True)


def _check_pattern(pattern: str) -> None:
    if not pattern:
        raise EditError("an empty file pattern matches nothing")
    _check_protected(pattern)


def _check_side(side: str) -> None:
    if side not in SIDES:
        raise EditError(f"sync is {side!r}, expected {' or '.join(map(repr, SIDES))}")


def _check_sbom(text: str) -> None:
    if not text.endswith(".json"):
        raise EditError(f"invalid SBOM {text!r}: expected a document in JSON, in a file that ends in .json")
    from build_tools.wheels.sbom import check_sbom  # few runs add one

    check_sbom(Path(text))
