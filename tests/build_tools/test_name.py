"""Names: a corpus of real wheel file names, then each rule of the specification."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from packaging.utils import canonicalize_name, parse_wheel_filename
from packaging.version import Version

from build_tools.errors import WheelNameError
from build_tools.wheels import WheelName
from build_tools.wheels.name import (
    check_build_tag,
    compress_tags,
    normalize_name,
    parse_stem,
    parse_tag_set,
    stem,
)
from tests.build_tools.version_cases import ACCEPTED, versions

_ROWS = [
    line.split("\t")
    for line in (Path(__file__).parent.parent / "data" / "wheel_names.tsv").read_text(encoding="utf-8").splitlines()
    if not line.startswith("#")
]
REAL = [row for row in _ROWS if row[1] != "INVALID"]
REFUSED = [row[0] for row in _ROWS if row[1] == "INVALID"]

PROJECTS = st.from_regex(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,12}[A-Za-z0-9])?", fullmatch=True)
ATOMS = st.lists(st.from_regex(r"[a-z0-9_]{1,8}", fullmatch=True), min_size=1, max_size=3, unique=True)
PYTHONS = st.lists(st.from_regex(r"(cp|py|pp|graalpy)[0-9]{1,4}", fullmatch=True), min_size=1, max_size=3, unique=True)
PLATFORMS = st.lists(
    st.one_of(st.sampled_from(["any", "win32"]), st.from_regex(r"(linux|win|macosx)_[a-z0-9_]{1,8}", fullmatch=True)),
    min_size=1,
    max_size=3,
    unique=True,
)
BUILDS = st.one_of(st.just(""), st.from_regex(r"[0-9]{1,4}[a-z_]{0,3}", fullmatch=True))
VARIANTS = st.one_of(st.none(), st.from_regex(r"[0-9a-z_.]{1,8}", fullmatch=True))


# The corpus


@pytest.mark.parametrize("row", REAL, ids=[row[0] for row in REAL])
def test_a_real_file_name_is_read_and_has_one_normal_form(row: list[str]) -> None:
    raw, normal, project, version, build, variant, tags = row
    name = WheelName.parse(raw)
    assert name.filename == (raw if normal == "=" else normal)
    assert (name.name, str(name.version), name.build, name.variant or "") == (project, version, build, variant)
    assert len(name.tags) == int(tags)
    assert WheelName.parse(name.filename).filename == name.filename


@pytest.mark.parametrize("raw", REFUSED)
def test_what_is_no_wheel_file_name_is_refused_with_the_name_in_the_message(raw: str) -> None:
    with pytest.raises(WheelNameError) as caught:
        WheelName.parse(raw)
    assert repr(raw) in str(caught.value)
    assert isinstance(caught.value, ValueError)


@pytest.mark.parametrize("row", REAL, ids=[row[0] for row in REAL])
def test_packaging_reads_the_normal_form_alike(row: list[str]) -> None:
    name = WheelName.parse(row[0])
    if name.variant is not None:
        pytest.skip("packaging knows no variant labels (PEP 825 is a draft)")
    project, version, build, tags = parse_wheel_filename(name.filename)
    assert (project, version) == (name.name, name.version)
    assert "".join(map(str, build)) == name.build
    assert {str(tag) for tag in tags} == set(name.tags)


def test_every_fault_of_a_file_name_is_named_in_one_go() -> None:
    with pytest.raises(WheelNameError) as caught:
        WheelName.parse("_demo-x.y-py 3-none-.whl")
    assert len(caught.value.faults) == 4
    for part in ("'_demo'", "'x.y'", "'py 3'", "''"):
        assert part in str(caught.value)


# Project names


@given(PROJECTS)
def test_a_project_name_normalises_as_packaging_does_it(project: str) -> None:
    assert normalize_name(project) == canonicalize_name(project)
    assert normalize_name(normalize_name(project)) == normalize_name(project)


@pytest.mark.parametrize(
    "name", ["", "-", "_a", "a_", ".a", "a.", "a-", "a b", "a\n", "naïve", "a/b", "a+b", "\u0131x"]
)
def test_what_is_no_project_name_is_refused(name: str) -> None:
    with pytest.raises(WheelNameError) as caught:
        normalize_name(name)
    assert repr(name) in str(caught.value)


@pytest.mark.parametrize("name", ["a", "7", "A-_.b", "x" * 200, "a.-_b"])
def test_any_run_of_separators_is_one(name: str) -> None:
    assert set(normalize_name(name)) <= set("abcdefghijklmnopqrstuvwxyz0123456789-")
    assert "--" not in normalize_name(name)


# Paths


@given(PROJECTS, versions(), BUILDS, PYTHONS, ATOMS, PLATFORMS, VARIANTS)
def test_a_name_reads_back_from_its_own_file_name(
    project: str,
    version: Version,
    build: str,
    python: list[str],
    abi: list[str],
    platform: list[str],
    variant: str | None,
) -> None:
    sets = (tuple(sorted(python)), tuple(sorted(abi)), tuple(sorted(platform)))
    name = WheelName(project, version, build, *sets, variant)
    again = WheelName.parse(name.filename)
    assert (again.name, again.version, again.build, again.variant) == (name.name, version, build, variant)
    assert (again.python, again.abi, again.platform) == sets
    assert again.filename == name.filename


@given(PROJECTS, versions())
def test_dist_info_and_data_hold_exactly_one_dash_and_read_back(project: str, version: Version) -> None:
    name = WheelName(project, version)
    assert name.dist_info == f"{name.stem}.dist-info"
    assert name.data == f"{name.stem}.data"
    assert name.stem.count("-") == 1
    assert name.stem == stem(project, version)
    assert parse_stem(name.stem) == (name.name, version)


@pytest.mark.parametrize(("raw", "canonical"), ACCEPTED)
def test_every_spelling_of_a_version_makes_one_set_of_paths(raw: str, canonical: str) -> None:
    name, normal = (WheelName("Te.Pkg", Version(text)) for text in (raw, canonical))
    assert (name.filename, name.dist_info, name.data) == (normal.filename, normal.dist_info, normal.data)
    assert name.filename == f"te_pkg-{canonical}-py3-none-any.whl"


@pytest.mark.parametrize(
    ("text", "name", "version"),
    [
        ("Django-3.2.5", "django", "3.2.5"),
        ("zope.interface-5.0", "zope-interface", "5.0"),
        ("demo-1.0+CU_1", "demo", "1.0+cu.1"),
        ("demo-1!2.0", "demo", "1!2.0"),
    ],
)
def test_readers_accept_other_spellings_of_a_folder(text: str, name: str, version: str) -> None:
    assert parse_stem(text) == (name, Version(version))


@pytest.mark.parametrize("text", ["demo", "demo-1.0-1", "demo-", "-1.0", "de mo-1.0", "demo-x", "demo-2.21.0-dev0"])
def test_a_folder_without_exactly_one_dash_or_with_a_bad_part_is_refused(text: str) -> None:
    with pytest.raises(WheelNameError):
        parse_stem(text)


# Build tags, tags, variants


@pytest.mark.parametrize("build", ["1", "7019", "0", "1a", "1_a.b", "202411041"])
def test_a_build_tag_starts_with_a_digit(build: str) -> None:
    assert check_build_tag(build) == build


@pytest.mark.parametrize("build", ["", "x1", "1-2", "1+x", "1 2", "1\n", "\u0661", "_1"])
def test_what_is_no_build_tag_is_refused(build: str) -> None:
    with pytest.raises(WheelNameError) as caught:
        check_build_tag(build)
    assert repr(build) in str(caught.value)


@given(ATOMS)
def test_a_tag_set_is_sorted_and_holds_each_atom_once(atoms: list[str]) -> None:
    assert parse_tag_set(".".join(atoms + atoms), "platform") == tuple(sorted(atoms))


@pytest.mark.parametrize("text", ["", ".", "a.", ".a", "a..b", "py3-none", "a b", "a+b", "a\n", "é"])
@pytest.mark.parametrize("kind", ["python", "abi", "platform"])
def test_what_is_no_tag_set_is_refused_with_its_kind(text: str, kind: str) -> None:
    with pytest.raises(WheelNameError) as caught:
        parse_tag_set(text, kind)
    assert repr(text) in str(caught.value)
    assert kind in str(caught.value)


@given(ATOMS, ATOMS, ATOMS)
def test_expanded_tags_compress_to_the_sets_that_they_came_from(
    python: list[str], abi: list[str], platform: list[str]
) -> None:
    sets = (tuple(sorted(python)), tuple(sorted(abi)), tuple(sorted(platform)))
    name = WheelName("demo", Version("1"), "", *sets)
    assert len(name.tags) == len(set(name.tags)) == len(python) * len(abi) * len(platform)
    assert compress_tags(reversed(name.tags)) == sets


def test_a_compressed_value_on_one_tag_line_is_expanded() -> None:
    assert compress_tags(["py3.py2-none-any"]) == (("py2", "py3"), ("none",), ("any",))


@pytest.mark.parametrize(
    ("tags", "named"),
    [
        (["cp310-cp310-linux_x86_64", "cp311-cp311-linux_x86_64"], "cp310-cp311-linux_x86_64"),
        (["py3-none"], "'py3-none'"),
        (["py3-none-any-x"], "'py3-none-any-x'"),
        ([], "no tag"),
    ],
)
def test_tags_that_no_file_name_can_hold_are_refused(tags: list[str], named: str) -> None:
    with pytest.raises(WheelNameError) as caught:
        compress_tags(tags)
    assert named in str(caught.value)


def test_a_variant_label_is_never_read_as_a_tag() -> None:
    name = WheelName.parse("demo-1.0-1-cp311-cp311-manylinux_2_28_x86_64-cu128.whl")
    assert (name.platform, name.variant) == (("manylinux_2_28_x86_64",), "cu128")
    assert name.tags == ("cp311-cp311-manylinux_2_28_x86_64",)
