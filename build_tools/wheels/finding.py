"""One rule that a file breaks, and where; the rules stand in :mod:`build_tools.wheels.rules`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple

from build_tools.wheels.limits import MAX_FINDINGS

if TYPE_CHECKING:
    from build_tools.wheels.rules import Rule, Severity


class Finding(NamedTuple):
    """One breach of one rule.

    Attributes:
        code: the rule's stable code, such as ``record-missing-row``.
        message: what was met and what was expected, one sentence.
        member: the archive member concerned, or ``None`` for the file as a whole.
        hint: what mends it here, where that is not what mends it elsewhere.
    """

    code: str
    message: str
    member: str | None = None
    hint: str | None = None

    @property
    def rule(self) -> Rule:
        """The rule that is broken."""
        from build_tools.wheels.rules import RULES  # a table that no sound wheel asks for

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
    def mend(self) -> str:
        """What to run to mend it."""
        return self.hint or self.rule.hint

    @property
    def facts(self) -> dict[str, str | None]:
        """The finding for programs: code, severity, message, member, rule, specification and hint."""
        return {
            "code": self.code,
            "severity": str(self.severity),
            "message": self.message,
            "member": self.member,
            "rule": f"{self.rule.source}: {self.rule.summary}",
            "specification": self.rule.specification,
            "hint": self.mend,
        }

    def __str__(self) -> str:
        """One line; a member name that holds control characters is quoted."""
        if self.member is None or self.message.startswith(self.member):
            return f"{self.message} [{self.code}]"
        member = self.member if self.member.isprintable() else repr(self.member)
        return f"{member}: {self.message} [{self.code}]"


class Findings:
    """Collects findings in bounded memory: of one code so many are kept, of the others the number."""

    def __init__(self) -> None:
        self._kept: list[Finding] = []
        self._counts: dict[str, int] = {}

    def add(self, code: str, message: str, member: str | None = None, hint: str | None = None) -> None:
        """One more finding."""
        count = self._counts[code] = self._counts.get(code, 0) + 1
        if count <= MAX_FINDINGS:
            self._kept.append(Finding(code, message, member, hint))

    def extend(self, findings: Iterable[Finding]) -> None:
        """All of ``findings``."""
        for finding in findings:
            self.add(*finding)

    def all(self) -> list[Finding]:
        """What was kept, and how many more of each code there are."""
        more = [
            Finding(code, f"and {count - MAX_FINDINGS} more of this kind")
            for code, count in self._counts.items()
            if count > MAX_FINDINGS
        ]
        return self._kept + more
