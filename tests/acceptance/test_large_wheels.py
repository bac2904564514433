"""R24: wheels that need ZIP64, and what reads them. Slow: gigabytes, or tens of thousands of files."""

from __future__ import annotations

import base64
import hashlib
import os
import shutil
import struct
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from build_tools.wheels import WheelEdit, check_wheel, repack
from tests.acceptance.judges import PIP, UV, ZIPFILE
from tests.build_tools.wheel_factory import digest, metadata_text, record_text, wheel_text, wide_wheel

pytestmark = pytest.mark.slow

# By hand: TE_THOROUGH=1 reads, renames back and installs them too, which takes minutes.
THOROUGH = bool(os.environ.get("TE_THOROUGH"))
INSTALLERS = {"pip": PIP, "uv": UV}
GIB = 1 << 30
LARGE = 4 * GIB + 1
MEMBERS = 70_000
INFO = "demo-1.0.dist-info"


@pytest.fixture(autouse=True)
def clear_up(tmp_path: Path) -> Iterator[None]:
    yield
    shutil.rmtree(tmp_path)


def digest_of_zeros(size: int) -> tuple[int, str]:
    """CRC and RECORD's digest of so many zero bytes."""
    crc, sha256, block = 0, hashlib.sha256(), bytes(1 << 24)
    for start in range(0, size, len(block)):
        piece = memoryview(block)[: min(len(block), size - start)]
        crc = zlib.crc32(piece, crc)
        sha256.update(piece)
    return crc, f"sha256={base64.urlsafe_b64encode(sha256.digest()).rstrip(b'=').decode()}"


def sparse_wheel(folder: Path) -> Path:
    """A wheel with a stored member of over 4 GiB of zeros, which take no place on most disks."""
    crc, text = digest_of_zeros(LARGE)
    small = {f"{INFO}/METADATA": metadata_text().encode(), f"{INFO}/WHEEL": wheel_text().encode()}
    rows = [
        ["demo/zeros.bin", text, str(LARGE)],
        *([name, digest(data), str(len(data))] for name, data in small.items()),
    ]
    small[f"{INFO}/RECORD"] = record_text([*rows, [f"{INFO}/RECORD", "", ""]]).encode()
    wheel = folder / "demo-1.0-py3-none-any.whl"
    folder.mkdir()
    central, count = b"", 0
    with wheel.open("wb") as file:
        for name, data in [("demo/zeros.bin", None), *small.items()]:
            size, checksum = (LARGE, crc) if data is None else (len(data), zlib.crc32(data))
            offset, raw = file.tell(), name.encode()
            large = struct.pack("<HHQQ", 1, 16, size, size) if data is None else b""
            shown = 0xFFFFFFFF if large else size
            needed = 45 if large or offset > 0xFFFFFFFF else 20
            common = struct.pack("<HHH2HLLL", needed, 0, 0, 0, 0x5821, checksum, shown, shown)
            file.write(b"PK\3\4" + common + struct.pack("<HH", len(raw), len(large)) + raw + large)
            file.seek(LARGE, 1) if data is None else file.write(data)
            extra = large
            if offset > 0xFFFFFFFF:
                extra = struct.pack("<HHQ", 1, 8, offset)
            shown = min(offset, 0xFFFFFFFF)
            rest = struct.pack("<5HLL", len(raw), len(extra), 0, 0, 0, 0o100644 << 16, shown)
            central += b"PK\1\2\x14\3" + common + rest + raw + extra
            count += 1
        start = file.tell()
        end64 = struct.pack("<4sQHHLLQQQQ", b"PK\6\6", 44, 3 << 8 | 45, 45, 0, 0, count, count, len(central), start)
        locator = struct.pack("<4sLQL", b"PK\6\7", 0, start + len(central), 1)
        file.write(
            central
            + end64
            + locator
            + struct.pack("<4s4H2LH", b"PK\5\6", 0, 0, count, count, len(central), 0xFFFFFFFF, 0)
        )
    return wheel


def install(wheel: Path, folder: Path) -> None:
    for name, judge in INSTALLERS.items():
        verdict = judge.ask([wheel], folder / name)
        assert verdict.accepted, verdict.said
        shutil.rmtree(folder / name)


@pytest.mark.skipif(not THOROUGH, reason="4 GiB are written several times: set TE_THOROUGH=1")
def test_r24_a_member_of_over_4_gib_is_kept_and_read_by_all(tmp_path: Path) -> None:
    if shutil.disk_usage(tmp_path).free < 16 * GIB:
        pytest.skip("less than 16 GiB are free")
    wheel = sparse_wheel(tmp_path / "in")
    assert zipfile.ZipFile(wheel).getinfo("demo/zeros.bin").file_size == LARGE
    assert {finding.code for finding in check_wheel(wheel)} == set()
    output = repack(wheel, tmp_path / "out", WheelEdit(name="other")).path
    assert {finding.code for finding in check_wheel(output)} == set()
    with zipfile.ZipFile(output) as archive:
        assert archive.getinfo("demo/zeros.bin").file_size == LARGE
        assert b"Name: other\n" in archive.read("other-1.0.dist-info/METADATA")
    verdict = ZIPFILE.ask([output], tmp_path)
    assert verdict.accepted, verdict.said
    back = repack(output, tmp_path / "back", WheelEdit(name="demo")).path
    assert back.stat().st_size == wheel.stat().st_size
    # The zeros are in all three; the rest is the same to the byte.
    tails = []
    for path in (wheel, back):
        with path.open("rb") as file:
            head = file.read(100)
            file.seek(LARGE)
            tails.append((head, file.read()))
    assert tails[0] == tails[1]
    shutil.rmtree(tmp_path / "back")
    install(output, tmp_path)


@pytest.mark.parametrize(
    ("members", "large"), [(65_534, False), (65_535, True), (MEMBERS, True)] if THOROUGH else [(MEMBERS, True)]
)
def test_r24_many_members_have_zip64_end_records_only_where_they_are_needed(
    members: int, large: bool, tmp_path: Path
) -> None:
    wheel = wide_wheel(tmp_path / "in", members)
    output = repack(wheel, tmp_path / "out", WheelEdit(name="other")).path
    data = output.read_bytes()
    assert (b"PK\6\6" in data[-200:]) == large
    assert {finding.code for finding in check_wheel(output, hashes=THOROUGH)} == set()
    with zipfile.ZipFile(output) as archive:
        assert len(archive.namelist()) == members
        assert archive.read("demo/d9/f9000.txt") == b""
    if not THOROUGH:
        return
    back = repack(output, tmp_path / "back", WheelEdit(name="demo")).path
    normal = repack(wheel, tmp_path / "normal").path
    assert back.read_bytes() == normal.read_bytes()
    if members == MEMBERS:
        install(output, tmp_path)
