"""``repack --sync``: one side of a wheel that disagrees with itself wins, and every other part follows."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from packaging.version import Version

from build_tools.errors import EditError, WheelError
from build_tools.wheels import WheelEdit, WheelName, check_wheel, repack
from tests.build_tools.command_line import Outcome, te_wheel
from tests.build_tools.test_properties import NAMES, Wanted, payload, wheels
from tests.build_tools.test_refusals import repack_refused
from tests.build_tools.version_cases import versions
from tests.build_tools.wheel_factory import PACKAGE, Member, make_wheel, metadata_text, wheel_text
from tests.build_tools.wheel_reader import content, headers, read_any, read_right

HELLO = Member("#!python\nprint('hello')\n", mode=0o755)
SIDES = pytest.mark.parametrize("side", ["filename", "metadata"])


def synced(wheel: Path, side: str, *options: str) -> tuple[Path, Outcome]:
    """The output of ``repack --sync``: right, and without a finding."""
    before = wheel.read_bytes()
    outcome = te_wheel("repack", wheel, "-o", wheel.parent / "out", "--sync", side, *options)
    assert outcome.code == 0, outcome.err
    output = Path(outcome.out.removesuffix("\n"))
    read_right(output)
    assert check_wheel(output, hashes=True) == []
    assert wheel.read_bytes() == before
    return output, outcome


def by_hand(folder: Path, filename: str, **description: Any) -> Path:
    """A wheel that somebody gave another file name."""
    return make_wheel(folder, filename=filename, **description)


# What people complain of

RENAMED = [
    ("R4", "demo-1.0+cu130-py3-none-any.whl", "demo-1.0+cu130-py3-none-any.whl", "1.0+cu130"),
    (
        "R5",
        "demo-2.7.4+cu121torch2.1cxx11abiTRUE-py3-none-any.whl",
        "demo-2.7.4+cu121torch2.1cxx11abitrue-py3-none-any.whl",
        "2.7.4+cu121torch2.1cxx11abitrue",
    ),
    ("R17", "demo-1.0%2Bcu118-py3-none-any.whl", "demo-1.0+cu118-py3-none-any.whl", "1.0+cu118"),
    ("a post release", "demo-1.0-py3-none-any.whl", "demo-1.0-py3-none-any.whl", "1.0"),
    ("an epoch", "demo-1!1.0-py3-none-any.whl", "demo-1!1.0-py3-none-any.whl", "1!1.0"),
]


@pytest.mark.parametrize(("given", "output", "version"), [row[1:] for row in RENAMED], ids=[row[0] for row in RENAMED])
def test_a_version_that_was_typed_into_the_file_name_goes_everywhere(
    given: str, output: str, version: str, tmp_path: Path
) -> None:
    files = {**PACKAGE, "demo-0.9.data/scripts/hello": HELLO}
    wheel = by_hand(tmp_path, given, version="0.9", files=files)
    made, outcome = synced(wheel, "filename")
    assert made.name == output
    members = read_right(made)
    assert headers(content(members, ".dist-info/METADATA"))["Version"] == version
    assert f"demo-{version}.data/scripts/hello" in members
    for told in ("folder dist-info: demo-0.9.dist-info", "folder data: demo-0.9.data", "METADATA Version: 0.9 -> "):
        assert told in outcome.err


@pytest.mark.parametrize(("given", "output", "version"), [row[1:] for row in RENAMED], ids=[row[0] for row in RENAMED])
def test_the_other_way_round_the_file_name_follows(given: str, output: str, version: str, tmp_path: Path) -> None:
    made, outcome = synced(by_hand(tmp_path, given, version="0.9"), "metadata")
    assert made.name == "demo-0.9-py3-none-any.whl"
    assert f"filename name: {given} -> {made.name}" in outcome.err
    assert "METADATA" not in outcome.err


def test_r6_each_side_makes_the_tags_of_the_other_follow(tmp_path: Path) -> None:
    tags = "cp310-cp310-manylinux_2_28_x86_64"
    wheel = by_hand(tmp_path, "demo-1.0-py3-none-manylinux_2_28_x86_64.whl", tags=tags)
    assert te_wheel("check", wheel).code == 1
    made, outcome = synced(wheel, "filename")
    assert made.name == wheel.name
    assert f"WHEEL Tag: {tags} -> py3-none-manylinux_2_28_x86_64" in outcome.err
    made, _ = synced(wheel, "metadata")
    assert made.name == f"demo-1.0-{tags}.whl"


def test_a_build_tag_follows_either_way(tmp_path: Path) -> None:
    wheel = by_hand(tmp_path, "demo-1.0-2-py3-none-any.whl", build="1")
    made, outcome = synced(wheel, "filename")
    assert made.name == wheel.name
    assert "WHEEL Build: 1 -> 2" in outcome.err
    assert synced(wheel, "metadata")[0].name == "demo-1.0-1-py3-none-any.whl"
    plain = by_hand(tmp_path / "plain", "demo-1.0-py3-none-any.whl", build="1")
    assert "WHEEL Build: - 1" in synced(plain, "filename")[1].err
    assert synced(plain, "metadata")[0].name == "demo-1.0-1-py3-none-any.whl"


@pytest.mark.parametrize(
    ("name", "package"), [("Django", "django"), ("MarkupSafe", "markupsafe"), ("zope.interface", "zope_interface")]
)
@SIDES
def test_r10_a_folder_in_an_old_spelling_is_no_disagreement_and_is_named_anew(
    side: str, name: str, package: str, tmp_path: Path
) -> None:
    wheel = make_wheel(tmp_path, name=name, version="3.2.5", files={f"{name}-3.2.5.data/scripts/hello": HELLO})
    made, _ = synced(wheel, side)
    assert made.name == f"{package}-3.2.5-py3-none-any.whl"
    assert headers(content(read_right(made), "/METADATA"))["Name"] == name


@SIDES
@pytest.mark.parametrize("folder", ["demo-1.0-dev0.dist-info", "bar-2.dist-info", "demo-1.0.dist-info"])
def test_the_folders_bear_no_side_of_their_own(folder: str, side: str, tmp_path: Path) -> None:
    files = {**PACKAGE, "other-3.data/scripts/hello": HELLO}
    made, _ = synced(make_wheel(tmp_path, version="1.0.dev0", dist_info=folder, files=files), side)
    assert made.name == "demo-1.0.dev0-py3-none-any.whl"


def test_a_name_is_written_with_the_dash_that_a_file_name_cannot_have(tmp_path: Path) -> None:
    wheel = by_hand(tmp_path, "demo_cu13-1.0-py3-none-any.whl", name="demo_cu12", version="1.0")
    made, outcome = synced(wheel, "filename")
    assert "METADATA Name: demo_cu12 -> demo-cu13" in outcome.err
    assert synced(made, "filename")[0].read_bytes() == made.read_bytes()


def test_a_name_that_means_the_same_keeps_its_spelling(tmp_path: Path) -> None:
    wheel = by_hand(tmp_path, "demo_pkg-1.1-py3-none-any.whl", name="Demo.Pkg", dist_info="demo_pkg-1.0.dist-info")
    made, outcome = synced(wheel, "filename")
    assert headers(content(read_right(made), "/METADATA"))["Name"] == "Demo.Pkg"
    assert "METADATA Name" not in outcome.err


def test_requirements_on_the_wheel_itself_follow_name_and_version(tmp_path: Path) -> None:
    lines = ["Provides-Extra: all", 'Requires-Dist: demo[gpu]==1.0; extra == "all"', "Requires-Dist: demo-data==1.0"]
    made, outcome = synced(by_hand(tmp_path, "demo_x-1.1-py3-none-any.whl", headers=lines), "filename")
    required = headers(content(read_right(made), "/METADATA")).get_all("Requires-Dist")
    assert required == ['demo-x[gpu]==1.1; extra == "all"', "demo-data==1.0"]
    assert "Requires-Dist: demo[gpu]==1.0" in outcome.err


def test_the_sync_comes_first_and_other_edits_after(tmp_path: Path) -> None:
    lines = ["Provides-Extra: all", 'Requires-Dist: demo[gpu]==1.0; extra == "all"']
    wheel = by_hand(tmp_path, "demo-1.1+cu130-py3-none-any.whl", headers=lines)
    made, _ = synced(wheel, "filename", "--name", "demo-cu13", "--local", "", "--build", "3")
    assert made.name == "demo_cu13-1.1-3-py3-none-any.whl"
    assert headers(content(read_right(made), "/METADATA"))["Requires-Dist"] == 'demo-cu13[gpu]==1.1; extra == "all"'
    assert synced(wheel, "metadata", "--local", "cu12")[0].name == "demo-1.0+cu12-py3-none-any.whl"


def test_a_variant_label_stands_in_the_file_name_alone_and_is_kept(tmp_path: Path) -> None:
    wheel = by_hand(tmp_path, "demo-1.1-py3-none-any-cu128.whl", dist_info_files={"variant.json": "{}\n"})
    assert (
        te_wheel("repack", wheel, "--sync", "metadata", "--dry-run")
        .lines[0]
        .endswith("demo-1.0-py3-none-any-cu128.whl")
    )
    assert te_wheel("repack", wheel, "--sync", "filename", "--dry-run").lines[0].endswith(wheel.name)
    unnamed = by_hand(tmp_path / "in", "download.whl", dist_info_files={"variant.json": "{}\n"})
    assert "variant label" in repack_refused(unnamed, tmp_path / "out", "--sync", "metadata").errors[-1]


@pytest.mark.parametrize("filename", ["download", "demo.whl", "demo-1.0-any.whl", "demo-1.0-x+1-py3-none-any.whl"])
def test_a_file_name_that_says_nothing_follows_metadata_and_cannot_be_followed(filename: str, tmp_path: Path) -> None:
    wheel = by_hand(tmp_path / "in", filename, build="7")
    assert synced(wheel, "metadata")[0].name == "demo-1.0-7-py3-none-any.whl"
    (tmp_path / "in" / "out" / "demo-1.0-7-py3-none-any.whl").unlink()
    (tmp_path / "in" / "out").rmdir()
    outcome = repack_refused(wheel, tmp_path / "out", "--sync", "filename")
    assert any("[filename]" in error for error in outcome.errors)
    assert "hint" not in outcome.err


# What no side can settle

NOT_A_PRODUCT = wheel_text().replace("Tag: py3-none-any", "Tag: py3-none-any\nTag: cp310-cp310-any")


def test_tags_that_are_no_full_product_have_no_file_name(tmp_path: Path) -> None:
    wheel = make_wheel(tmp_path / "in", wheel=NOT_A_PRODUCT)
    (error,) = repack_refused(wheel, tmp_path / "out", "--sync", "metadata").errors
    assert "no full product" in error
    assert synced(wheel, "filename")[0].name == wheel.name


@SIDES
@pytest.mark.parametrize(
    ("old", "new", "named"),
    [
        ("Name: demo\n", "", "Name is missing"),
        ("Name: demo\n", "Name: demo\nName: other\n", "'other'"),
        ("Name: demo\n", "Name: demo\nName: demo\n", "2 times"),
        ("Name: demo\n", "Name: de mo\n", "de mo"),
        ("Version: 1.0\n", "", "Version is missing"),
        ("Version: 1.0\n", "Version: 1.0\nVersion: 1.1\n", "'1.1'"),
        ("Version: 1.0\n", "Version: 1.0_1\n", "1.0_1"),
    ],
)
def test_a_side_that_says_nothing_certain_is_refused_whoever_wins(
    side: str, old: str, new: str, named: str, tmp_path: Path
) -> None:
    wheel = by_hand(tmp_path / "in", "demo-1.0+cu130-py3-none-any.whl", metadata=metadata_text().replace(old, new))
    outcome = repack_refused(wheel, tmp_path / "out", "--sync", side)
    assert any(named in error for error in outcome.errors)


@SIDES
def test_other_faults_are_not_settled_by_the_way_and_all_are_named(side: str, tmp_path: Path) -> None:
    wheel = by_hand(
        tmp_path / "in",
        "demo-1.0+cu130-py3-none-any.whl",
        metadata=metadata_text().replace("Metadata-Version: 2.1", "Metadata-Version: 3.0"),
        record=lambda rows: rows[1:],
    )
    outcome = repack_refused(wheel, tmp_path / "out", "--sync", side)
    assert [error.rpartition("[")[2] for error in outcome.errors] == ["record-missing-row]", "metadata-version]"]


def test_two_data_folders_and_two_build_tags_need_more_than_a_side(tmp_path: Path) -> None:
    files = {**PACKAGE, "demo-1.0.data/scripts/a": HELLO, "Demo-1.0.data/scripts/b": HELLO}
    wheel = make_wheel(tmp_path / "in", files=files)
    assert "data-name" in repack_refused(wheel, tmp_path / "out", "--sync", "filename").err
    wheel = make_wheel(tmp_path / "builds", wheel=wheel_text(build="1") + "Build: 2\n")
    assert "wheel-build" in repack_refused(wheel, tmp_path / "out", "--sync", "metadata").err
    assert synced(wheel, "filename")[0].name == "demo-1.0-py3-none-any.whl"


# The run


def test_the_refusal_of_a_plain_rewrite_says_what_to_run(tmp_path: Path) -> None:
    wheel = by_hand(tmp_path / "in", "demo-1.0+cu130-py3-none-any.whl")
    outcome = repack_refused(wheel, tmp_path / "out")
    assert outcome.err.splitlines()[-1].startswith("hint: `te-wheel repack --sync filename` or `--sync metadata`")


@SIDES
def test_a_wheel_that_agrees_comes_out_as_by_a_plain_rewrite(side: str, tmp_path: Path) -> None:
    wheel = make_wheel(tmp_path / "in", name="Demo", build="1", wheel=wheel_text(build="1") + "Tag: \n")
    plain = repack(wheel, tmp_path / "plain")
    made = repack(wheel, tmp_path / "out", WheelEdit(sync=side))
    assert made.changes == plain.changes
    assert made.path.read_bytes() == plain.path.read_bytes()


def test_the_input_is_removed_only_when_it_shall_be_replaced(tmp_path: Path) -> None:
    wheel = by_hand(tmp_path, "demo-1.0+cu130-py3-none-any.whl")
    made = repack(wheel, edit=WheelEdit(sync="metadata"), replace=True)
    assert sorted(tmp_path.iterdir()) == [made.path]
    assert made.path.name == "demo-1.0-py3-none-any.whl"
    wheel = by_hand(tmp_path / "again", "demo-1.0+cu130-py3-none-any.whl")
    assert te_wheel("repack", wheel, "--sync", "filename").code == 2
    assert te_wheel("repack", wheel, "--sync", "filename", "--replace").code == 0
    read_right(wheel)


def test_an_unknown_side_is_refused(tmp_path: Path) -> None:
    with pytest.raises(EditError, match="'record', expected 'filename' or 'metadata'"):
        WheelEdit(sync="record")
    outcome = te_wheel("repack", make_wheel(tmp_path), "--sync", "record")
    assert outcome.code == 2
    assert "record" in outcome.errors[0]


def test_with_hashes_a_wheel_that_is_damaged_inside_is_refused_before_it_is_written(tmp_path: Path) -> None:
    files = {**PACKAGE, "demo/a.bin": Member(b"abc", crc=1)}
    wheel = by_hand(tmp_path / "in", "demo-1.0+cu130-py3-none-any.whl", files=files)
    outcome = repack_refused(wheel, tmp_path / "out", "--sync", "filename", "--verify", "hashes")
    assert [error for error in outcome.errors if "demo/a.bin" in error and "[zip-data]" in error]


@settings(max_examples=60)
@given(
    wheels(), NAMES, versions(), st.sampled_from(["", "7", "8_b"]), st.sampled_from(["py3-none-any", "cp312-abi3-any"])
)
def test_any_two_sides_are_brought_together_either_way(
    wanted: Wanted, name: str, version: Version, build: str, tags: str
) -> None:
    claimed = "-".join(part for part in (WheelName(name, version).stem, build, tags) if part) + ".whl"
    with tempfile.TemporaryDirectory() as folder:
        right = wanted.make(Path(folder))
        wheel = right.with_name(f"x-{right.name}")
        right.rename(wheel)
        wheel = wheel.rename(wheel.with_name(claimed))
        expected = {"filename": WheelName.parse(claimed).filename, "metadata": right.name}
        for side, filename in expected.items():
            once = repack(wheel, Path(folder) / side, WheelEdit(sync=side))
            assert once.path.name == filename
            assert payload(list(read_right(once.path).values())) == payload(read_any(wheel))
            assert {finding.code for finding in check_wheel(once.path, hashes=True)} <= {
                "zip-symlink",
                "zip-reserved-name",
            }
            again = repack(once.path, Path(folder) / side, WheelEdit(sync=side), replace=True)
            assert (again.changes, again.written) == ((), False)


def test_a_wheel_that_cannot_be_read_has_no_side(tmp_path: Path) -> None:
    wheel = by_hand(tmp_path, "demo-1.0+cu130-py3-none-any.whl", metadata=b"\xff")
    with pytest.raises(WheelError, match="not UTF-8"):
        repack(wheel, tmp_path / "out", WheelEdit(sync="metadata"))
