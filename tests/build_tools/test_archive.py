"""Reading an archive: data comes out exactly, or not at all, in bounded pieces."""

from __future__ import annotations

import os
import random
import struct
import zipfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from build_tools.errors import FileError, WheelError
from build_tools.wheels.archive import CHUNK, Archive
from build_tools.wheels.rules import Severity


def zip_of(folder: Path, data: bytes, method: int = zipfile.ZIP_DEFLATED) -> Path:
    path = folder / "a.zip"
    with zipfile.ZipFile(path, "w", method) as archive:
        archive.writestr(zipfile.ZipInfo("a"), data, method)
    return path


# Sizes around the pieces that are read and inflated: the last bytes may wait inside the inflater.
@pytest.mark.parametrize("size", [0, 1, CHUNK - 1, CHUNK, CHUNK + 1, 2 * CHUNK, 3 * CHUNK + 258, 5 * CHUNK - 258])
@pytest.mark.parametrize("kind", ["zeros", "noise"])
@pytest.mark.parametrize("method", [zipfile.ZIP_DEFLATED, zipfile.ZIP_STORED])
def test_data_comes_out_whole_in_pieces_of_at_most_a_megabyte(
    size: int, kind: str, method: int, tmp_path: Path
) -> None:
    data = bytes(size) if kind == "zeros" else random.Random(size).randbytes(size)
    with Archive.open(zip_of(tmp_path, data, method)) as archive:
        assert archive.findings == []
        pieces = list(archive.chunks(archive.members[0]))
    assert b"".join(pieces) == data
    assert max(map(len, pieces), default=0) <= CHUNK


def test_a_member_that_inflates_to_more_than_it_says_is_stopped_there(tmp_path: Path) -> None:
    path = zip_of(tmp_path, bytes(64 * CHUNK))
    raw = bytearray(path.read_bytes())
    for at in (raw.index(b"PK\x03\x04") + 22, raw.index(b"PK\x01\x02") + 24):
        raw[at : at + 4] = struct.pack("<L", 10)
    path.write_bytes(raw)
    with Archive.open(path) as archive:
        assert archive.findings == []
        pieces = archive.chunks(archive.members[0])
        with pytest.raises(WheelError, match="more than the 10 bytes"):
            next(pieces)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (b"\xff", r"does not inflate"),
        (b"\x03\x00\x03\x00", r"bytes follow its deflate stream"),
    ],
)
def test_damaged_data_is_named(damage: bytes, message: str, tmp_path: Path) -> None:
    path = zip_of(tmp_path, b"some text that is long enough to be deflated, deflated, deflated")
    raw = bytearray(path.read_bytes())
    raw[31 : 31 + len(damage)] = damage
    path.write_bytes(raw)
    with Archive.open(path) as archive, pytest.raises(WheelError, match=message):
        list(archive.chunks(archive.members[0]))


@settings(max_examples=300)
@given(st.data())
def test_no_damage_to_the_records_goes_unseen_or_raises_anything_but_its_kind(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    folder = tmp_path_factory.getbasetemp()
    raw = bytearray(_sound(folder))
    start = raw.index(b"PK\x01\x02")
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.one_of(st.integers(0, 40), st.integers(start, len(raw) - 1)))
        raw[at] = data.draw(st.integers(0, 255))
    if data.draw(st.booleans()):
        del raw[data.draw(st.integers(0, len(raw))) :]
    path = folder / "damaged.zip"
    path.write_bytes(raw)
    with Archive.open(path) as archive:
        if not any(finding.severity is Severity.ERROR for finding in archive.findings):
            # What has no error reads as Python's own reader reads it.
            with zipfile.ZipFile(path) as other:
                assert [member.name for member in archive.members] == other.namelist()
                for member in archive.members:
                    try:
                        mine = archive.read(member, CHUNK)
                    except WheelError:
                        continue
                    assert mine == other.read(member.name)


def _sound(folder: Path) -> bytes:
    path = folder / "sound.zip"
    if not path.exists():
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr(zipfile.ZipInfo("a"), b"aaaaaaaaaaaaaaaaaaaaaaaaaaaa", zipfile.ZIP_DEFLATED)
            archive.writestr(zipfile.ZipInfo("folder/b"), b"b" * 40, zipfile.ZIP_STORED)
    return path.read_bytes()


@pytest.mark.parametrize("make", [lambda path: path.mkdir(), lambda path: os.mkfifo(path), lambda path: None])
def test_what_is_no_regular_file_is_an_error_in_plain_words_and_never_waits(make: object, tmp_path: Path) -> None:
    path = tmp_path / "x.whl"
    make(path)  # type: ignore[operator]
    with pytest.raises(FileError, match=r"folder|regular file|No such file"):
        Archive.open(path)
