"""``repack --repair``: what takes no guess is mended and told, all else is refused and named."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from build_tools.errors import EditError, WheelError
from build_tools.wheels import Severity, WheelEdit, check_wheel, repack
from build_tools.wheels.mending import DISAGREEMENTS, REPAIRABLE
from build_tools.wheels.rules import RULES
from tests.build_tools.broken_wheels import BROKEN, INFO, MANY_RECORD_FAULTS, Broken
from tests.build_tools.command_line import Outcome, te_wheel
from tests.build_tools.test_refusals import repack_refused
from tests.build_tools.wheel_factory import (
    PACKAGE,
    Archive,
    Member,
    digest,
    directory,
    make_wheel,
    metadata_text,
    symlink,
    wheel_text,
)
from tests.build_tools.wheel_reader import content, headers, read_any, read_right, record_rows

RIGHT = digest(b"VALUE = 1\n")
HELLO = Member("#!python\nprint('hello')\n", mode=0o755)
GUESSES = {
    "two Metadata-Versions",
    "no Name",
    "an empty Name",
    "another Name",
    "an invalid Name",
    "no Version",
    "two Versions",
    "another Version",
    "an invalid Version",
    "another tag",
    "a tag of two parts",
    "a build tag in WHEEL alone",
    "three parts",
    "a build tag without a digit",
    "a second archive before the first",
    "the same member twice",
}
"""Entries of the corpus whose code can be mended in other wheels, not in these."""
BY_ITSELF = {"no RECORD", "another project's dist-info", "another version's dist-info", "a raw version", "two Names"}
"""Entries that the wheel itself tells how to mend, under codes that mostly need to be told."""


def is_mended(broken: Broken) -> bool:
    if broken.id in GUESSES:
        return False
    rule = RULES[broken.code]
    if broken.code in REPAIRABLE or broken.id in BY_ITSELF or rule.severity is Severity.WARNING:
        return True
    return broken.code in DISAGREEMENTS or broken.code == "record-blank-line"


MENDED = [broken for broken in BROKEN if is_mended(broken)]
LEFT = [broken for broken in BROKEN if not is_mended(broken)]


def repaired(wheel: Path, *options: str) -> tuple[Path, Outcome]:
    """The output of ``repack --repair``: without an error, and mended for good."""
    before = wheel.read_bytes()
    outcome = te_wheel("repack", wheel, "-o", wheel.parent / "out", "--repair", *options)
    assert outcome.code == 0, outcome.err
    output = Path(outcome.out.removesuffix("\n"))
    read_right(output)
    assert [str(f) for f in check_wheel(output, hashes=True) if f.severity is Severity.ERROR] == []
    assert wheel.read_bytes() == before
    again = repack(output, wheel.parent / "again", WheelEdit(repair=True))
    assert (again.changes, again.path.read_bytes()) == ((), output.read_bytes())
    return output, outcome


# The corpus


@pytest.mark.parametrize("broken", MENDED, ids=[broken.id for broken in MENDED])
def test_what_takes_no_guess_is_mended(broken: Broken, tmp_path: Path) -> None:
    repaired(broken.make(tmp_path / "in"), *(["--verify", "hashes"] if broken.hashes else []))


@pytest.mark.parametrize("broken", LEFT, ids=[broken.id for broken in LEFT])
def test_what_takes_a_guess_is_refused_and_named(broken: Broken, tmp_path: Path) -> None:
    options = ["--repair", *(["--verify", "hashes"] if broken.hashes else [])]
    outcome = repack_refused(broken.make(tmp_path / "in"), tmp_path / "out", *options)
    named = [error for error in outcome.errors if f"[{broken.code}]" in error]
    assert named, outcome.err
    for text in broken.named if broken.id != "a second archive before the first" else ():
        assert any(text in error for error in named), outcome.err


@pytest.mark.parametrize("broken", BROKEN, ids=[broken.id for broken in BROKEN])
def test_a_wheel_that_a_plain_rewrite_takes_comes_out_the_same(broken: Broken, tmp_path: Path) -> None:
    wheel = broken.make(tmp_path / "in")
    codes = {finding.code for finding in check_wheel(wheel)}
    # RECORD rows without a size are right, yet repaired; an archive with a gap is written anew by both.
    if any(RULES[code].severity is Severity.ERROR for code in codes) or "record-no-size" in codes:
        return
    plain = repack(wheel, tmp_path / "plain")
    made = repack(wheel, tmp_path / "out", WheelEdit(repair=True))
    assert (made.path.name, made.changes) == (plain.path.name, plain.changes)
    assert made.path.read_bytes() == plain.path.read_bytes()


# RECORD


def test_every_fault_of_a_record_is_mended_and_told(tmp_path: Path) -> None:
    wheel = make_wheel(tmp_path, record=MANY_RECORD_FAULTS)
    _, outcome = repaired(wheel)
    told = [line.strip() for line in outcome.err.splitlines() if line.startswith("  RECORD ")]
    assert len(told) == 7
    assert f"RECORD demo/__init__.py: 10 bytes, md5=x -> 10 bytes, {RIGHT}" in told
    for text in (
        "'/etc/x'",
        "demo/two",
        "demo/gone: - 5 bytes",
        "demo/five",
        "METADATA: no size, no digest ->",
        "WHEEL: +",
    ):
        assert any(text in line for line in told), (text, told)


def test_a_record_that_is_missing_is_made_from_the_members(tmp_path: Path) -> None:
    wheel = make_wheel(tmp_path, omit=["RECORD"], files={"demo/": directory(), **PACKAGE, "demo/a,b.txt": "x"})
    made, outcome = repaired(wheel)
    assert f"files {INFO}/RECORD: + made from the members" in outcome.err
    assert [row[0] for row in record_rows(read_right(made))] == [
        "demo/__init__.py", "demo/a,b.txt", f"{INFO}/METADATA", f"{INFO}/WHEEL", f"{INFO}/RECORD"
    ]  # fmt: skip


def test_rows_that_are_right_keep_their_bytes_and_their_order(tmp_path: Path) -> None:
    files = {"demo/__init__.py": b"1\n", "demo/b.py": b"2\n", "demo/c.py": b"3\n"}

    def record(rows: list[list[str]]) -> list[list[str]]:
        strong = ["demo/c.py", digest(b"3\n", "sha512"), "2"]
        return [strong, *rows[3:], ["demo/b.py", "", ""], rows[0]]

    made, outcome = repaired_rows(tmp_path, files=files, record=record)
    assert [row[0] for row in made] == [
        "demo/c.py", f"{INFO}/METADATA", f"{INFO}/WHEEL", f"{INFO}/RECORD", "demo/b.py", "demo/__init__.py"
    ]  # fmt: skip
    assert made[0][1] == digest(b"3\n", "sha512")
    assert outcome.err.count("  RECORD ") == 1


def repaired_rows(folder: Path, **description: Any) -> tuple[list[list[str]], Outcome]:
    """The rows of a repaired RECORD, in the form that was read."""
    wheel = make_wheel(folder, **description)
    outcome = te_wheel("repack", wheel, "-o", folder / "out", "--repair")
    assert outcome.code == 0, outcome.err
    return record_rows({read.name: read for read in read_any(Path(outcome.out.strip()))}), outcome


def test_a_wrong_digest_is_found_with_hashes_alone_and_told(tmp_path: Path) -> None:
    wrong = digest(b"other")
    wheel = make_wheel(tmp_path, record=lambda rows: [[rows[0][0], wrong, rows[0][2]], *rows[1:]])
    made = repack(wheel, tmp_path / "structure", WheelEdit(repair=True))
    assert made.changes == ()
    _, outcome = repaired(wheel, "--verify", "hashes")
    assert f"RECORD demo/__init__.py: 10 bytes, {wrong} -> 10 bytes, {RIGHT}" in outcome.err


def test_a_row_that_stands_twice_is_not_believed(tmp_path: Path) -> None:
    wheel = make_wheel(tmp_path, record=lambda rows: [[rows[0][0], digest(b"other"), rows[0][2]], *rows])
    _, outcome = repaired(wheel)
    assert "row 2 lists it again" in outcome.err
    assert f"-> 10 bytes, {RIGHT}" in outcome.err


def test_a_member_that_must_be_hashed_must_inflate(tmp_path: Path) -> None:
    files = {**PACKAGE, "demo/a.bin": Member(b"abc", crc=1)}
    wheel = make_wheel(tmp_path / "in", files=files, record=lambda rows: [row for row in rows if "a.bin" not in row[0]])
    (error,) = repack_refused(wheel, tmp_path / "out", "--repair").errors
    assert "demo/a.bin: its CRC" in error


def test_only_what_must_be_hashed_is_inflated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from build_tools.wheels.archive import Archive as Read

    files = {**PACKAGE, "demo/a.bin": b"a", "demo/b.bin": b"b", "demo/c.bin": b"c"}
    wheel = make_wheel(tmp_path, files=files, record=lambda rows: [row for row in rows if "b.bin" not in row[0]])
    inflated: list[str] = []
    chunks = Read.chunks

    def spy(self: Any, member: Any) -> Any:
        inflated.append(member.name)
        return chunks(self, member)

    monkeypatch.setattr(Read, "chunks", spy)
    repack(wheel, tmp_path / "out", WheelEdit(repair=True))
    assert {name for name in inflated if name.startswith("demo/")} == {"demo/b.bin"}


# The archive


def test_members_that_stand_twice_are_kept_once_where_they_are_the_same(tmp_path: Path) -> None:
    twice = ("demo/a.py", Member("x = 1\n", mode=0o755))
    wheel = make_wheel(tmp_path, files=[*PACKAGE.items(), twice, ("demo/b.py", "y\n"), twice])
    made, outcome = repaired(wheel)
    assert list(read_right(made))[:3] == ["demo/__init__.py", "demo/a.py", "demo/b.py"]
    assert "archive demo/a.py: stands 2 times, the same bytes -> once" in outcome.err


@pytest.mark.parametrize(
    ("other", "what"),
    [(Member("x = 2\n"), "bytes"), (Member("x = 1\n", mode=0o755), "modes"), (symlink("x = 1\n"), "modes")],
)
def test_members_of_one_name_that_differ_are_refused(other: Member, what: str, tmp_path: Path) -> None:
    files = [*PACKAGE.items(), ("demo/a.py", Member("x = 1\n")), ("demo/a.py", other)]
    outcome = repack_refused(make_wheel(tmp_path / "in", files=files), tmp_path / "out", "--repair")
    assert any(f"with other {what}" in error and "demo/a.py" in error for error in outcome.errors)


def test_what_stood_around_the_archive_is_dropped_and_told(tmp_path: Path) -> None:
    archive = Archive(prefix=b"#!/bin/sh\n", trailing=b"\n\n", every={"streamed": True, "comment": b"c"})
    wheel = make_wheel(tmp_path, archive=archive)
    made, outcome = repaired(wheel)
    assert "archive zip-prefix: - 10 bytes" in outcome.err
    assert "archive zip-trailing-data: - 2 bytes" in outcome.err
    assert made.read_bytes() == repack(make_wheel(tmp_path / "clean"), tmp_path / "plain").path.read_bytes()


# Folders


def test_data_folders_in_two_spellings_become_one(tmp_path: Path) -> None:
    files = {**PACKAGE, "demo-1.0.data/scripts/a": HELLO, "Demo-1.0.data/scripts/b": HELLO}
    made, outcome = repaired(make_wheel(tmp_path, files=files))
    assert "folder data: Demo-1.0.data -> demo-1.0.data" in outcome.err
    assert [name for name in read_right(made) if ".data/" in name] == [
        "demo-1.0.data/scripts/a",
        "demo-1.0.data/scripts/b",
    ]


@pytest.mark.parametrize(
    ("second", "named"),
    [
        ("Demo-1.0.data/scripts/a", "demo-1.0.data/scripts/a"),
        ("Demo-1.0.data/scripts/a/b", "nothing can stand below"),
        ("demo-1.1.data/scripts/b", "several wheels"),
        ("bar-1.0.data/scripts/b", "several wheels"),
        ("x.data/scripts/b", "dashes"),
    ],
)
def test_data_folders_that_are_no_one_folder_are_refused(second: str, named: str, tmp_path: Path) -> None:
    wheel = make_wheel(tmp_path / "in", files={**PACKAGE, "demo-1.0.data/scripts/a": HELLO, second: HELLO})
    outcome = repack_refused(wheel, tmp_path / "out", "--repair")
    assert any(named in error for error in outcome.errors), outcome.err


# METADATA and WHEEL


def test_lines_that_say_the_same_twice_become_one(tmp_path: Path) -> None:
    doubled = "".join(f"{line}\n{line}\n" for line in metadata_text().partition("\n\n")[0].splitlines())
    described = (
        wheel_text(build="1")
        .replace("Generator", "Generator: wheel_factory\nGenerator")
        .replace("Build: 1", "Build: 1\nBuild: 1")
    )
    wheel = make_wheel(
        tmp_path, build="1", metadata=doubled + "\nName: kept\n", wheel=described + "Tag: \nTag: PY3-none-any\n"
    )
    made, _ = repaired(wheel)
    members = read_right(made)
    assert content(members, "/METADATA").decode() == metadata_text(description="Name: kept\n")
    assert content(members, "/WHEEL").decode() == wheel_text(build="1")


def test_what_wheel_leaves_unsaid_is_taken_from_the_file_name(tmp_path: Path) -> None:
    wheel = make_wheel(tmp_path, build="7", wheel=wheel_text().replace("Tag: py3-none-any\n", "Build: \nTag:\n"))
    made, outcome = repaired(wheel)
    assert made.name == wheel.name
    described = headers(content(read_right(made), "/WHEEL"))
    assert (described["Build"], described["Tag"]) == ("7", "py3-none-any")
    assert "WHEEL Build" in outcome.err


def test_sides_that_disagree_need_to_be_told_which_one_wins(tmp_path: Path) -> None:
    files = {**PACKAGE, "demo-1.0.data/scripts/hello": HELLO}
    wheel = make_wheel(
        tmp_path / "in", filename="demo-1.0+cu130-py3-none-any.whl", files=files, record=lambda rows: rows[1:]
    )
    outcome = repack_refused(wheel, tmp_path / "out", "--repair")
    assert sorted(error.rpartition("[")[2] for error in outcome.errors) == [
        "data-name]", "dist-info-name]", "metadata-version-field]"
    ]  # fmt: skip
    assert "--sync" in outcome.err.splitlines()[-1]
    assert repaired(wheel, "--sync", "filename")[0].name == wheel.name
    assert repaired(wheel, "--sync", "metadata")[0].name == "demo-1.0-py3-none-any.whl"


def test_every_reason_is_named_in_one_run(tmp_path: Path) -> None:
    wheel = make_wheel(
        tmp_path / "in",
        files=[*PACKAGE.items(), ("demo/a.py", "1\n"), ("demo/a.py", "2\n"), ("demo/b.py", Member("b", crc=1))],
        metadata=metadata_text().replace("Name: demo", "Name: demo\nName: other"),
        record=lambda rows: [row for row in rows if row[0] != "demo/b.py"],
    )
    errors = repack_refused(wheel, tmp_path / "out", "--repair").errors
    assert len(errors) == 4  # of the two Names one is that of the file name
    for text in ("demo/a.py", "demo/b.py", "stands 2 times ('demo', 'other')", "Name 'other' disagrees"):
        assert any(text in error for error in errors)


def test_an_edit_in_the_same_run_may_settle_what_a_repair_may_not(tmp_path: Path) -> None:
    wheel = make_wheel(tmp_path / "in", headers=["Requires-Dist: foo (>=1"], record=lambda rows: rows[1:])
    outcome = repack_refused(wheel, tmp_path / "out", "--repair")
    assert "metadata-value" in outcome.err
    assert "--set" in outcome.err
    made, _ = repaired(wheel, "--set", "Requires-Dist: foo>=1", "--name", "other")
    assert made.name == "other-1.0-py3-none-any.whl"


# --verify


def test_with_hashes_a_plain_rewrite_refuses_what_only_the_data_tells(tmp_path: Path) -> None:
    for name, crc, code in (("digest", None, "record-digest"), ("crc", 1, "zip-data")):
        wheel = make_wheel(
            tmp_path / name,
            files={**PACKAGE, "demo/a.bin": Member(b"abc", crc=crc)},
            record=lambda rows: [[row[0], digest(b"x"), row[2]] if "a.bin" in row[0] else row for row in rows],
        )
        assert te_wheel("repack", wheel, "-o", tmp_path / f"{name}-structure").code == 0
        outcome = repack_refused(wheel, tmp_path / f"{name}-hashes", "--verify", "hashes")
        assert any(f"[{code}]" in error and "demo/a.bin" in error for error in outcome.errors)


def test_an_unknown_verification_is_refused(tmp_path: Path) -> None:
    with pytest.raises(EditError, match="'all', expected 'structure' or 'hashes'"):
        repack(make_wheel(tmp_path), verify="all")
    assert te_wheel("repack", make_wheel(tmp_path / "b"), "--verify", "all").code == 2


def test_a_copy_that_went_wrong_gets_no_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from build_tools.wheels import archive_writer

    copy, calls = archive_writer.copy_range, iter([True])

    def careless_once(archive: Any, start: int, end: int, target: int) -> None:
        copy(archive, start, end, target)
        if next(calls, False):
            last = os.lseek(target, 0, os.SEEK_CUR) - 1
            os.pwrite(target, bytes([os.pread(target, 1, last)[0] ^ 1]), last)

    wheel = make_wheel(tmp_path / "in", files={**PACKAGE, "demo/z.bin": Member(b"abc" * 99, method=0)})
    monkeypatch.setattr(archive_writer, "copy_range", careless_once)
    with pytest.raises(WheelError, match=r"demo/z\.bin"):
        repack(wheel, tmp_path / "out", WheelEdit(local="x"), verify="hashes")
    assert list((tmp_path / "out").iterdir()) == []


# The command line


def test_a_dry_run_and_json_tell_what_would_be_mended(tmp_path: Path) -> None:
    wheel = make_wheel(tmp_path / "in", archive=Archive(prefix=b"#!/bin/sh\n"), record=lambda rows: rows[1:])
    outcome = te_wheel("repack", wheel, "-o", tmp_path / "out", "--repair", "--dry-run")
    assert outcome.lines == [
        str(tmp_path / "out" / wheel.name),
        "  archive zip-prefix: - 10 bytes stand before the first member",
        f"  RECORD demo/__init__.py: + 10 bytes, {RIGHT}",
    ]
    assert not (tmp_path / "out").exists()
    (report,) = te_wheel("repack", wheel, "-o", tmp_path / "out", "--repair", "--json").json
    assert report["changes"] == [
        {"where": "archive", "field": "zip-prefix", "old": "10 bytes stand before the first member", "new": None},
        {"where": "RECORD", "field": "demo/__init__.py", "old": None, "new": f"10 bytes, {RIGHT}"},
    ]


def test_of_many_wheels_those_that_can_be_mended_are(tmp_path: Path) -> None:
    good = make_wheel(tmp_path / "a", record=lambda rows: rows[1:])
    bad = make_wheel(tmp_path / "b", name="other", files=[("x", "1"), ("x", "2")])
    outcome = te_wheel("repack", good, bad, "-o", tmp_path / "out", "--repair")
    assert (outcome.code, outcome.lines) == (2, [str(tmp_path / "out" / good.name)])
    assert all(error.startswith(bad.name) for error in outcome.errors)
