"""A wheel with all that a rewrite needs to know of it: sound as it is, or mended as it was asked."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import NamedTuple, TypeVar

from build_tools.errors import ReleaseError, WheelError
from build_tools.wheels.change import Change
from build_tools.wheels.edit import WheelEdit
from build_tools.wheels.finding import Finding
from build_tools.wheels.headers import Headers
from build_tools.wheels.member import Member
from build_tools.wheels.mending import DISAGREEMENTS, REPAIRABLE
from build_tools.wheels.wheel import SoundWheel, Wheel

_NAMES_AND_HEADERS = ("filename", "dist-info-name", "dist-info-file", "data-", "metadata-", "wheel-")
"""Codes of what has no part in how members are read."""

T = TypeVar("T")


class Mended(NamedTuple):
    """What a rewrite starts from.

    Attributes:
        wheel: the wheel, with the name, METADATA, WHEEL and RECORD that it ought to have. Its folders are
            those of the archive.
        metadata, header: METADATA and WHEEL as the archive holds them.
        members: what stays of the archive.
        changes: what else was mended.
    """

    wheel: SoundWheel
    metadata: Headers
    header: Headers
    members: tuple[Member, ...]
    changes: tuple[Change, ...] = ()


def mend(wheel: Wheel, edit: WheelEdit, *, hashes: bool = False) -> Mended:
    """Take a wheel as it is if it is sound, else mend what ``edit.sync`` and ``edit.repair`` say.

    Args:
        hashes: compare the CRC and the digest of every member too.

    Raises:
        WheelError: with all that is wrong and not to be mended.
    """
    if edit.sync is None and not edit.repair:
        _refuse(wheel, _findings(wheel, hashes=hashes), edit)
        sound = wheel.require_sound()
        return Mended(sound, sound.metadata, sound.wheel, tuple(wheel.archive.members))
    return _Mending(wheel, edit, hashes=hashes).result()


def _findings(wheel: Wheel, *, hashes: bool) -> list[Finding]:
    if not hashes:
        return wheel.findings
    from build_tools.wheels.check import all_findings  # needed by few runs

    return all_findings(wheel, hashes=True)


def _refuse(wheel: Wheel, findings: Iterable[Finding], edit: WheelEdit) -> None:
    """Raise the findings among these that block, with the option that would mend them all."""
    blocking = [finding for finding in findings if finding.blocks]
    if not blocking:
        return
    codes = {finding.code for finding in blocking}
    options = []
    if codes & (DISAGREEMENTS - REPAIRABLE) and edit.sync is None and _could_sync(wheel):
        options.append("`te-wheel repack --sync filename` or `--sync metadata` says which side the others follow")
    if codes & REPAIRABLE and not edit.repair:
        options.append("`te-wheel repack --repair` mends what takes no guess")
    mends = "; ".join(options) if codes <= DISAGREEMENTS | REPAIRABLE else ""
    raise WheelError([f"{wheel.path.name}: {finding}" for finding in blocking], hint=mends or None)


def _could_sync(wheel: Wheel) -> bool:
    if wheel.metadata is None or wheel.wheel is None:
        return False
    return not any(finding.blocks for finding in wheel.header_findings(None, wheel.metadata, wheel.wheel))


class _Mending:
    """One wheel, its parts as they are mended one after the other, and what is left that cannot be."""

    def __init__(self, wheel: Wheel, edit: WheelEdit, *, hashes: bool) -> None:
        self._wheel = wheel
        self._edit = edit
        self._sync = edit.sync
        self._repair = edit.repair
        self._members = tuple(wheel.archive.members)
        self._changes: tuple[Change, ...] = ()
        self._name, self._metadata, self._header = wheel.name, wheel.metadata, wheel.wheel
        self._record = wheel.record
        findings = [finding for finding in _findings(wheel, hashes=hashes and not edit.repair) if finding.blocks]
        self._left: list[Finding] = []
        # What the headers say, as told from lines that are none; it is looked at again once they are mended.
        self._of_headers: list[Finding] = []
        if wheel.metadata is not None and wheel.wheel is not None:
            self._of_headers = wheel.header_findings(wheel.name, wheel.metadata, wheel.wheel)
        self._settle_headers()
        self._left = [finding for finding in findings if self._stays(finding)] + self._left
        if edit.repair and all(finding.code.startswith(_NAMES_AND_HEADERS) for finding in self._left):
            self._settle_members(hashes)

    def result(self) -> Mended:
        """The mended wheel.

        Raises:
            WheelError: with all that is left.
        """
        wheel = self._wheel
        _refuse(wheel, dict.fromkeys(self._left), self._edit)
        assert self._name
        assert wheel.dist_info
        assert wheel.metadata
        assert wheel.wheel
        assert self._metadata
        assert self._header
        assert self._record
        project = (self._metadata.get("Name") or "").strip()
        sound = SoundWheel(
            wheel.path, wheel.archive, self._name, project, wheel.dist_info, wheel.data, self._metadata,
            self._header, self._record,
        )  # fmt: skip
        return Mended(sound, wheel.metadata, wheel.wheel, self._members, self._changes)

    def _settle_headers(self) -> None:
        """Mend METADATA and WHEEL, settle the name; what they have wrong after that is left."""
        if self._metadata is None or self._header is None:
            return
        if self._repair:
            from build_tools.wheels.repair import repair_metadata, repair_wheel

            self._metadata = repair_metadata(self._metadata)
            self._header = repair_wheel(self._header, self._name if self._sync is None else None)
        if self._sync is not None:
            # The side that loses must still be readable; only its tags and build tag may be anything.
            self._left = [
                finding
                for finding in self._wheel.header_findings(None, self._metadata, self._header)
                if finding.blocks and not (self._sync == "filename" and finding.code in ("wheel-tags", "wheel-build"))
            ]
            if not self._left:
                self._follow(self._metadata, self._header)
        if not self._left:
            again = self._wheel.header_findings(self._name, self._metadata, self._header)
            self._left = [finding for finding in again if finding.blocks]

    def _follow(self, metadata: Headers, header: Headers) -> None:
        from build_tools.wheels.sync import follow_filename, follow_metadata, stated_build

        wheel = self._wheel
        if self._sync == "metadata":
            if wheel.name is None and wheel.member("variant.json") in wheel.archive.by_name:
                message = "the variant label stands in the file name alone, and that cannot be read"
                self._left.append(Finding("filename", message))
                return
            variant = wheel.name.variant if wheel.name else None
            self._attempt("wheel-build", partial(stated_build, header))
            agreed = self._attempt("wheel-tags", partial(follow_metadata, metadata, header, variant))
            if agreed is not None:
                self._name, self._metadata, self._header = agreed
        elif wheel.name is not None:
            self._name, self._metadata, self._header = follow_filename(wheel.name, metadata, header)

    def _attempt(self, code: str, read: Callable[[], T]) -> T | None:
        try:
            return read()
        except ReleaseError as error:
            known = {finding.message for finding in self._left}
            where = self._wheel.member("WHEEL")
            self._left += [Finding(code, fault, where) for fault in error.faults if fault not in known]
            return None

    def _stays(self, finding: Finding) -> bool:
        """Whether a finding of the wheel, headers apart, is still one; :attr:`_left` holds those of the headers."""
        code = finding.code
        if code.startswith(("metadata-", "wheel-")):
            return finding not in self._of_headers
        if code == "filename":
            return self._name is None
        if code == "data-name" and len(self._wheel.data) > 1:
            return not self._repair
        if code in ("dist-info-name", "data-name"):
            # Named after the file name and METADATA, which must agree; all that disagrees is told together.
            return not (self._sync or self._repair) or any(left.code in DISAGREEMENTS for left in self._left)
        if code == "dist-info-file" and self._repair:
            lost = self._wheel.member("RECORD") not in self._wheel.archive.by_name
            return not (lost and self._metadata and self._header)
        return not (self._repair and code in REPAIRABLE)

    def _settle_members(self, hashes: bool) -> None:
        from build_tools.wheels.repair import Repair

        repair = Repair(self._wheel, hashes=hashes)
        self._members, self._record = repair.members, repair.record
        self._changes = tuple(repair.changes)
        self._left += repair.findings
