"""Writing an archive: what moves through the kernel, and what does when the kernel will not."""

from __future__ import annotations

import errno
import os
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest

from build_tools.errors import FileError, WheelError
from build_tools.wheels import WheelEdit, check_wheel, repack
from build_tools.wheels import zip_format as fmt
from build_tools.wheels.archive import Archive
from build_tools.wheels.archive_writer import ArchiveWriter
from build_tools.wheels.zip_format import Entry
from tests.build_tools.wheel_factory import make_wheel

FILES = {f"demo/f{number}.bin": os.urandom(50_000) for number in range(5)}
Copy = Callable[..., int]


def refuse(number: int) -> Copy:
    def copy(*_: object) -> int:
        raise OSError(number, os.strerror(number))

    return copy


def stop_early(real: Copy) -> Copy:
    """At most 1,000 bytes a call, and nothing at all after 20,000: both are allowed."""
    done = 0

    def copy(source: int, target: int, count: int, offset: int) -> int:
        nonlocal done
        copied = real(source, target, min(count, 1000), offset) if done < 20_000 else 0
        done += copied
        return copied

    return copy


@pytest.mark.skipif(not hasattr(os, "copy_file_range"), reason="no kernel copy here")
@pytest.mark.parametrize("error", ["ENOSYS", "EXDEV", "EINVAL", "EOPNOTSUPP", "EPERM"])
def test_where_the_kernel_refuses_the_copy_the_output_is_the_same(
    error: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wheel = make_wheel(tmp_path, files=FILES)
    expected = repack(wheel, tmp_path / "kernel", WheelEdit(name="other")).path.read_bytes()
    monkeypatch.setattr(os, "copy_file_range", refuse(getattr(errno, error)))
    assert repack(wheel, tmp_path / "own", WheelEdit(name="other")).path.read_bytes() == expected


@pytest.mark.skipif(not hasattr(os, "copy_file_range"), reason="no kernel copy here")
def test_a_copy_that_stops_early_is_gone_on_with(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wheel = make_wheel(tmp_path, files=FILES)
    expected = repack(wheel, tmp_path / "kernel", WheelEdit(name="other")).path.read_bytes()
    monkeypatch.setattr(os, "copy_file_range", stop_early(os.copy_file_range))
    assert repack(wheel, tmp_path / "own", WheelEdit(name="other")).path.read_bytes() == expected


def test_without_a_kernel_copy_the_output_is_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wheel = make_wheel(tmp_path, files=FILES)
    expected = repack(wheel, tmp_path / "kernel", WheelEdit(name="other")).path.read_bytes()
    monkeypatch.delattr(os, "copy_file_range", raising=False)
    assert repack(wheel, tmp_path / "own", WheelEdit(name="other")).path.read_bytes() == expected


@pytest.mark.skipif(not hasattr(os, "copy_file_range"), reason="no kernel copy here")
@pytest.mark.parametrize("error", ["ENOSPC", "EIO"])
def test_a_disk_that_fails_is_named_and_leaves_nothing(
    error: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wheel = make_wheel(tmp_path, files=FILES)
    before = wheel.read_bytes()
    monkeypatch.setattr(os, "copy_file_range", refuse(getattr(errno, error)))
    with pytest.raises(FileError, match=os.strerror(getattr(errno, error))):
        repack(wheel, tmp_path / "out", WheelEdit(name="other"))
    assert list((tmp_path / "out").iterdir()) == []
    assert wheel.read_bytes() == before


def test_a_member_written_in_pieces_has_right_headers_whether_they_are_still_in_memory_or_not(tmp_path: Path) -> None:
    path = tmp_path / "a.zip"
    sizes = [10, 3 << 20, 0, 2 << 20]
    fd = os.open(path, os.O_RDWR | os.O_CREAT)
    writer = ArchiveWriter(fd)
    for number, size in enumerate(sizes):
        data = os.urandom(size)
        entry = Entry(
            name=f"m{number}", method=fmt.STORED, crc=0, compressed_size=0, size=size, dos_time=(1 << 21 | 1 << 16)
        )
        writer.begin(entry)
        for at in range(0, size, 100_000):
            writer.write(data[at : at + 100_000])
        writer.end(zlib.crc32(data), size)
    assert writer.finish() == path.stat().st_size
    os.close(fd)
    with zipfile.ZipFile(path) as archive:
        assert archive.testzip() is None
        assert [info.file_size for info in archive.infolist()] == sizes
    with Archive.open(path) as archive:
        assert archive.findings == []


def test_a_file_that_grows_past_4_gib_meanwhile_is_refused(tmp_path: Path) -> None:
    fd = os.open(tmp_path / "a.zip", os.O_RDWR | os.O_CREAT)
    writer = ArchiveWriter(fd)
    writer.begin(Entry(name="m", method=fmt.STORED, crc=0, compressed_size=0, size=1, dos_time=0))
    with pytest.raises(WheelError, match="changed its size"):
        writer.end(0, fmt.LIMIT_32)
    os.close(fd)


def test_a_member_of_4_gib_gets_zip64_and_its_small_neighbours_do_not(tmp_path: Path) -> None:
    # Sparse: 4 GiB of zeros that take no room, stored.
    path = tmp_path / "demo-1.0-py3-none-any.whl"
    size = (4 << 30) + 5
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(zipfile.ZipInfo("demo/__init__.py"), b"x = 1\n")
    head = path.read_bytes()
    central = head.index(b"PK\x01\x02")
    entry = Entry(name="big", method=fmt.STORED, crc=0x1234, compressed_size=size, size=size, dos_time=(33 << 16))
    local = fmt.local_header(entry)
    assert len(local) == 30 + len("big") + 20
    with path.open("r+b") as file:
        file.seek(central)
        file.write(local)
        file.seek(central + len(local) + size)
        first = head[central : head.index(b"PK\x05\x06")]
        records = first + fmt.central_header(entry, central)
        file.write(records + fmt.end_records(2, central + len(local) + size, len(records)))
    with zipfile.ZipFile(path) as archive:
        assert [info.file_size for info in archive.infolist()] == [6, size]
    with Archive.open(path) as archive:
        assert [member.clean for member in archive.members] == [True, True]
        assert archive.findings == []


def test_everything_that_the_writer_makes_passes_the_check(tmp_path: Path) -> None:
    made = repack(make_wheel(tmp_path, files=FILES), tmp_path / "out", WheelEdit(name="other"))
    assert check_wheel(made.path, hashes=True) == []
