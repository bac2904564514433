"""What ``te-wheel check`` finds: every defect by its stable code, and nothing in a wheel without fault."""

from __future__ import annotations

import csv
import io
from pathlib import Path

import pytest

from build_tools.check_sdist import check_sdist, is_sdist
from build_tools.wheels import Finding, check_wheel
from build_tools.wheels.rules import RULES, Severity
from tests.build_tools.broken_contents import CONTENTS, REFUSED_BY_PYPI, RIGHT_SBOM
from tests.build_tools.broken_sdists import SDISTS
from tests.build_tools.broken_wheels import BROKEN as WHEELS
from tests.build_tools.broken_wheels import INFO, MANY_RECORD_FAULTS, Broken
from tests.build_tools.command_line import te_wheel
from tests.build_tools.rewrite_cases import CASES
from tests.build_tools.wheel_factory import PACKAGE, make_wheel, metadata_text, record_text

BROKEN = [*WHEELS, *CONTENTS, *REFUSED_BY_PYPI, *SDISTS]

every_defect = pytest.mark.parametrize("broken", BROKEN, ids=[broken.id for broken in BROKEN])


def check(path: Path, *, hashes: bool = False, pypi: bool = False) -> list[Finding]:
    return check_sdist(path, pypi=pypi) if is_sdist(path) else check_wheel(path, hashes=hashes, pypi=pypi)


def test_every_rule_has_a_file_that_breaks_it() -> None:
    assert {broken.code for broken in BROKEN} == set(RULES)


def test_every_rule_says_where_it_stands_and_what_mends_a_breach() -> None:
    for rule in RULES.values():
        assert rule.hint, rule.code
        assert rule.specification, rule.code


@every_defect
def test_a_defect_is_found_under_its_code_with_the_member_named(broken: Broken, tmp_path: Path) -> None:
    findings = check(broken.make(tmp_path), **broken.options)
    found = [str(finding) for finding in findings if finding.code == broken.code]
    assert found, [str(finding) for finding in findings]
    for text in broken.named:
        assert any(text in line for line in found), found


@every_defect
def test_the_command_tells_the_same_and_fails_on_errors_alone(broken: Broken, tmp_path: Path) -> None:
    wheel = broken.make(tmp_path)
    flags = broken.flags
    outcome = te_wheel("check", wheel, "--json", *flags)
    (report,) = outcome.json
    assert report["path"] == str(wheel)
    findings = report["findings"]
    keys = {"code", "severity", "message", "member", "rule", "specification", "hint"}
    assert all(set(finding) == keys for finding in findings)
    assert broken.code in {finding["code"] for finding in findings}
    assert all(finding["severity"] == RULES[finding["code"]].severity for finding in findings)
    errors = any(finding["severity"] == "error" for finding in findings)
    assert outcome.code == (1 if errors else 0)
    assert errors or RULES[broken.code].severity is Severity.WARNING
    assert te_wheel("check", wheel, "--strict", *flags).code == 1
    plain = te_wheel("check", wheel, *flags)
    assert broken.code in plain.out
    assert f"{broken.code}" in "".join(line for line in plain.err.splitlines() if line.startswith("hint: "))


@pytest.mark.parametrize("broken", [b for b in BROKEN if b.flags], ids=[b.id for b in BROKEN if b.flags])
def test_what_is_found_only_when_asked_for_is_not_found_else(broken: Broken, tmp_path: Path) -> None:
    assert broken.code not in {finding.code for finding in check(broken.make(tmp_path))}


def test_the_plain_wheel_has_no_finding_at_all(tmp_path: Path) -> None:
    wheel = make_wheel(tmp_path)
    assert check_wheel(wheel, hashes=True, pypi=True) == []
    assert te_wheel("check", wheel, "--strict", "--hashes", "--pypi").code == 0
    assert te_wheel("check", wheel, "--json").json == [{"path": str(wheel), "findings": []}]


@pytest.mark.parametrize("case", CASES, ids=[case.id for case in CASES])
def test_no_wheel_of_the_rewrite_cases_has_an_error(case: object, tmp_path: Path) -> None:
    findings = check_wheel(case.make(tmp_path), hashes=True)  # type: ignore[attr-defined]
    assert [str(finding) for finding in findings if finding.severity is Severity.ERROR] == []


@pytest.mark.parametrize(
    ("algorithm", "line_end"), [("sha256", "\r\n"), ("sha384", "\n"), ("sha512", "\n"), ("sha512", "\r\n")]
)
def test_stronger_digests_and_crlf_are_right_too(algorithm: str, line_end: str, tmp_path: Path) -> None:
    from tests.build_tools.wheel_factory import digest

    files = {"demo/__init__.py": b"VALUE = 1\n"}
    plain = make_wheel(tmp_path / "plain", files=files)
    rows = [[name, digest(data, algorithm), str(len(data))] for name, data in files.items()]
    rows += [row for row in _rows(plain) if row[0].startswith(INFO)]
    wheel = make_wheel(tmp_path, files=files, record=record_text(rows, line_end))
    assert check_wheel(wheel, hashes=True) == []


def test_every_fault_of_a_record_is_named_in_one_run(tmp_path: Path) -> None:
    findings = check_wheel(make_wheel(tmp_path, record=MANY_RECORD_FAULTS))
    assert sorted(finding.code for finding in findings) == [
        "record-invalid",
        "record-invalid",
        "record-missing-member",
        "record-missing-row",
        "record-no-digest",
        "record-no-size",
        "record-path",
        "record-weak-digest",
    ]


def test_faults_of_every_part_are_found_in_one_run(tmp_path: Path) -> None:
    wheel = make_wheel(
        tmp_path,
        files={**PACKAGE, "../evil.py": "x", "Demo-2.data/scripts/x": "x"},
        metadata=metadata_text().replace("Name: demo", "Name: other"),
        wheel="Wheel-Version: 9.0\nTag: py2-none-any\n",
        record=lambda rows: rows[1:],
    )
    codes = {finding.code for finding in check_wheel(wheel)}
    assert codes >= {
        "zip-unsafe-name",
        "data-name",
        "metadata-name",
        "wheel-invalid",
        "wheel-root",
        "wheel-tags",
        "record-missing-row",
    }


def test_an_sbom_of_the_wheel_and_of_others_has_no_finding(tmp_path: Path) -> None:
    import json

    assert check_wheel(make_wheel(tmp_path, dist_info_files={"sboms/x.cdx.json": json.dumps(RIGHT_SBOM)})) == []


def test_a_folded_value_is_no_break_of_a_line(tmp_path: Path) -> None:
    assert check_wheel(make_wheel(tmp_path, headers=["License: a", "\tb", "  c"])) == []


def test_a_header_of_the_description_is_no_header(tmp_path: Path) -> None:
    description = "Name: other\nVersion: 9\nFrom me\n\nName: third\n"
    assert check_wheel(make_wheel(tmp_path, description=description)) == []


def test_a_nested_dist_info_and_a_database_are_data(tmp_path: Path) -> None:
    files = {**PACKAGE, "demo/_vendor/bar-2.0.dist-info/METADATA": "x", "demo-1.0.database/x": "", "x-9.data.txt": ""}
    assert check_wheel(make_wheel(tmp_path, files=files)) == []


def test_of_many_files_each_is_reported_and_one_that_is_not_there_is_exit_2(tmp_path: Path) -> None:
    good, bad = make_wheel(tmp_path, name="good"), make_wheel(tmp_path, name="bad", omit=["RECORD"])
    assert te_wheel("check", good, good).code == 0
    both = te_wheel("check", good, bad, "--json")
    assert both.code == 1
    assert [(report["path"], bool(report["findings"])) for report in both.json] == [
        (str(good), False),
        (str(bad), True),
    ]
    missing = te_wheel("check", good, tmp_path / "missing.whl", bad, "--json")
    assert missing.code == 2
    assert ["error" in report for report in missing.json] == [False, True, False]
    assert "missing.whl" in missing.errors[0]


def _rows(wheel: Path) -> list[list[str]]:
    import zipfile

    with zipfile.ZipFile(wheel) as archive:
        text = archive.read(f"{INFO}/RECORD").decode()
    return list(csv.reader(io.StringIO(text)))
