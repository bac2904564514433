"""The judges in one matrix: where ``te-wheel check`` finds nothing, every judge takes the wheel and each rewrite of it.

So where a judge refuses, check has a finding. What a judge refuses by an opinion of its own stands in EXCEPTIONS.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from build_tools.errors import ReleaseError
from build_tools.wheels import Severity, check_wheel, repack
from tests.acceptance.judges import Verdict
from tests.acceptance.panel import NAMES, ask_all
from tests.build_tools.test_properties import edits
from tests.build_tools.whole_wheels import publishable

# By hand: TE_THOROUGH=1 asks about hundreds.
WHEELS = 800 if os.environ.get("TE_THOROUGH") else 60


@dataclass(frozen=True, slots=True)
class Objection:
    """An objection that is no fault of a wheel: who makes it, the words, and why it is none."""

    judge: str
    words: str
    reason: str


EXCEPTIONS = [
    Objection(
        "check-wheel-contents", r"W\d\d\d:", "a matter of taste: what the archive holds, not whether it is right"
    ),
    Objection(
        "check-wheel-contents", r"is (pure|plat)lib yet contains \*\.data/\1lib", "which the specification allows"
    ),
    Objection("twine", r"long_description", "a wheel without a description is right, if dull"),
    Objection("twine", r"Invalid distribution metadata: .*unrecognized or malformed field", "unknown headers are kept"),
    Objection("pip", r"is not a supported wheel on this platform", "a wheel for another machine"),
    Objection("uv", r"not compatible with the current|no wheels with a matching", "a wheel for another machine"),
    Objection("auditwheel", r"does not look like a platform wheel|no ELF", "there is nothing to audit in it"),
]


def excused(judge: str, verdict: Verdict) -> bool:
    said = " ".join(verdict.said.split())  # some wrap their lines
    return verdict.accepted or any(each.judge == judge and re.search(each.words, said) for each in EXCEPTIONS)


@pytest.fixture(scope="module")
def faultless(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Path]:
    """Wheels in which check finds no error: made ones, and what rewrites make of them."""
    root = tmp_path_factory.mktemp("matrix")
    found: dict[str, Path] = {}
    tried = refused = 0

    @settings(
        max_examples=WHEELS,
        derandomize=True,
        database=None,
        phases=[Phase.generate],
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(publishable(), edits(), st.booleans())
    def collect(wanted: object, edit: object, rewritten: bool) -> None:
        nonlocal tried, refused
        tried += 1
        folder = root / str(tried)
        wheel = wanted.make(folder)  # type: ignore[attr-defined]
        if rewritten:
            try:
                wheel = repack(wheel, folder / "out", edit).path  # type: ignore[arg-type]
            except ReleaseError:
                refused += 1
                return
        if any(finding.severity is Severity.ERROR for finding in check_wheel(wheel, hashes=True)):
            refused += 1
        else:
            found[f"{tried}{' rewritten' if rewritten else ''}: {wheel.name}"] = wheel

    collect()
    assert len(found) >= WHEELS // 6
    assert refused >= WHEELS // 10
    return found


@pytest.mark.parametrize("judge", NAMES)
def test_where_check_finds_no_error_a_judge_takes_the_wheel(
    judge: str, faultless: Mapping[str, Path], tmp_path: Path
) -> None:
    verdicts = ask_all(judge, faultless, tmp_path)
    refused = [f"{key}\n{verdict.said}" for key, verdict in verdicts.items() if not excused(judge, verdict)]
    assert not refused, f"{len(refused)} of {len(verdicts)}\n" + "\n".join(refused[:5])
