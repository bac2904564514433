"""No finding is lost because another was found: reading goes on wherever something can still be read."""

from __future__ import annotations

import struct
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from build_tools.wheels import check_wheel
from tests.build_tools.wheel_factory import PACKAGE, STORED, Archive, Member, make_wheel, metadata_text, wheel_text


@dataclass(slots=True)
class Parts:
    """The parts of the plain wheel, for defects to change."""

    metadata: bytes = field(default_factory=lambda: metadata_text().encode())
    wheel: bytes = field(default_factory=lambda: wheel_text().encode())
    files: dict[str, Any] = field(default_factory=lambda: dict(PACKAGE))
    info: dict[str, Any] = field(default_factory=dict)
    rows: list[Callable[[list[list[str]]], list[list[str]]]] = field(default_factory=list)
    archive: dict[str, Any] = field(default_factory=dict)

    def header(self, line: bytes) -> None:
        self.metadata = self.metadata.replace(b"Summary:", line + b"\nSummary:", 1)

    def make(self, folder: Path) -> Path:
        def record(rows: list[list[str]]) -> list[list[str]]:
            for change in self.rows:
                rows = change(rows)
            return rows

        return make_wheel(
            folder,
            metadata=self.metadata,
            wheel=self.wheel,
            files=self.files,
            dist_info_files=self.info,
            record=record,
            archive=Archive(**self.archive),
        )


def _file(parts: Parts, name: str, member: object = "x") -> None:
    parts.files[name] = member


DEFECTS: list[tuple[str, Callable[[Parts], object]]] = [
    ("metadata-invalid", lambda p: p.header(b"no header")),
    ("metadata-invalid", lambda p: p.header(b"Author: \xe9")),
    ("metadata-value", lambda p: p.header(b"Requires-Dist: >>1")),
    ("metadata-name", lambda p: setattr(p, "metadata", p.metadata.replace(b"Name: demo", b"Name: other"))),
    ("metadata-version-field", lambda p: setattr(p, "metadata", p.metadata.replace(b"Version: 1.0", b"Version: 1.0_"))),
    ("metadata-field-version", lambda p: p.header(b"Dynamic: Summary")),
    ("wheel-invalid", lambda p: setattr(p, "wheel", p.wheel + b"no header\n")),
    ("wheel-tags", lambda p: setattr(p, "wheel", p.wheel + b"Tag: py3-none\n")),
    ("wheel-build", lambda p: setattr(p, "wheel", p.wheel + b"Build: 1\n")),
    ("wheel-root", lambda p: setattr(p, "wheel", p.wheel.replace(b"Purelib: true", b"Purelib: maybe"))),
    ("dist-info-count", lambda p: _file(p, "other-1.0.dist-info/METADATA")),
    ("data-name", lambda p: _file(p, "other-1.0.data/scripts/x")),
    ("data-scheme", lambda p: _file(p, "demo-1.0.data/x")),
    ("data-scripts", lambda p: _file(p, "demo-1.0.data/scripts/a/b")),
    ("data-conflict", lambda p: _file(p, "demo-1.0.data/purelib/demo/__init__.py")),
    ("entry-points", lambda p: p.info.update({"entry_points.txt": "x"})),
    ("variant-json", lambda p: p.info.update({"variant.json": "x"})),
    ("zip-unsafe-name", lambda p: _file(p, "../x")),
    ("zip-case-collision", lambda p: _file(p, "Demo/__init__.py")),
    ("zip-header-mismatch", lambda p: _file(p, "demo/h", Member("x", local_method=STORED))),
    ("zip-encrypted", lambda p: _file(p, "demo/e", Member("x", encrypted=True))),
    ("zip-data", lambda p: _file(p, "demo/c", Member("x", crc=1))),
    ("zip-not-a-zip", lambda p: p.archive.update(disk=1)),
    ("zip-trailing-data", lambda p: p.archive.update(trailing=b"x")),
    ("zip-prefix", lambda p: p.archive.update(prefix=b"x")),
    ("record-invalid", lambda p: p.rows.append(lambda rows: [["x"], *rows])),
    ("record-path", lambda p: p.rows.append(lambda rows: [["../y", "", ""], *rows])),
    ("record-missing-member", lambda p: p.rows.append(lambda rows: [["gone", "sha256=", "1"], *rows])),
    (
        "record-weak-digest",
        lambda p: p.rows.append(lambda rows: [[r[0], "md5=x", r[2]] if len(r) == 3 and r[2] else r for r in rows]),
    ),
]


@settings(max_examples=150, deadline=None)
@given(st.sets(st.sampled_from(range(len(DEFECTS))), min_size=2, max_size=8))
def test_every_one_of_many_defects_is_found(chosen: set[int]) -> None:
    parts = Parts()
    for number in sorted(chosen):
        DEFECTS[number][1](parts)
    with tempfile.TemporaryDirectory() as folder:
        found = {finding.code for finding in check_wheel(parts.make(Path(folder)), hashes=True)}
    assert {DEFECTS[number][0] for number in chosen} <= found


def codes(wheel: Path) -> set[str]:
    return {finding.code for finding in check_wheel(wheel, hashes=True)}


def test_a_file_name_that_is_none_leaves_the_dist_info_to_hold_all_against(tmp_path: Path) -> None:
    wheel = make_wheel(tmp_path, filename="demo.whl", metadata=metadata_text("other", "2.0"))
    assert {"filename", "metadata-name", "metadata-version-field"} <= codes(wheel)


def test_of_several_dist_infos_the_one_of_the_file_name_is_read(tmp_path: Path) -> None:
    files = {"a-1.dist-info/METADATA": "x", **PACKAGE}
    wheel = make_wheel(tmp_path, files=files, metadata=metadata_text(version="2.0"), record=lambda rows: rows[2:])
    assert {"dist-info-count", "metadata-version-field", "record-missing-row"} <= codes(wheel)


def test_without_a_dist_info_the_rest_is_checked(tmp_path: Path) -> None:
    files = {**PACKAGE, "demo-1.0.data/x": "", "demo/aux.py": ""}
    wheel = make_wheel(tmp_path, files=files, omit=["METADATA", "WHEEL", "RECORD"])
    assert {"dist-info-count", "data-scheme", "zip-reserved-name"} <= codes(wheel)


def test_a_file_that_is_no_zip_has_its_name_checked_too(tmp_path: Path) -> None:
    wheel = tmp_path / "Demo-1.0-py3-none-any.whl"
    wheel.write_bytes(b"<html>")
    assert codes(wheel) == {"zip-not-a-zip", "filename-spelling"}


def test_each_of_several_versions_is_held_against_the_file_name(tmp_path: Path) -> None:
    metadata = metadata_text().replace("Version: 1.0", "Version: 1.1\nVersion: x")
    messages = [f.message for f in check_wheel(make_wheel(tmp_path, metadata=metadata))]
    assert any("2 times" in message for message in messages)
    assert any("'1.1' disagrees" in message for message in messages)
    assert any("invalid version 'x'" in message for message in messages)


def test_a_member_whose_crc_is_wrong_has_its_digest_compared_too(tmp_path: Path) -> None:
    wheel = make_wheel(
        tmp_path,
        files={"demo/x": Member("x", crc=1)},
        record=lambda rows: [[rows[0][0], rows[1][1], rows[0][2]], *rows[1:]],
    )
    assert codes(wheel) == {"zip-data", "record-digest"}


@pytest.mark.parametrize("broken", [b"\0" * 4, b"PK\6\6"])
def test_a_zip64_record_that_is_broken_does_not_hide_members_that_need_none(broken: bytes, tmp_path: Path) -> None:
    wheel = make_wheel(tmp_path, metadata=metadata_text(version="2.0"))
    raw = wheel.read_bytes()
    locator = b"PK\6\7" + bytes(12) + b"\1\0\0\0"
    wheel.write_bytes(raw[:-22] + broken + bytes(52) + locator + raw[-22:])
    found = codes(wheel)
    assert "metadata-version-field" in found
    assert found & {"zip-truncated", "zip-header-mismatch"}


@pytest.mark.parametrize("offset", [2**63 - 20, 2**63, 2**64 - 1])
def test_a_member_that_starts_farther_than_any_file_reaches_is_found(offset: int, tmp_path: Path) -> None:
    far = Member(offset=0xFFFFFFFF, extra=struct.pack("<HHQ", 1, 8, offset))
    findings = check_wheel(make_wheel(tmp_path, files={**PACKAGE, "demo/far.py": far}), hashes=True)
    assert f"demo/far.py: no local header at byte {offset} [zip-header-mismatch]" in map(str, findings)


def test_what_is_invalid_in_a_record_that_is_no_utf_8_is_found(tmp_path: Path) -> None:
    record = b"\xe9,,\ndemo/__init__.py,md5=x,1\n"
    assert {"record-invalid", "record-weak-digest", "record-size", "record-missing-row"} <= codes(
        make_wheel(tmp_path, record=record)
    )
