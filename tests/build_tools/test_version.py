"""Versions: any accepted spelling becomes one normal form; a version file holds one version."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from packaging.version import InvalidVersion, Version

from build_tools.errors import FileError, ReleaseError, VersionError
from build_tools.version import normalize_version, parse_local, parse_version, read_version, with_local
from tests.build_tools.command_line import te_wheel
from tests.build_tools.version_cases import ACCEPTED, REFUSED, spellings, versions

# Spellings


@pytest.mark.parametrize(("raw", "canonical"), ACCEPTED)
def test_an_accepted_spelling_has_one_normal_form(raw: str, canonical: str) -> None:
    assert normalize_version(raw) == canonical
    assert normalize_version(canonical) == canonical


@pytest.mark.parametrize(("raw", "canonical"), ACCEPTED)
def test_the_command_prints_the_normal_form_and_nothing_else(raw: str, canonical: str) -> None:
    assert te_wheel("version", raw).out == f"{canonical}\n"
    assert te_wheel("version", raw, "--stem", "TE.pkg").out == f"te_pkg-{canonical}\n"


@pytest.mark.parametrize("raw", REFUSED)
def test_a_text_that_is_no_version_is_refused_with_the_text_in_the_message(raw: str) -> None:
    with pytest.raises(VersionError) as caught:
        parse_version(raw)
    assert repr(raw) in str(caught.value)
    assert isinstance(caught.value, ValueError)
    outcome = te_wheel("version", raw)
    assert (outcome.code, outcome.out) == (2, "")
    assert repr(raw) in outcome.err
    assert outcome.err.startswith("error: ")


@given(spellings())
def test_every_spelling_of_a_version_is_that_version(pair: tuple[str, Version]) -> None:
    raw, version = pair
    assert parse_version(raw) == version
    assert normalize_version(raw) == str(version)


@given(versions())
def test_normalising_twice_is_normalising_once(version: Version) -> None:
    assert normalize_version(str(version)) == str(version)


@given(st.text(max_size=12))
def test_any_other_text_is_a_version_for_packaging_too_or_refused(text: str) -> None:
    try:
        expected = Version(text)
    except InvalidVersion:
        with pytest.raises(VersionError) as caught:
            parse_version(text)
        assert repr(text) in str(caught.value)
    else:
        assert parse_version(text) == expected


# Local labels


@pytest.mark.parametrize(
    ("label", "normal"),
    [
        ("cu128", "cu128"),
        ("CU_128.FALSE", "cu.128.false"),
        ("a-b_c.d", "a.b.c.d"),
        ("0012345", "12345"),
        ("g0012345", "g0012345"),
        ("0", "0"),
    ],
)
def test_a_local_label_is_lower_case_segments_joined_by_dots(label: str, normal: str) -> None:
    assert parse_local(label) == normal
    assert str(with_local(Version("1.0"), label)) == f"1.0+{normal}"


@pytest.mark.parametrize("label", ["", " ", "+", "a+b", "a..b", ".a", "a.", "a b", " a", "a\n", "é", "a/b"])
def test_what_is_no_local_label_is_refused_with_the_text_in_the_message(label: str) -> None:
    with pytest.raises(VersionError) as caught:
        parse_local(label)
    assert repr(label) in str(caught.value)


@given(versions(), versions())
def test_a_local_label_is_replaced_never_appended_to(version: Version, other: Version) -> None:
    labelled = with_local(version, other.local or "")
    assert labelled.local == other.local
    assert labelled.public == version.public


@pytest.mark.parametrize(
    ("raw", "label", "printed"),
    [("1.0", "CU_128", "1.0+cu.128"), ("1.0+cpu", "cu128", "1.0+cu128"), ("1.0+cpu", "", "1.0")],
)
def test_the_command_sets_replaces_and_removes_a_local_label(raw: str, label: str, printed: str) -> None:
    assert te_wheel("version", raw, "--local", label).out == f"{printed}\n"


# The version file


@pytest.fixture
def version_file(tmp_path: Path) -> Path:
    return tmp_path / "VERSION.txt"


@pytest.mark.parametrize(
    "content",
    [
        b"2.21.0-dev0",
        b"2.21.0-dev0\n",
        b"2.21.0-dev0\r\n",
        b"\xef\xbb\xbf2.21.0-dev0\r\n",
        b"\n\n  2.21.0-dev0\t\n\r\n\n",
    ],
)
def test_white_space_a_byte_order_mark_and_crlf_around_the_version_do_not_count(
    version_file: Path, content: bytes
) -> None:
    version_file.write_bytes(content)
    assert str(read_version(version_file)) == "2.21.0.dev0"
    assert te_wheel("version", "--file", version_file).out == "2.21.0.dev0\n"


@pytest.mark.parametrize(
    ("content", "found"),
    [
        (b"", "empty"),
        (b" \r\n\n", "empty"),
        (b"1.0\n2.0\n", "'2.0'"),
        (b"1.0\n# released\n", "'# released'"),
        (b"# the version\n", "'# the version'"),
        (b"1.0  # the version\n", "'1.0  # the version'"),
        (b"1.0_1\n", "'1.0_1'"),
        (b"version = '1.0'\n", "version = "),
        (b"\xff\xfe1\x00", "UTF-8"),
        (b"1.0\x00", r"1.0\x00"),
    ],
)
def test_a_file_that_holds_anything_else_is_refused_with_name_text_and_example(
    version_file: Path, content: bytes, found: str
) -> None:
    version_file.write_bytes(content)
    with pytest.raises(VersionError) as caught:
        read_version(version_file)
    for part in (str(version_file), found, "2.21.0.dev0"):
        assert part in str(caught.value)
    outcome = te_wheel("version", "--file", version_file)
    assert (outcome.code, outcome.out) == (2, "")
    assert str(version_file) in outcome.err


@pytest.mark.parametrize("kind", ["missing", "a folder", "below a file"])
def test_a_file_that_cannot_be_read_is_named(tmp_path: Path, version_file: Path, kind: str) -> None:
    path = version_file
    if kind == "a folder":
        path.mkdir()
    elif kind == "below a file":
        path.write_text("1.0")
        path = path / "VERSION.txt"
    with pytest.raises(FileError) as caught:
        read_version(path)
    assert isinstance(caught.value, OSError)
    assert str(path) in str(caught.value)
    outcome = te_wheel("version", "--file", path)
    assert (outcome.code, outcome.out) == (2, "")
    assert str(path) in outcome.err


def test_a_path_object_and_its_text_read_the_same_file(version_file: Path) -> None:
    version_file.write_text("1!2.0\n")
    assert read_version(os.fspath(version_file)) == read_version(version_file) == Version("1!2.0")


def test_every_refusal_belongs_to_the_one_family() -> None:
    with pytest.raises(ReleaseError):
        parse_version("dev")
