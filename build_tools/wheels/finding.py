"""One rule that a wheel breaks, and the table of all rules that are checked.

The table is the one list of codes: ``te-wheel check`` prints them, ``repack`` refuses a wheel
for those that *block*, and the README shows the same list (a test compares them).

Specifications: VS version specifiers, BDF binary distribution format, RIP recording installed
projects, CM core metadata, ZIP the archive rules that indexes and installers enforce.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum
from typing import NamedTuple


class Severity(StrEnum):
    """``ERROR`` makes ``te-wheel check`` fail; ``WARNING`` does so with ``--strict`` only."""

    ERROR = "error"
    WARNING = "warning"


class Rule(NamedTuple):
    """A rule: its stable code, where it stands, and what happens to a wheel that breaks it."""

    code: str
    source: str
    summary: str
    severity: Severity = Severity.ERROR
    blocks: bool = True
    """Whether ``repack`` refuses the wheel: it could not be rewritten without guessing."""


class Finding(NamedTuple):
    """One breach of one rule.

    Attributes:
        code: the rule's stable code, such as ``record-missing-row``.
        message: what was met and what was expected, one sentence.
        member: the archive member concerned, or ``None`` for the wheel as a whole.
    """

    code: str
    message: str
    member: str | None = None

    @property
    def rule(self) -> Rule:
        """The rule that is broken."""
        return RULES[self.code]

    @property
    def severity(self) -> Severity:
        """Whether `te-wheel check` fails."""
        return self.rule.severity

    @property
    def blocks(self) -> bool:
        """Whether `te-wheel repack` refuses the wheel."""
        return self.rule.blocks

    @property
    def facts(self) -> dict[str, str | None]:
        """The finding for programs: ``code``, ``severity``, ``message``, ``member`` and ``rule``."""
        return {
            "code": self.code,
            "severity": str(self.severity),
            "message": self.message,
            "member": self.member,
            "rule": f"{self.rule.source}: {self.rule.summary}",
        }

    def __str__(self) -> str:
        """One line; a member name that holds control characters is quoted."""
        if self.member is None or self.message.startswith(self.member):
            return f"{self.message} [{self.code}]"
        member = self.member if self.member.isprintable() else repr(self.member)
        return f"{member}: {self.message} [{self.code}]"


def _table(rules: Iterable[Rule]) -> dict[str, Rule]:
    return {rule.code: rule for rule in rules}


def _warning(code: str, source: str, summary: str) -> Rule:
    return Rule(code, source, summary, Severity.WARNING, blocks=False)


RULES: dict[str, Rule] = _table(
    [
        # The archive
        Rule("zip-not-a-zip", "ZIP", "the file is a zip archive"),
        Rule("zip-truncated", "ZIP", "the archive is whole"),
        Rule("zip-trailing-data", "ZIP", "nothing follows the end record"),
        Rule("zip-prefix", "ZIP", "nothing stands before the first member"),
        Rule("zip-gap", "ZIP", "no unclaimed bytes stand between members", blocks=False),
        Rule("zip-overlap", "ZIP", "no two members share bytes"),
        Rule("zip-duplicate", "ZIP", "no member stands twice"),
        Rule("zip-header-mismatch", "ZIP", "local and central header agree"),
        Rule("zip-encrypted", "BDF", "no member is encrypted"),
        Rule("zip-method", "BDF", "members are stored or deflated"),
        Rule("zip-flags", "ZIP", "the flags of local and central header agree", blocks=False),
        Rule("zip-extra", "ZIP", "extra fields are whole, ZIP64 stands only where a number needs it", blocks=False),
        Rule("zip-version", "ZIP", "no member needs a zip version above 4.5", blocks=False),
        Rule("zip-name-encoding", "ZIP", "a name that is not ASCII is UTF-8 and flagged so"),
        Rule("zip-unsafe-name", "ZIP", "every name stays inside the archive, on every system"),
        Rule("zip-odd-name", "ZIP", "names have no invisible characters and no part over 255 bytes", blocks=False),
        Rule("zip-name-conflict", "ZIP", "no file is also a folder or a symlink with members below it"),
        Rule("zip-symlink-escape", "ZIP", "a symlink stays inside the archive"),
        Rule("zip-data", "ZIP", "the data of a member inflates to its size and CRC"),
        Rule("zip-case-collision", "ZIP", "no two names differ by case alone", blocks=False),
        _warning("zip-not-clean", "ZIP", "no data descriptors, comments or extra fields"),
        _warning("zip-symlink", "ZIP", "installers unpack symlinks as small text files"),
        # Names
        Rule("filename", "BDF", "the file name is {name}-{version}(-{build})?-{python}-{abi}-{platform}.whl"),
        _warning("filename-spelling", "BDF", "the file name is in normal form"),
        Rule("dist-info-count", "BDF", "exactly one top-level .dist-info"),
        Rule("dist-info-file", "BDF", ".dist-info holds METADATA, WHEEL and RECORD"),
        Rule("dist-info-name", "BDF", ".dist-info bears the name and version of the file name"),
        _warning("dist-info-spelling", "BDF", ".dist-info is in normal form"),
        _warning("dist-info-order", "BDF", ".dist-info stands last in the archive, RECORD last of all"),
        Rule("data-name", "BDF", "at most one .data, with the name and version of the file name"),
        Rule("data-scheme", "BDF", ".data holds purelib, platlib, headers, scripts and data alone", blocks=False),
        _warning("data-spelling", "BDF", ".data is in normal form"),
        # METADATA and WHEEL
        Rule("metadata-invalid", "CM", "METADATA is UTF-8 header lines, a blank line, then the description"),
        Rule("metadata-version", "CM", "Metadata-Version stands once and its major version is known"),
        _warning("metadata-version-new", "CM", "Metadata-Version is one that this tool knows"),
        Rule("metadata-name", "CM", "Name stands once, is valid, and agrees with the file name"),
        Rule("metadata-version-field", "VS", "Version stands once, is valid, and agrees with the file name"),
        _warning("metadata-version-spelling", "VS", "Version is in normal form"),
        Rule("metadata-value", "CM", "requirements, extras and content types are valid", blocks=False),
        Rule("metadata-field-repeated", "CM", "a field that stands once at most does so", blocks=False),
        Rule("wheel-invalid", "BDF", "WHEEL is header lines with a known Wheel-Version"),
        Rule("wheel-tags", "BDF", "the Tag lines of WHEEL are the tags of the file name"),
        _warning("wheel-tags-spelling", "BDF", "one Tag line for each tag, none blank, none twice"),
        Rule("wheel-build", "BDF", "Build in WHEEL is the build tag of the file name"),
        Rule("wheel-root", "BDF", "Root-Is-Purelib stands once and is true or false", blocks=False),
        # RECORD
        Rule("record-invalid", "RIP", "RECORD is UTF-8 CSV with three fields in every row"),
        Rule("record-blank-line", "RIP", "RECORD has no blank line", blocks=False),
        Rule("record-path", "RIP", "every path of RECORD is relative and stays inside"),
        Rule("record-duplicate", "RIP", "no path stands twice in RECORD"),
        Rule("record-missing-row", "RIP", "every file has a row in RECORD"),
        Rule("record-missing-member", "RIP", "every row of RECORD has a file"),
        Rule("record-directory", "RIP", "RECORD lists no directories"),
        Rule("record-no-digest", "RIP", "every file but RECORD has a digest"),
        Rule("record-weak-digest", "RIP", "digests are sha256 or stronger"),
        Rule("record-digest-form", "RIP", "digests are url-safe base64 without padding, of the right length"),
        Rule("record-size", "RIP", "the size in RECORD is the size of the file"),
        _warning("record-no-size", "RIP", "every file but RECORD has a size"),
        Rule("record-own-row", "RIP", "the row of RECORD itself has neither digest nor size"),
        Rule("record-digest", "RIP", "the digest in RECORD is that of the file"),
        _warning("record-signature", "RIP", "RECORD.jws and RECORD.p7s are deprecated (PEP 815)"),
    ]
)
