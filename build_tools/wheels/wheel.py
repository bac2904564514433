"""One wheel, opened and read once: what every command starts from.

Reading never stops at the first fault. What the archive, the names, METADATA, WHEEL and RECORD
have wrong, each alone and held against the others, stands in :attr:`Wheel.findings`.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from types import TracebackType
from typing import NamedTuple, Self

from packaging.version import Version

from build_tools.errors import VersionError, WheelError, WheelNameError
from build_tools.version import parse_version
from build_tools.wheels.archive import Archive
from build_tools.wheels.finding import Finding, Findings
from build_tools.wheels.header_checks import Claim, attempt, check_metadata, check_wheel_file
from build_tools.wheels.headers import Headers
from build_tools.wheels.limits import LIMITS, Limits
from build_tools.wheels.member import Member
from build_tools.wheels.member_names import DATA_SCHEMES, is_data_path
from build_tools.wheels.name import WheelName, decode_url, parse_stem, shorten, stem
from build_tools.wheels.record import Record

SIGNATURES = ("RECORD.jws", "RECORD.p7s")


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
        dist_info: the top-level ``.dist-info`` folder; of several, the one that the file name asks for
            or else the first (a finding says so); ``None`` for none.
        data: the top-level ``.data`` folders, usually none or one.
        metadata, wheel: the headers of METADATA and WHEEL, without lines that are none; ``None`` where they
            cannot be read.
        record: the rows of RECORD, or ``None``.
        findings: every rule that the wheel breaks.
    """

    def __init__(self, archive: Archive, filename: str | None = None) -> None:
        self.archive = archive
        self.path = archive.path if filename is None else archive.path.with_name(filename)
        self._found = Findings()
        self._found.extend(archive.findings)
        self._find = self._found.add
        self.name: WheelName | None = attempt(self._found, lambda: WheelName.parse(self.path.name), "filename")
        self.dist_info: str | None = None
        self.data: tuple[str, ...] = ()
        self.metadata: Headers | None = None
        self.wheel: Headers | None = None
        self.record: Record | None = None
        self._check_filename()
        if not archive.members:
            if not archive.findings:
                self._find("dist-info-count", "the archive is empty, expected one top-level .dist-info")
            return
        self._find_folders()
        if self.dist_info is None:
            return
        self.metadata = self._headers("METADATA", "metadata-invalid")
        if self.metadata is not None:
            check_metadata(self.metadata, self.claim, self.member("METADATA"), self._found)
        self.wheel = self._headers("WHEEL", "wheel-invalid")
        if self.wheel is not None:
            check_wheel_file(self.wheel, self.name, self.member("WHEEL"), self._found)
        record = self._read("RECORD", archive.limits.record)
        if record is not None:
            self._read_record(record)

    @property
    def findings(self) -> list[Finding]:
        """Every rule that the wheel breaks."""
        return self._found.all()

    @classmethod
    def open(cls, path: str | os.PathLike[str], *, filename: str | None = None, limits: Limits = LIMITS) -> Self:
        """Open and read a wheel, with all its faults in :attr:`findings`.

        Args:
            path: the file.
            filename: the file name to hold the wheel against, where it is not the one of ``path``.
            limits: how much of it is read.

        Raises:
            FileError: the file is not there, is no regular file or cannot be read.
        """
        archive = Archive.open(path, limits)
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
            raise WheelError([f"{self.path.name}: {finding}" for finding in blocking])

    def header_findings(self, name: WheelName | None, metadata: Headers, wheel: Headers) -> list[Finding]:
        """What would be found in these headers under the file name ``name``; by themselves where that is ``None``."""
        found = Findings()
        claim = None if name is None else Claim.of(name)
        check_metadata(metadata, claim, self.member("METADATA"), found)
        check_wheel_file(wheel, name, self.member("WHEEL"), found)
        return found.all()

    def member(self, file: str) -> str:
        """The member of ``.dist-info`` that is called ``file``."""
        return f"{self.dist_info}/{file}"

    def in_dist_info(self, member: Member) -> bool:
        """Whether a member stands in ``.dist-info``."""
        return member.name.startswith(f"{self.dist_info}/")

    # -- reading ------------------------------------------------------------------------------

    @property
    def claim(self) -> Claim | None:
        """What everything else is held against: the file name, else the dist-info folder."""
        if self.name is not None:
            return Claim.of(self.name)
        if self.dist_info is None:
            return None
        try:
            name, version = parse_stem(self.dist_info.removesuffix(".dist-info"))
        except WheelNameError:
            return None
        return Claim(name, version, name, self.dist_info)

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
            self._find("dist-info-count", f"expected one top-level .dist-info, found {shorten(found)}")
        # The file name may tell which of several is meant; the rest of the wheel is read all the same.
        ours = [info for info in infos if self.name is not None and info == self.name.dist_info]
        self.dist_info = next(iter(ours or infos), None)
        if self.dist_info is not None:
            self._check_folder(self.dist_info, ".dist-info", "dist-info")
        for folder in self.data:
            self._check_folder(folder, ".data", "data")
        for name in self.archive.by_name if self.data else ():
            top, _, rest = name.partition("/")
            if top.endswith(".data") and not name.endswith("/") and not is_data_path(rest):
                schemes = ", ".join(DATA_SCHEMES)
                self._find("data-scheme", f"expected {top}/SCHEME/..., with a scheme of {schemes}", name)
        if len(self.data) > 1:
            self._find("data-name", f"expected at most one top-level .data, found {shorten(', '.join(self.data))}")
        if len(infos) == 1:
            self._check_order(infos[0])

    def _check_order(self, dist_info: str) -> None:
        inside = f"{dist_info}/"
        names = [member.name for member in self.archive.members]
        # None at all where it is a file.
        first = next((i for i, name in enumerate(names) if name.startswith(inside)), len(names))
        if not all(name.startswith(inside) for name in names[first:]):
            self._find("dist-info-order", f"{dist_info} does not stand last in the archive", dist_info)
        elif names[-1] != self.member("RECORD"):
            self._find("dist-info-order", "RECORD does not stand last of all", dist_info)

    def _check_folder(self, folder: str, ending: str, code: str) -> None:
        parsed = attempt(self._found, lambda: parse_stem(folder.removesuffix(ending)), f"{code}-name", folder)
        claim = self.claim
        if parsed is None or claim is None:
            return
        expected = stem(claim.name, claim.version) + ending
        # As text: 1.0 and 1.0.0 are equal versions, and two names.
        if (parsed[0], str(parsed[1])) != (claim.name, str(claim.version)):
            self._find(f"{code}-name", f"{folder} disagrees with {claim.source}, expected {expected}", folder)
        elif folder != expected:
            self._find(f"{code}-spelling", f"{folder} is not in normal form, expected {expected}", folder)

    def _read(self, file: str, limit: int) -> bytes | None:
        member = self.archive.by_name.get(self.member(file))
        if member is None:
            self._find("dist-info-file", f"{self.dist_info} holds no {file}", self.dist_info)
            return None
        if any(finding.member == member.name and finding.code == "zip-encrypted" for finding in self.findings):
            return None
        if member.size > limit:
            self._find("limit-exceeded", f"it holds {member.size} bytes, at most {limit} are read", member.name)
            return None
        if member.is_symlink:
            self._find("dist-info-file", f"{file} is a symlink, expected a file", member.name)
            return None
        try:
            return self.archive.read(member, limit)
        except WheelError as error:
            self._find("zip-data", error.reason, member.name)
            return None

    def _headers(self, file: str, code: str) -> Headers | None:
        data = self._read(file, self.archive.limits.metadata)
        if data is None:
            return None
        headers, faults = Headers.read(data, file)
        for fault in faults:
            self._find(code, fault, self.member(file))
        return headers

    # -- RECORD -----------------------------------------------------------------------------

    def _read_record(self, data: bytes) -> None:
        members, own, limit = self.archive.by_name, self.member("RECORD"), self.archive.limits.rows
        signatures = [signature for signature in map(self.member, SIGNATURES) if signature in members]
        if not any(finding.code == "zip-unsafe-name" for finding in self.findings):
            self.record = Record.parse_faultless(data, members, own, limit)
        if self.record is None:
            self.record, findings = Record.parse(data, own, limit)
            self._found.extend(findings)
            if any(finding.code == "limit-exceeded" for finding in findings):
                return
            files = {name: member.size for name, member in members.items() if not member.is_dir}
            folders = [name.removesuffix("/") for name, member in members.items() if member.is_dir]
            self._found.extend(self.record.compare(files, folders, own, frozenset([own, *signatures])))
        for signature in signatures:
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
