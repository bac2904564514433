"""``--pypi``: what PyPI refuses; what it takes is never reported."""

from __future__ import annotations

from pathlib import Path

import pytest

from build_tools.wheels import check_wheel
from build_tools.wheels.check_pypi import MAX_SIZE, check_size
from build_tools.wheels.finding import Findings
from tests.build_tools.broken_contents import RIGHT_VARIANT
from tests.build_tools.broken_sdists import make_sdist
from tests.build_tools.command_line import te_wheel
from tests.build_tools.wheel_factory import PACKAGE, Archive, make_wheel, metadata_text


def codes(wheel: Path) -> list[str]:
    return [finding.code for finding in check_wheel(wheel, pypi=True) if finding.code.startswith("pypi-")]


@pytest.mark.parametrize(
    "platform",
    [
        "any",
        "win_amd64",
        "win_arm64",
        "manylinux1_i686",
        "manylinux2014_aarch64",
        "manylinux_2_28_x86_64",
        "manylinux_2_39_riscv64",
        "musllinux_1_2_armv7l",
        "macosx_10_9_universal2",
        "macosx_11_0_arm64",
        "macosx_26_0_arm64",
        "ios_13_0_arm64_iphoneos",
        "android_21_arm64_v8a",
        "linux_armv7l",
        "pyemscripten_2026_0_wasm32",
    ],
)
def test_a_platform_that_pypi_takes_is_no_finding(platform: str, tmp_path: Path) -> None:
    assert codes(make_wheel(tmp_path, tags=f"py3-none-{platform}")) == []


@pytest.mark.parametrize(("size", "found"), [(MAX_SIZE, 0), (MAX_SIZE + 1, 1)])
def test_a_hundred_mebibytes_are_taken_and_not_a_byte_more(size: int, found: int) -> None:
    findings = Findings()
    check_size(size, findings)
    assert len(findings.all()) == found


@pytest.mark.parametrize(("size", "expected"), [((64 << 20) - 1000, []), ((64 << 20) + 1, ["pypi-ratio"])])
def test_the_ratio_counts_beyond_64_mebibytes(size: int, expected: list[str], tmp_path: Path) -> None:
    assert codes(make_wheel(tmp_path, files={"demo/x": bytes(size)})) == expected


def test_a_licence_file_before_2_4_is_left_out_by_twine_and_so_no_finding(tmp_path: Path) -> None:
    metadata = metadata_text(headers=["License-File: LICENSE"])
    assert check_wheel(make_wheel(tmp_path, metadata=metadata), pypi=True) == []


def test_an_archive_comment_is_taken(tmp_path: Path) -> None:
    assert codes(make_wheel(tmp_path, archive=Archive(comment=b"x"))) == []


def test_everything_that_is_refused_is_told_in_one_run(tmp_path: Path) -> None:
    wheel = make_wheel(
        tmp_path,
        name="Json",
        version="1.0+cu1",
        tags="py3-none-linux_x86_64",
        files={**PACKAGE, "demo/x": bytes(65 << 20)},
        metadata=metadata_text("Json", "1.0+cu1", ["Requires-Dist: a @ https://example.org/a.zip"]),
        archive=Archive(every={"streamed": True}),
        **RIGHT_VARIANT,  # type: ignore[arg-type]
    )
    assert set(codes(wheel)) == {
        "pypi-archive",
        "pypi-filename",
        "pypi-local-version",
        "pypi-metadata",
        "pypi-name",
        "pypi-platform",
        "pypi-ratio",
    }


def test_a_right_sdist_is_taken(tmp_path: Path) -> None:
    assert te_wheel("check", "--pypi", "--strict", make_sdist(tmp_path)).code == 0
