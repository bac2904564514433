"""Every rewrite case: what holds for all of them, then the exact outcome of each."""

from __future__ import annotations

import stat
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from build_tools.wheels import WheelEdit, repack
from tests.acceptance.judges import require
from tests.build_tools.command_line import te_wheel
from tests.build_tools.rewrite_cases import BY_ID, CASES, LONG_REQUIREMENT, TRICKY_DESCRIPTION, VENDORED, Case
from tests.build_tools.wheel_factory import DATE, digest, make_wheel, metadata_text
from tests.build_tools.wheel_reader import Read, content, headers, read_any, read_clean, read_right, record_rows

FIRST, LAST = (1980, 1, 1, 0, 0, 0), (2107, 12, 31, 23, 59, 58)


def rewritten(case: Case, folder: Path) -> tuple[Path, Path]:
    """The wheel of a case and what its command makes of it."""
    wheel = case.make(folder / "in")
    outcome = case.rewrite(wheel, folder / "out")
    assert outcome.code == 0, outcome.err
    return wheel, Path(outcome.out.removesuffix("\n"))


def outcome_of(id: str, folder: Path) -> tuple[Path, dict[str, Read]]:
    wheel, output = rewritten(BY_ID[id], folder)
    return wheel, read_right(output)


every_case = pytest.mark.parametrize("case", CASES, ids=[case.id for case in CASES])


@every_case
def test_the_output_agrees_with_itself_and_bears_the_right_name(case: Case, tmp_path: Path) -> None:
    before = case.make(tmp_path / "plain").read_bytes()
    wheel, output = rewritten(case, tmp_path)
    assert output == tmp_path / "out" / case.output
    assert [path.name for path in output.parent.iterdir()] == [case.output]
    read_right(output)
    assert wheel.read_bytes() == before
    check = te_wheel("check", "--hashes", output)
    assert check.code == 0, check.out + check.err


@every_case
def test_the_payload_keeps_bytes_methods_modes_times_and_order(case: Case, tmp_path: Path) -> None:
    wheel, output = rewritten(case, tmp_path)
    old_data, new_data = (f"{'-'.join(path.name.split('-')[:2])}.data/" for path in (wheel, output))

    def payload(members: list[Read], data: str) -> list[Read]:
        names = (
            member.name.replace(data, "{data}/", 1) if member.name.startswith(data) else member.name
            for member in members
        )
        outside = [replace(member, name=name) for member, name in zip(members, names, strict=True)]
        return [member for member in outside if ".dist-info" not in member.name.split("/")[0]]

    assert payload(list(read_clean(output).values()), new_data) == payload(read_any(wheel), old_data)


@every_case
def test_a_second_run_writes_nothing_and_rewriting_twice_is_rewriting_once(case: Case, tmp_path: Path) -> None:
    wheel, output = rewritten(case, tmp_path)
    before = (output.read_bytes(), output.stat().st_mtime_ns, output.stat().st_ino)
    again = case.rewrite(wheel, output.parent, "--json")
    assert [(entry["path"], entry["written"]) for entry in again.json] == [(str(output), False)]
    assert (output.read_bytes(), output.stat().st_mtime_ns, output.stat().st_ino) == before
    twice = case.rewrite(output, tmp_path / "twice")
    assert Path(twice.out.removesuffix("\n")).read_bytes() == before[0]


# R1 to R3: the release that this project is for


def test_r1_dist_info_and_data_are_both_renamed_and_modes_stay(tmp_path: Path) -> None:
    _, members = outcome_of("R1", tmp_path)
    assert list(members) == [
        "demo_pkg/__init__.py",
        "demo_pkg/bin/run",
        "demo_pkg_cu12-2.21.0.dev0.data/scripts/hello",
        "demo_pkg_cu12-2.21.0.dev0.dist-info/METADATA",
        "demo_pkg_cu12-2.21.0.dev0.dist-info/WHEEL",
        "demo_pkg_cu12-2.21.0.dev0.dist-info/RECORD",
    ]
    modes = [stat.S_IMODE(read.mode) for read in members.values()]
    assert modes == [0o644, 0o755, 0o755, 0o644, 0o644, 0o644]
    assert content(members, "/METADATA").decode() == metadata_text("demo-pkg-cu12", "2.21.0.dev0")


def test_r2_only_the_header_changes_and_the_description_is_the_same_bytes(tmp_path: Path) -> None:
    _, members = outcome_of("R2", tmp_path)
    expected = metadata_text("demo-pkg-cu12", "2.22.0rc1", description=TRICKY_DESCRIPTION)
    assert content(members, "/METADATA").decode() == expected


def test_r3_a_raw_version_reaches_no_path_from_build_to_repack(tmp_path: Path) -> None:
    for distribution in ("build", "setuptools"):
        require(distribution)
    source = tmp_path / "source"
    (source / "demo_pkg").mkdir(parents=True)
    (source / "demo_pkg" / "__init__.py").write_text("")
    (source / "VERSION.txt").write_text("2.21.0-dev0\n")
    (source / "pyproject.toml").write_text(
        '[build-system]\nrequires = ["setuptools"]\nbuild-backend = "setuptools.build_meta"\n'
        '[project]\nname = "demo-pkg"\ndynamic = ["version"]\n'
        '[tool.setuptools]\npackages = ["demo_pkg"]\n'
        '[tool.setuptools.dynamic]\nversion = {file = "VERSION.txt"}\n'
    )
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", tmp_path / "dist", source]
    subprocess.run(command, check=True, capture_output=True)
    (built,) = (tmp_path / "dist").iterdir()
    assert built.name == "demo_pkg-2.21.0.dev0-py3-none-any.whl"

    unpacked = te_wheel("unpack", built, "-d", tmp_path / "tree")
    folder = tmp_path / "tree" / "demo_pkg-2.21.0.dev0"
    assert unpacked.out == f"{folder}\n"
    assert te_wheel("version", "--file", source / "VERSION.txt", "--stem", "demo_pkg").out == f"{folder.name}\n"

    metadata = folder / "demo_pkg-2.21.0.dev0.dist-info" / "METADATA"
    metadata.write_text(metadata.read_text().replace("Name: demo-pkg", "Name: demo-pkg-cu12"))
    packed = te_wheel("pack", folder, "-d", tmp_path / "packed")
    wheel = tmp_path / "packed" / "demo_pkg_cu12-2.21.0.dev0-py3-none-any.whl"
    assert packed.out == f"{wheel}\n"
    read_right(wheel)

    repacked = te_wheel("repack", built, "-o", tmp_path / "repacked", "--name", "demo-pkg-cu12")
    assert Path(repacked.out.strip()).name == wheel.name
    read_right(Path(repacked.out.strip()))
    everything = [str(path) for path in tmp_path.rglob("*")]
    for path in (tmp_path / "dist", tmp_path / "packed", tmp_path / "repacked"):
        everything += [read.name for wheel in path.iterdir() for read in read_any(wheel)]
    assert not [path for path in everything if "2.21.0-dev0" in path]


# R4 to R6: a wheel that disagrees with itself is named and refused


DISAGREEING = {
    "R4": (
        {"filename": "demo-1.0+cu130-py3-none-any.whl"},
        {"dist-info-name": ("demo-1.0.dist-info", "demo-1.0+cu130"), "metadata-version-field": ("'1.0'", "1.0+cu130")},
    ),
    "R5": (
        {"filename": "demo-1.0+cu121torch2.1cxx11abiTRUE-py3-none-any.whl"},
        {
            "dist-info-name": ("demo-1.0.dist-info", "demo-1.0+cu121torch2.1cxx11abitrue"),
            "metadata-version-field": ("'1.0'", "1.0+cu121torch2.1cxx11abitrue"),
        },
    ),
    "R6": (
        {
            "tags": "cp310-cp310-manylinux_2_28_x86_64",
            "filename": "demo-1.0-py3-none-manylinux_2_28_x86_64.whl",
        },
        {"wheel-tags": ("cp310-cp310-manylinux_2_28_x86_64", "py3-none-manylinux_2_28_x86_64")},
    ),
}


@pytest.mark.parametrize("id", DISAGREEING)
def test_every_disagreement_is_a_finding_and_repack_refuses_naming_each(id: str, tmp_path: Path) -> None:
    description, expected = DISAGREEING[id]
    wheel = make_wheel(tmp_path / "in", **description)
    check = te_wheel("check", wheel, "--json")
    assert check.code == 1
    (report,) = check.json
    findings = {f["code"]: f"{f['member']}: {f['message']}" for f in report["findings"] if f["severity"] == "error"}
    assert set(findings) == set(expected)
    refused = te_wheel("repack", wheel, "-o", tmp_path / "out", "--name", "other")
    assert (refused.code, refused.out) == (2, "")
    assert len(refused.errors) == len(expected)
    for code, texts in expected.items():
        (error,) = (line for line in refused.errors if code in line)
        for text in texts:
            assert text in findings[code]
            assert text in error
    assert not (tmp_path / "out").exists() or not list((tmp_path / "out").iterdir())


# R7 to R23


def test_r7_tag_lines_are_expanded_in_place_none_blank_crlf_kept(tmp_path: Path) -> None:
    _, members = outcome_of("R7", tmp_path)
    assert content(members, "/WHEEL") == (
        b"Wheel-Version: 1.0\r\nGenerator: bdist_wheel (0.37.1)\r\nRoot-Is-Purelib: false\r\n"
        b"Tag: py3-none-manylinux2014_x86_64\r\nTag: py3-none-manylinux_2_17_x86_64\r\n\r\n"
    )


@pytest.mark.parametrize(("id", "builds"), [("R8", ["1"]), ("R8-7019", ["7019"]), ("R8-drop", None)])
def test_r8_a_build_tag_stays_in_file_name_and_wheel_until_it_is_dropped(
    id: str, builds: list[str] | None, tmp_path: Path
) -> None:
    _, members = outcome_of(id, tmp_path)
    assert headers(content(members, "/WHEEL")).get_all("Build") == builds


def test_r9_file_name_tags_are_sorted_and_wheel_is_expanded(tmp_path: Path) -> None:
    _, members = outcome_of("R9", tmp_path)
    assert content(members, "/WHEEL") == (
        b"Wheel-Version: 1.0\nGenerator: x\nRoot-Is-Purelib: false\n"
        b"Tag: py3-none-manylinux2014_x86_64\nTag: py3-none-manylinux_2_17_x86_64\n"
    )


@pytest.mark.parametrize(
    ("id", "info", "name"),
    [
        ("R10-Django", "django-3.2.5+x1.dist-info", "Django"),
        ("R10-MarkupSafe", "markupsafe-2.1.3+x1.dist-info", "MarkupSafe"),
        ("R10-zope", "zope_interface-5.0+x1.dist-info", "zope.interface"),
    ],
)
def test_r10_other_spellings_are_read_and_written_normalised(id: str, info: str, name: str, tmp_path: Path) -> None:
    _, members = outcome_of(id, tmp_path)
    assert headers(members[f"{info}/METADATA"].data)["Name"] == name


def test_r10_a_data_folder_in_capitals_is_written_normalised(tmp_path: Path) -> None:
    _, members = outcome_of("R10-MarkupSafe", tmp_path)
    assert "markupsafe-2.1.3+x1.data/scripts/hello" in members


def test_r11_a_vendored_dist_info_is_data(tmp_path: Path) -> None:
    _, members = outcome_of("R11", tmp_path)
    assert next(iter(members)) == "demo/_vendor/bar-2.0.dist-info/METADATA"
    assert members["demo/_vendor/bar-2.0.dist-info/METADATA"].data.decode() == VENDORED
    assert members["demo_cu12-1.1.dist-info/METADATA"].data.decode() == metadata_text("demo-cu12", "1.1")


def test_r12_only_the_data_folder_is_renamed(tmp_path: Path) -> None:
    _, members = outcome_of("R12", tmp_path)
    assert list(members)[1:4] == [
        "demo-1.0.database/table.txt",
        "demo-1.1.data/scripts/hello",
        "demo-1.1.data/purelib/demo/more.py",
    ]


def test_r13_every_byte_but_the_version_line_stays(tmp_path: Path) -> None:
    wheel, members = outcome_of("R13", tmp_path)
    (old,) = (read.data for read in read_any(wheel) if read.name.endswith("/METADATA"))
    assert content(members, "/METADATA") == old.replace(b"Version: 1.0\r\nLicense", b"Version: 1.0+a\r\nLicense")


def test_r14_a_long_line_is_not_folded_and_a_new_one_follows_the_last_of_its_field(tmp_path: Path) -> None:
    assert len(LONG_REQUIREMENT) > 240
    _, members = outcome_of("R14", tmp_path)
    expected = metadata_text(
        headers=[
            f"Requires-Dist: {LONG_REQUIREMENT}",
            "Requires-Dist: numpy",
            "Requires-Dist: triton>=3",
            "Requires-Python: >=3.8",
        ]
    )
    assert content(members, "/METADATA").decode() == expected


def test_r15_a_requirement_on_itself_follows_the_rename_and_is_reported(tmp_path: Path) -> None:
    wheel = BY_ID["R15"].make(tmp_path)
    repacked = repack(wheel, tmp_path / "out", WheelEdit(name="demo-cu12"))
    requirements = headers(content(read_right(repacked.path), "/METADATA")).get_all("Requires-Dist")
    assert requirements == ["numpy; extra == 'gpu'", 'demo-cu12[gpu]; extra == "all"']
    changes = [(change.where, change.field, change.old, change.new) for change in repacked.changes]
    assert ("METADATA", "Requires-Dist", 'demo[gpu]; extra == "all"', 'demo-cu12[gpu]; extra == "all"') in changes


def test_r16_an_epoch_stands_literally_in_every_path(tmp_path: Path) -> None:
    _, members = outcome_of("R16", tmp_path)
    assert list(members)[1:] == [f"demo-1!2.0+cu1.dist-info/{file}" for file in ("METADATA", "WHEEL", "RECORD")]


def test_r17_a_file_name_saved_from_a_url_is_read_with_a_note_and_written_with_a_plus(tmp_path: Path) -> None:
    wheel = BY_ID["R17"].make(tmp_path)
    (shown,) = te_wheel("show", wheel, "--json").json
    assert (shown["name"], shown["version"]) == ("demo", "1.0+cu118")
    (checked,) = te_wheel("check", wheel, "--json").json
    assert [(f["code"], f["severity"]) for f in checked["findings"]] == [("filename-spelling", "warning")]
    outcome = te_wheel("repack", wheel)
    assert outcome.out == f"{tmp_path / 'demo-1.0+cu118-py3-none-any.whl'}\n"


def test_r18_a_path_with_a_comma_and_quotes_is_quoted_in_record(tmp_path: Path) -> None:
    _, members = outcome_of("R18", tmp_path)
    row = f'"demo/other,data ""x"".dat",{digest(b"data" + bytes([10]))},5\n'
    assert row in content(members, "/RECORD").decode()


@pytest.mark.parametrize("listed", [False, True], ids=["not in RECORD", "in RECORD"])
def test_r19_signatures_are_dropped_and_reported(listed: bool, tmp_path: Path) -> None:
    description = dict(BY_ID["R19"].wheel)
    if listed:
        del description["record"]
    wheel = make_wheel(tmp_path, **description)
    repacked = repack(wheel, tmp_path / "out", WheelEdit(local="c1"))
    members = read_right(repacked.path)
    assert not [name for name in members if name.endswith((".jws", ".p7s"))]
    dropped = [change.field for change in repacked.changes if change.where == "files" and change.new is None]
    assert [name.rsplit("/", 1)[1] for name in dropped] == ["RECORD.jws", "RECORD.p7s"]


def test_r20_a_symlink_stays_a_symlink_through_rename_unpack_and_pack(tmp_path: Path) -> None:
    _, members = outcome_of("R20", tmp_path)
    assert members["demo/libx.so"].is_symlink
    assert members["demo/libx.so"].data == b"libx.so.1"
    output = tmp_path / "out" / BY_ID["R20"].output
    folder = Path(te_wheel("unpack", output, "-d", tmp_path / "tree").out.strip())
    link = folder / "demo" / "libx.so"
    assert link.is_symlink()
    assert str(link.readlink()) == "libx.so.1"
    packed = read_right(Path(te_wheel("pack", folder, "-d", tmp_path / "packed").out.strip()))
    assert packed["demo/libx.so"].is_symlink
    assert packed["demo/libx.so"].data == b"libx.so.1"


def test_r21_a_streamed_archive_is_written_clean_with_the_same_payload_bytes(tmp_path: Path) -> None:
    wheel, members = outcome_of("R21", tmp_path)
    read_clean(tmp_path / "out" / BY_ID["R21"].output)
    packed = {read.name: read.packed for read in read_any(wheel)}
    for name in ("demo/__init__.py", "demo/stored.bin"):
        assert members[name].packed == packed[name]


def test_r22_folders_stay_in_the_archive_and_out_of_record(tmp_path: Path) -> None:
    _, members = outcome_of("R22", tmp_path)
    assert [name for name in members if name.endswith("/")] == ["demo/", "demo/sub/"]
    assert not [row for row in record_rows(members) if row[0].endswith("/")]
    assert members["demo/empty_stored.dat"].packed == b""
    assert members["demo/empty_deflated.dat"].packed == b"\x03\x00"


@pytest.mark.parametrize(("id", "time"), [("R23-1970", FIRST), ("R23-late", LAST)])
def test_r23_source_date_epoch_is_clamped_to_what_zip_can_hold(id: str, time: tuple[int, ...], tmp_path: Path) -> None:
    _, members = outcome_of(id, tmp_path)
    for name, read in members.items():
        if name.endswith(("/METADATA", "/RECORD")):
            assert read.date == time, name
        elif ".dist-info/" not in name:
            assert read.date == DATE, name


def test_r23_without_source_date_epoch_a_rewritten_member_keeps_its_time(tmp_path: Path) -> None:
    _, members = outcome_of("R1", tmp_path)
    assert {read.date for read in members.values()} == {DATE}


@pytest.mark.parametrize("epoch", ["", "-1", "1.5", "now", "0x10", " ", "1_000", "\u0663"])
def test_r23_a_source_date_epoch_that_is_no_whole_number_is_refused(
    epoch: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wheel = make_wheel(tmp_path / "in")
    monkeypatch.setenv("SOURCE_DATE_EPOCH", epoch)
    outcome = te_wheel("repack", wheel, "-o", tmp_path / "out", "--name", "other")
    assert (outcome.code, outcome.out) == (2, "")
    assert "SOURCE_DATE_EPOCH" in outcome.errors[0]
    assert not list(tmp_path.glob("out/*"))


def test_r26_a_variant_label_is_kept_and_never_read_as_a_tag(tmp_path: Path) -> None:
    tags = "cp311-cp311-manylinux_2_28_x86_64"
    wheel = make_wheel(tmp_path / "in", tags=tags, variant="cu128", dist_info_files={"variant.json": "{}\n"})
    outcome = te_wheel("repack", wheel, "-o", tmp_path / "out", "--version", "1.1")
    output = Path(outcome.out.strip())
    assert output.name == f"demo-1.1-{tags}-cu128.whl"
    members = read_clean(output)
    assert content(members, "/variant.json") == b"{}\n"
    assert headers(content(members, "/WHEEL")).get_all("Tag") == [tags]
