"""Sdists: right ones have no finding, what is wrong is told in one run, and reading is bounded."""

from __future__ import annotations

import gzip
import io
import tarfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from build_tools.check_sdist import check_sdist, is_sdist
from build_tools.errors import FileError
from build_tools.wheels import Limits, Severity
from tests.build_tools.broken_sdists import FILES, entry, make_sdist
from tests.build_tools.command_line import te_wheel


def codes(path: Path, **limits: int) -> list[str]:
    return [finding.code for finding in check_sdist(path, limits=Limits(**limits))]


@pytest.mark.parametrize("name", ["a-1.tar.gz", "a-1.zip", "a-1.tgz", "a-1.tar.bz2", "/x/a.tar"])
def test_an_sdist_is_known_by_its_name(name: str) -> None:
    assert is_sdist(name)
    assert not is_sdist("a-1-py3-none-any.whl")


def test_a_right_sdist_has_no_finding(tmp_path: Path) -> None:
    assert check_sdist(make_sdist(tmp_path)) == []
    assert te_wheel("check", "--strict", make_sdist(tmp_path)).code == 0


def test_links_that_stay_inside_folders_and_long_names_are_right(tmp_path: Path) -> None:
    more = [
        entry("demo-1.0/sub", kind=tarfile.DIRTYPE),
        entry("demo-1.0/sub/link", kind=tarfile.SYMTYPE, link="../demo.py"),
        entry("demo-1.0/hard", kind=tarfile.LNKTYPE, link="demo-1.0/demo.py"),
        entry("demo-1.0/" + "é" * 120, "x"),
        entry("demo-1.0/" + "long/" * 30 + "x", "x"),
    ]
    assert codes(make_sdist(tmp_path, more=more)) == []


def test_an_old_tar_without_pax_headers_is_right(tmp_path: Path) -> None:
    assert codes(make_sdist(tmp_path, form=tarfile.USTAR_FORMAT)) == []


@pytest.mark.parametrize("filename", ["demo-1.0.0-dev0.tar.gz", "my-demo-1.0.tar.gz"])
def test_dashes_of_legacy_names_are_told_apart(filename: str, tmp_path: Path) -> None:
    assert "sdist-filename" not in codes(make_sdist(tmp_path, filename=filename))


def test_every_fault_is_found_in_one_run(tmp_path: Path) -> None:
    files = {
        "Demo-1.0/PKG-INFO": "Metadata-Version: 2.1\nName: other\nVersion: 2\nRequires-Dist: a>>1\nno header\n\n",
        "../x": "",
    }
    path = make_sdist(tmp_path, files, more=[entry("Demo-1.0/null", kind=tarfile.CHRTYPE)], form=tarfile.GNU_FORMAT)
    assert set(codes(path)) == {
        "metadata-invalid", "metadata-name", "metadata-value", "metadata-version-field", "sdist-folder", "sdist-member",
        "sdist-metadata-version", "sdist-pkg-info", "sdist-pyproject", "sdist-tar-format",
    }  # fmt: skip


def test_what_is_read_before_a_fault_is_checked_all_the_same(tmp_path: Path) -> None:
    path = make_sdist(tmp_path, {**FILES, "demo-1.0/PKG-INFO": FILES["demo-1.0/PKG-INFO"].replace("demo", "other")})
    path.write_bytes(path.read_bytes()[:-4])
    assert {"sdist-format", "metadata-name"} <= set(codes(path))


@pytest.mark.parametrize(
    ("limits", "named"),
    [({"members": 2}, "2 members"), ({"unpacked": 5000}, "5000 bytes"), ({"metadata": 10}, "at most 10")],
)
def test_what_holds_more_than_is_read_is_refused_with_the_limit(
    limits: dict[str, int], named: str, tmp_path: Path
) -> None:
    findings = check_sdist(make_sdist(tmp_path), limits=Limits(**limits))
    assert any(finding.code == "limit-exceeded" and named in finding.message for finding in findings)
    assert te_wheel("check", make_sdist(tmp_path), *(f"--limit={n}={v}" for n, v in limits.items())).code == 1


def test_a_header_of_a_gigabyte_is_not_read_into_memory(tmp_path: Path) -> None:
    path = tmp_path / "demo-1.0.tar.gz"
    info = tarfile.TarInfo("././@LongLink")
    info.type, info.size = tarfile.GNUTYPE_LONGNAME, 1 << 30
    with gzip.open(path, "wb", compresslevel=1) as file:
        file.write(info.tobuf(tarfile.GNU_FORMAT))
        for _ in range(32):
            file.write(bytes(1 << 20))
    assert "limit-exceeded" in codes(path)


def test_a_bomb_is_stopped_at_the_limit(tmp_path: Path) -> None:
    path = make_sdist(tmp_path, more=[entry("demo-1.0/zeros", bytes(8 << 20))])
    assert "limit-exceeded" in codes(path, unpacked=4 << 20)
    assert codes(path) == []


def test_a_file_that_cannot_be_read_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(FileError, match="No such file"):
        check_sdist(tmp_path / "demo-1.0.tar.gz")
    (tmp_path / "x-1.tar.gz").mkdir()
    with pytest.raises(FileError, match="no regular file"):
        check_sdist(tmp_path / "x-1.tar.gz")


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_no_damage_raises_and_none_to_the_packed_bytes_goes_unseen(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    folder = tmp_path_factory.getbasetemp() / "damaged-sdists"
    raw = bytearray(make_sdist(folder).read_bytes())
    whole = gzip.decompress(bytes(raw))
    packed = data.draw(st.booleans())
    if not packed:
        raw = bytearray(gzip.decompress(bytes(raw)))
    # Time, flags and system of the gzip header mean nothing.
    at = data.draw(st.integers(10 if packed else 0, len(raw) - 1))
    if data.draw(st.booleans()):
        del raw[at:]
    else:
        raw[at] ^= data.draw(st.integers(1, 255))
    path = folder / "demo-1.0.tar.gz"
    path.write_bytes(bytes(raw) if packed else gzip.compress(bytes(raw), mtime=0))
    errors = [finding for finding in check_sdist(path, pypi=True) if finding.severity is Severity.ERROR]
    if packed and not errors:
        # A bit of the code that no symbol uses changes nothing.
        assert gzip.decompress(bytes(raw)) == whole


def test_a_tar_that_another_reader_sees_more_in_is_found(tmp_path: Path) -> None:
    hidden = io.BytesIO()
    with tarfile.open(fileobj=hidden, mode="w") as archive:
        info, content = entry("demo-1.0/hidden", "x")
        archive.addfile(info, io.BytesIO(content))
    assert "sdist-format" in codes(make_sdist(tmp_path, tail=hidden.getvalue()))
