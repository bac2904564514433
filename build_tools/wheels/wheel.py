"""One wheel, opened and read once: what every command starts from.

Reading never stops at the first fault. What the archive, the names, METADATA, WHEEL and RECORD
have wrong, each alone and held against the others, stands in :attr:`Wheel.findings`.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Callable, Iterable
from functools import partial
from itertools import product
from pathlib import Path
from types import TracebackType
from typing import NamedTuple, Self, TypeVar

from packaging.version import Version

from build_tools.errors import ReleaseError, VersionError, WheelError
from build_tools.version import parse_version
from build_tools.wheels.archive import Archive
from build_tools.wheels.central_directory import Member
from build_tools.wheels.core_metadata import NEWEST, is_repeatable
from build_tools.wheels.finding import Finding
from build_tools.wheels.headers import Headers
from build_tools.wheels.member_names import DATA_SCHEMES, is_data_path
from build_tools.wheels.name import MAX_TAGS, WheelName, compress_tags, decode_url, normalize_name, parse_stem, shorten
from build_tools.wheels.record import Record

MAX_HEADERS = 32 << 20
"""Bytes of METADATA or WHEEL that are read at most."""
MAX_RECORD = 128 << 20

SIGNATURES = ("RECORD.jws", "RECORD.p7s")
KNOWN_WHEEL = (1, 0)

_DISAGREEMENTS = {
    "filename", "dist-info-name", "data-name", "metadata-name", "metadata-version-field", "wheel-tags", "wheel-build"
}  # fmt: skip
_REQUIRED = {"metadata-version", "name", "version"}

T = TypeVar("T")


class SoundWheel(NamedTuple):
    """A wheel that has no blocking finding, with all its parts; made by :meth:`Wheel.require_sound`.

    It is as long-lived as the archive, which stays open with the :class:`Wheel`.
    """

    path: Path
    archive: Archive
    name: WheelName
    project: str
    dist_info: str
    data: tuple[str, ...]
    metadata: Headers
    wheel: Headers
    record: Record

    def member(self, file: str) -> str:
        """The member of ``.dist-info`` that is called ``file``."""
        return f"{self.dist_info}/{file}"

    def in_dist_info(self, member: Member) -> bool:
        """Whether a member stands in ``.dist-info``."""
        return member.name.startswith(f"{self.dist_info}/")


class Wheel:
    """A wheel and everything that it says of itself. A context manager; it holds the file open.

    Attributes:
        path: where it is.
        archive: its archive.
        name: what the file name says, or ``None`` where it says nothing.
        dist_info: the one top-level ``.dist-info`` folder, or ``None``.
        data: the top-level ``.data`` folders, usually none or one.
        metadata, wheel: the headers of METADATA and WHEEL, or ``None`` where they cannot be read.
        record: the rows of RECORD, or ``None``.
        findings: every rule that the wheel breaks.
    """

    def __init__(self, archive: Archive, filename: str | None = None) -> None:
        self.archive = archive
        self.path = archive.path if filename is None else archive.path.with_name(filename)
        self.findings: list[Finding] = list(archive.findings)
        self.name: WheelName | None = self._parse(lambda: WheelName.parse(self.path.name), "filename")
        self.dist_info: str | None = None
        self.data: tuple[str, ...] = ()
        self.metadata: Headers | None = None
        self.wheel: Headers | None = None
        self.record: Record | None = None
        if not archive.members:
            if not self.findings:
                self._find("dist-info-count", "the archive is empty, expected one top-level .dist-info")
            return
        self._check_filename()
        self._find_folders()
        if self.dist_info is None:
            return
        metadata = self._read("METADATA", MAX_HEADERS)
        wheel = self._read("WHEEL", MAX_HEADERS)
        record = self._read("RECORD", MAX_RECORD)
        if metadata is not None:
            self.metadata = self._parse(
                lambda: Headers.parse(metadata, "METADATA"), "metadata-invalid", self.member("METADATA")
            )
        if wheel is not None:
            self.wheel = self._parse(lambda: Headers.parse(wheel, "WHEEL"), "wheel-invalid", self.member("WHEEL"))
        self._check_metadata()
        self._check_wheel()
        if record is not None:
            self.record, findings = Record.parse(record, self.member("RECORD"))
            self.findings += findings
            self._check_record(self.record)

    @classmethod
    def open(cls, path: str | os.PathLike[str], *, filename: str | None = None) -> Self:
        """Open and read a wheel, with all its faults in :attr:`findings`.

        Args:
            path: the file.
            filename: the file name to hold the wheel against, where it is not the one of ``path``.

        Raises:
            FileError: the file is not there, is no regular file or cannot be read.
        """
        archive = Archive.open(path)
        try:
            return cls(archive, filename)
        except BaseException:
            archive.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.archive.close()

    def require_sound(self) -> SoundWheel:
        """The parts of the wheel, certain to be there and to agree.

        Raises:
            WheelError: with every finding that blocks.
        """
        self.refuse(self.findings)
        assert self.name
        assert self.dist_info
        assert self.metadata
        assert self.wheel
        assert self.record
        return SoundWheel(
            self.path, self.archive, self.name, self.project, self.dist_info, self.data, self.metadata, self.wheel,
            self.record,
        )  # fmt: skip

    def refuse(self, findings: Iterable[Finding]) -> None:
        """Raise the findings among these that block, if there are any.

        Raises:
            WheelError: with every one of them.
        """
        blocking = [finding for finding in findings if finding.blocks]
        if blocking:
            hint = None
            if all(finding.code in _DISAGREEMENTS for finding in blocking):
                hint = "`te-wheel unpack` and `te-wheel pack` make a wheel that agrees with its METADATA and WHEEL"
                if any(finding.code == "wheel-build" for finding in blocking) and self.name and self.name.build:
                    hint += f"; `pack --build {self.name.build}` keeps the build tag of the file name"
            raise WheelError([f"{self.path.name}: {finding}" for finding in blocking], hint=hint)

    def member(self, file: str) -> str:
        """The member of ``.dist-info`` that is called ``file``."""
        return f"{self.dist_info}/{file}"

    def in_dist_info(self, member: Member) -> bool:
        """Whether a member stands in ``.dist-info``."""
        return member.name.startswith(f"{self.dist_info}/")

    # -- reading ------------------------------------------------------------------------------

    def _find(self, code: str, message: str, member: str | None = None) -> None:
        self.findings.append(Finding(code, message, member))

    def _parse(self, parse: Callable[[], T], code: str, member: str | None = None) -> T | None:
        try:
            return parse()
        except ReleaseError as error:
            self.findings += [Finding(code, fault, member) for fault in error.faults]
            return None

    def _check_filename(self) -> None:
        if self.name is not None and self.path.name != self.name.filename:
            found = self.path.name
            how = "read as the file name saved from a URL" if decode_url(found) != found else "not in normal form"
            self._find("filename-spelling", f"{found!r} is {how}, expected {self.name.filename!r}")

    def _find_folders(self) -> None:
        # pip looks at the first part of every member, so a file at the top counts as well.
        tops = dict.fromkeys(name.split("/", 1)[0] for name in self.archive.by_name)
        infos = [top for top in tops if top.endswith(".dist-info")]
        # pip takes every top-level folder that ends so for the wheel's own, whatever its name.
        self.data = tuple(top for top in tops if top.endswith(".data"))
        if len(infos) != 1:
            found = ", ".join(infos) if infos else "none"
            self._find("dist-info-count", f"expected one top-level .dist-info, found {found}")
            return
        self.dist_info = infos[0]
        self._check_folder(self.dist_info, ".dist-info", "dist-info")
        for folder in self.data:
            self._check_folder(folder, ".data", "data")
        for member in self.archive.members:
            top, _, rest = member.name.partition("/")
            if top.endswith(".data") and not member.is_dir and not is_data_path(rest):
                schemes = ", ".join(DATA_SCHEMES)
                self._find("data-scheme", f"expected {top}/SCHEME/..., with a scheme of {schemes}", member.name)
        if len(self.data) > 1:
            self._find("data-name", f"expected at most one top-level .data, found {', '.join(self.data)}")
        last = 0
        for position, member in enumerate(self.archive.members):
            if not self.in_dist_info(member):
                last = position
        # None at all where it is a file.
        first = next((i for i, member in enumerate(self.archive.members) if self.in_dist_info(member)), last)
        if first < last:
            self._find("dist-info-order", f"{self.dist_info} does not stand last in the archive", self.dist_info)
        elif self.archive.members[-1].name != self.member("RECORD"):
            self._find("dist-info-order", "RECORD does not stand last of all", self.dist_info)

    def _check_folder(self, folder: str, ending: str, code: str) -> None:
        parsed = self._parse(lambda: parse_stem(folder.removesuffix(ending)), f"{code}-name", folder)
        if parsed is None or self.name is None:
            return
        expected = self.name.stem + ending
        # As text: 1.0 and 1.0.0 are equal versions, and two names.
        if (parsed[0], str(parsed[1])) != (self.name.name, str(self.name.version)):
            self._find(f"{code}-name", f"{folder} disagrees with the file name, expected {expected}", folder)
        elif folder != expected:
            self._find(f"{code}-spelling", f"{folder} is not in normal form, expected {expected}", folder)

    def _read(self, file: str, limit: int) -> bytes | None:
        member = self.archive.by_name.get(self.member(file))
        if member is None:
            self._find("dist-info-file", f"{self.dist_info} holds no {file}", self.dist_info)
            return None
        if any(finding.member == member.name and finding.code == "zip-encrypted" for finding in self.findings):
            return None
        if member.entry.is_symlink:
            self._find("dist-info-file", f"{file} is a symlink, expected a file", member.name)
            return None
        try:
            return self.archive.read(member, limit)
        except WheelError as error:
            self._find("zip-data", error.reason, member.name)
            return None

    # -- what the headers say -----------------------------------------------------------------

    def _check_metadata(self) -> None:
        if self.metadata is None:
            return
        where = self.member("METADATA")
        version = self._single(self.metadata, "Metadata-Version", "metadata-version", where)
        if version is not None:
            number = _number(version)
            if number is None:
                self._find("metadata-version", f"Metadata-Version {version!r} is no version such as '2.4'", where)
            elif number[0] > NEWEST[0]:
                self._find(
                    "metadata-version",
                    f"Metadata-Version {version} is unknown, {NEWEST[0]}.{NEWEST[1]} is the newest known",
                    where,
                )
            elif number > NEWEST:
                self._find(
                    "metadata-version-new", f"Metadata-Version {version} is newer than {NEWEST[0]}.{NEWEST[1]}", where
                )
        name = self._single(self.metadata, "Name", "metadata-name", where)
        if name is not None:
            normal = self._parse(lambda: normalize_name(name), "metadata-name", where)
            if normal is not None and self.name is not None and normal != self.name.name:
                self._find(
                    "metadata-name", f"Name {name!r} disagrees with {self.name.project!r} in the file name", where
                )
        text = self._single(self.metadata, "Version", "metadata-version-field", where)
        if text is not None:
            parsed = self._parse(lambda: parse_version(text), "metadata-version-field", where)
            if parsed is not None and self.name is not None and str(parsed) != str(self.name.version):
                self._find(
                    "metadata-version-field",
                    f"Version {text!r} disagrees with {self.name.version} in the file name",
                    where,
                )
            elif parsed is not None and str(parsed) != text:
                self._find(
                    "metadata-version-spelling", f"Version {text!r} is not in normal form {str(parsed)!r}", where
                )
        names = {field.name.lower(): field.name for field in self.metadata.fields}
        for field, count in Counter(field.name.lower() for field in self.metadata.fields).items():
            if count > 1 and not is_repeatable(field) and field not in _REQUIRED:
                self._find(
                    "metadata-field-repeated", f"{names[field]} stands {count} times, at most once is allowed", where
                )

    def _check_wheel(self) -> None:
        if self.wheel is None:
            return
        where = self.member("WHEEL")
        version = self._single(self.wheel, "Wheel-Version", "wheel-invalid", where)
        if version is not None:
            number = _number(version)
            if number is None or number[0] > KNOWN_WHEEL[0]:
                self._find("wheel-invalid", f"Wheel-Version {version!r} is unknown, expected 1.x", where)
        root = self._single(self.wheel, "Root-Is-Purelib", "wheel-root", where)
        if root is not None and root.strip().lower() not in ("true", "false"):
            self._find("wheel-root", f"Root-Is-Purelib is {root!r}, expected true or false", where)
        self._check_tags(where)
        if self.name is None:
            return
        builds = [value.strip() for value in self.wheel.get_all("Build")]
        if builds != ([self.name.build] if self.name.build else []):
            said = ", ".join(map(repr, builds)) if builds else "no build tag"
            here = repr(self.name.build) if self.name.build else "none"
            self._find("wheel-build", f"WHEEL says {said}, the file name {here}", where)

    def _check_tags(self, where: str) -> None:
        assert self.wheel is not None
        lines = [value.strip() for value in self.wheel.get_all("Tag")]
        tags = [line for line in lines if line]
        expanded: set[str] = set()
        for tag in tags:
            sets = self._parse(partial(compress_tags, [tag]), "wheel-tags", where)
            if sets is None:
                return
            expanded.update(map("-".join, product(*sets)))
            if len(expanded) > MAX_TAGS:
                self._find("wheel-tags", f"the Tag lines stand for more than {MAX_TAGS} tags", where)
                return
        if self.name is None:
            return
        if expanded != set(self.name.tags):
            self._find(
                "wheel-tags",
                f"WHEEL says {shorten(', '.join(sorted(expanded))) or 'no tag'}, "
                f"the file name {shorten(', '.join(self.name.tags))}",
                where,
            )
        elif sorted(lines) != sorted(self.name.tags):
            self._find("wheel-tags-spelling", "the Tag lines are blank, repeated, compressed or in capitals", where)

    def _single(self, headers: Headers, field: str, code: str, where: str) -> str | None:
        """The value of a field that must stand exactly once."""
        values = headers.get_all(field)
        if len(values) == 1 and values[0].strip():
            return values[0].strip()
        if not values:
            self._find(code, f"{field} is missing", where)
        elif len(values) == 1:
            self._find(code, f"{field} is empty", where)
        else:
            self._find(
                code, f"{field} stands {len(values)} times ({', '.join(map(repr, values))}), expected once", where
            )
        return None

    def _check_record(self, record: Record) -> None:
        own = self.member("RECORD")
        signatures = [self.member(file) for file in SIGNATURES]
        files = {member.name: member.size for member in self.archive.members if not member.is_dir}
        folders = [member.name.removesuffix("/") for member in self.archive.members if member.is_dir]
        self.findings += record.compare(files, folders, own, frozenset([own, *signatures]))
        for signature in signatures:
            if signature in files:
                self._find("record-signature", "deprecated, and wrong after any rewrite; a rewrite drops it", signature)

    # -- what is certain once there is no blocking finding ------------------------------------

    @property
    def project(self) -> str:
        """``Name:`` of METADATA, as it is spelled."""
        return ((self.metadata and self.metadata.get("Name")) or "").strip()

    @property
    def version(self) -> Version | None:
        """``Version:`` of METADATA, or ``None`` where it is none."""
        try:
            return parse_version(((self.metadata and self.metadata.get("Version")) or "").strip())
        except VersionError:
            return None


def _number(text: str) -> tuple[int, int] | None:
    match = re.match(r"(\d{1,6})\.(\d{1,6})\Z", text, re.ASCII)
    return (int(match[1]), int(match[2])) if match else None
