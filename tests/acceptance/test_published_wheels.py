"""Wheels of sixty known projects: check finds no fault that is none, a rename there and back gives the first bytes.

Where the wheel was not in normal form, a finding says so, and the bytes are those of its normal form.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from build_tools.wheels import Severity, WheelEdit, check_wheel, repack, unpack
from tests.acceptance.published_wheels import WHEELS, Published, download, find
from tests.acceptance.test_real_wheels import metadata_name
from tests.build_tools.wheel_reader import read_any, read_clean

pytestmark = pytest.mark.network

every_wheel = pytest.mark.parametrize("published", WHEELS, ids=[wheel.id for wheel in WHEELS])


@pytest.fixture(scope="module")
def registry() -> str:
    """Every wheel in the cache, as far as a registry gave it."""
    return download(WHEELS)


@pytest.fixture
def wheel(published: Published, registry: str) -> Path:
    path = find(published)
    if path is None:
        pytest.skip(f"no registry gave {published.id}: {registry or 'no answer'}")
    return path


@every_wheel
def test_no_finding_is_false(published: Published, wheel: Path) -> None:
    errors = {f.code for f in check_wheel(wheel, hashes=True) if f.severity is Severity.ERROR}
    assert errors == {code for code, _ in published.true_findings}


@every_wheel
def test_a_rename_there_and_back_restores_the_bytes_or_it_is_told_why_not(
    published: Published, wheel: Path, tmp_path: Path
) -> None:
    normal = repack(wheel, tmp_path / "normal").path
    if (normal.name, normal.read_bytes()) != (wheel.name, wheel.read_bytes()):
        assert check_wheel(wheel), "not in normal form, and no finding says so"
    there = repack(wheel, tmp_path / "there", WheelEdit(name="Some.Other", local="cu1")).path
    assert {f.code for f in check_wheel(there, hashes=True)} <= {code for code, _ in published.true_findings}
    back = repack(there, tmp_path / "back", WheelEdit(name=metadata_name(wheel), local="")).path
    assert back.name == normal.name
    if back.read_bytes() != normal.read_bytes():
        # The program that compressed them first does it otherwise.
        first, second = read_clean(normal), read_clean(back)
        assert list(first) == list(second)
        for name, read in first.items():
            same = replace(second[name], packed=read.packed) if is_edited(name) else second[name]
            assert same == read, name
            assert second[name].data == read.data, name


def is_edited(name: str) -> bool:
    return name.endswith((".dist-info/METADATA", ".dist-info/WHEEL", ".dist-info/RECORD"))


@every_wheel
def test_it_unpacks_to_the_bytes_that_are_in_it(wheel: Path, tmp_path: Path) -> None:
    root = unpack(wheel, tmp_path)
    files = {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()}
    assert files == {read.name: read.data for read in read_any(wheel) if not read.name.endswith("/")}


def test_the_list_has_sixty_wheels_of_many_backends() -> None:
    assert len({wheel.id for wheel in WHEELS}) == len(WHEELS) >= 60
    assert len({wheel.backend for wheel in WHEELS}) >= 12
