"""The records of an archive: ZIP64 exactly where a number does not fit, and right there."""

from __future__ import annotations

import io
import zipfile

import pytest

from build_tools.wheels import zip_format as fmt
from build_tools.wheels.central_directory import CentralDirectory
from build_tools.wheels.zip_format import Entry


def entry(name: str, size: int = 0) -> Entry:
    return Entry(name=name, method=fmt.STORED, crc=0, compressed_size=size, size=size, dos_time=33 << 16)


@pytest.mark.parametrize(("count", "large"), [(0, False), (1, False), (65_534, False), (65_535, True), (65_536, True)])
def test_many_members_need_zip64_from_65535_on(count: int, large: bool) -> None:
    entries = [entry(f"f{number}") for number in range(count)]
    locals_ = [fmt.local_header(item) for item in entries]
    offsets = [0]
    for local in locals_:
        offsets.append(offsets[-1] + len(local))
    central = b"".join(map(fmt.central_header, entries, offsets))
    end = fmt.end_records(count, offsets[-1], len(central))
    raw = b"".join(locals_) + central + end
    assert (len(end) > fmt.END.size) == large
    with zipfile.ZipFile(io.BytesIO(raw)) as archive:
        assert len(archive.namelist()) == count
    directory = CentralDirectory(lambda offset, length: raw[offset : offset + length], len(raw))
    assert directory.findings == []
    assert len(directory.members) == count


@pytest.mark.parametrize("offset", [fmt.LIMIT_32 - 1, fmt.LIMIT_32, fmt.LIMIT_32 + 1])
def test_an_offset_needs_zip64_from_4_gib_less_a_byte_on(offset: int) -> None:
    header = fmt.central_header(entry("a"), offset)
    assert (len(header) > fmt.CENTRAL.size + 1) == (offset >= fmt.LIMIT_32)
    (read,) = zipfile.ZipFile(io.BytesIO(header + fmt.END.pack(b"PK\5\6", 0, 0, 1, 1, len(header), 0, 0))).infolist()
    assert read.header_offset == offset


@pytest.mark.parametrize("size", [fmt.LIMIT_32 - 1, fmt.LIMIT_32])
def test_a_size_needs_zip64_in_both_headers(size: int) -> None:
    large = size >= fmt.LIMIT_32
    local = fmt.local_header(entry("a", size))
    assert len(local) == fmt.LOCAL.size + 1 + (20 if large else 0)
    assert fmt.LOCAL.unpack_from(local)[1] == (45 if large else 20)
    header = fmt.central_header(entry("a", size), 0)
    (read,) = zipfile.ZipFile(io.BytesIO(header + fmt.END.pack(b"PK\5\6", 0, 0, 1, 1, len(header), 0, 0))).infolist()
    assert (read.file_size, read.compress_size) == (size, size)


@pytest.mark.parametrize(("disk", "shift", "disks"), [(1, 0, 1), (0, -1, 1), (0, 5, 1), (0, 0, 0), (0, 0, 9)])
def test_a_locator_that_names_another_place_is_found(disk: int, shift: int, disks: int) -> None:
    end = bytearray(fmt.end_records(fmt.LIMIT_16, 0, 0))
    at = end.index(fmt.LOCATOR_SIGNATURE)
    end[at : at + fmt.LOCATOR.size] = fmt.LOCATOR.pack(fmt.LOCATOR_SIGNATURE, disk, abs(shift), disks)
    raw = bytes(end)
    directory = CentralDirectory(lambda offset, length: raw[offset : offset + length], len(raw))
    assert "zip-header-mismatch" in {finding.code for finding in directory.findings}


def test_an_end_record_whose_numbers_look_like_its_signature_is_found_all_the_same() -> None:
    end = fmt.END.pack(fmt.END_SIGNATURE, 0, 0, 0, 0, 0, int.from_bytes(fmt.END_SIGNATURE, "little"), 0)
    size = int.from_bytes(fmt.END_SIGNATURE, "little") + len(end)

    def read_at(offset: int, length: int) -> bytes:
        whole = bytes(max(0, min(size, offset + length) - offset))
        start = size - len(end)
        return whole[: max(0, start - offset)] + end[max(0, offset - start) : max(0, offset + length - start)]

    assert [finding.code for finding in CentralDirectory(read_at, size).findings] == ["zip-prefix"]
