from __future__ import annotations

import io
import os
import tarfile
from pathlib import Path

import pytest

from build_tools.errors import BuildError, FileError
from build_tools.sdist import Sdist, read_sdist, settle_sdist, unpack_sdist
from tests.build_tools.sdist_factory import FILES, make_sdist


class TestRead:
    def test_it_tells_file_folder_and_headers_apart(self, tmp_path: Path) -> None:
        path = make_sdist(tmp_path)
        assert read_sdist(path) == Sdist(path, "demo-1.0", "Demo", "1.0")
        assert read_sdist(path).stem == "demo-1.0"

    @pytest.mark.parametrize(
        ("files", "fault"),
        [
            ({}, "expected one top folder, found none"),
            (FILES | {"other/x": ""}, "expected one top folder, found 'demo-1.0', 'other'"),
            ({"demo-1.0/demo.py": ""}, "holds no demo-1.0/PKG-INFO"),
            ({"demo-1.0/sub/PKG-INFO": ""}, "holds no demo-1.0/PKG-INFO"),
            ({"demo-1.0/PKG-INFO": "no header\n"}, "demo-1.0/PKG-INFO line 1 is no header: 'no header'"),
        ],
        ids=["empty", "two top folders", "no PKG-INFO", "PKG-INFO further down", "no headers"],
    )
    def test_what_is_wrong_is_named(self, tmp_path: Path, files: dict[str, str], fault: str) -> None:
        with pytest.raises(BuildError) as caught:
            read_sdist(make_sdist(tmp_path, files))
        assert caught.value.faults == (f"demo-1.0.tar.gz: {fault}",)

    def test_what_is_no_whole_archive_is_said_to_be_none(self, tmp_path: Path) -> None:
        path = make_sdist(tmp_path)
        data = path.read_bytes()
        for broken in (b"text", b"", data[:-20], data[:40]):
            path.write_bytes(broken)
            with pytest.raises(BuildError, match="not a whole"):
                read_sdist(path)

    def test_a_file_that_is_not_there_is_no_traceback(self, tmp_path: Path) -> None:
        with pytest.raises(FileError, match="No such file"):
            read_sdist(tmp_path / "demo-1.0.tar.gz")


class TestSettle:
    def test_clock_owner_and_umask_leave_no_trace(self, tmp_path: Path) -> None:
        one = make_sdist(tmp_path / "one", mtime=1.5, mode=0o600)
        two = make_sdist(tmp_path / "two", mtime=2e9, mode=0o664)
        for path in (one, two):
            settle_sdist(path, 315532800)
        assert one.read_bytes() == two.read_bytes()
        with tarfile.open(one) as archive:
            assert {(member.mtime, member.uid, member.uname, member.mode) for member in archive} == {
                (315532800, 0, "", 0o644)
            }

    def test_names_order_contents_links_and_x_bits_stay(self, tmp_path: Path) -> None:
        path = tmp_path / "demo-1.0.tar.gz"
        long = "demo-1.0/" + "é" * 200
        with tarfile.open(path, "w:gz", format=tarfile.PAX_FORMAT) as archive:
            for name, kind, mode in [
                ("demo-1.0", tarfile.DIRTYPE, 0o700),
                ("demo-1.0/run", tarfile.REGTYPE, 0o711),
                (long, tarfile.REGTYPE, 0o600),
                ("demo-1.0/link", tarfile.SYMTYPE, 0o777),
            ]:
                info = tarfile.TarInfo(name)
                info.type, info.mode, info.linkname = kind, mode, "run" if kind == tarfile.SYMTYPE else ""
                info.size = 3 if kind == tarfile.REGTYPE else 0
                archive.addfile(info, io.BytesIO(b"abc") if info.size else None)
        settle_sdist(path, 0)
        with tarfile.open(path) as archive:
            assert [(member.name, member.mode, member.linkname) for member in archive] == [
                ("demo-1.0", 0o755, ""),
                ("demo-1.0/run", 0o755, ""),
                (long, 0o644, ""),
                ("demo-1.0/link", 0o755, "run"),
            ]
            stream = archive.extractfile(long)
            assert stream is not None
            assert stream.read() == b"abc"
        assert list(tmp_path.iterdir()) == [path]


class TestUnpack:
    def test_modes_and_times_are_those_of_the_archive_whatever_the_umask(self, tmp_path: Path) -> None:
        path = make_sdist(tmp_path / "one", mode=0o755)
        settle_sdist(path, 315532800)
        before = os.umask(0o077)
        try:
            top = unpack_sdist(path, tmp_path / "out")
        finally:
            os.umask(before)
        assert top == tmp_path / "out" / "demo-1.0"
        facts = (top / "pyproject.toml").stat()
        assert (facts.st_mode & 0o777, facts.st_mtime) == (0o755, 315532800)

    def test_nothing_lands_outside(self, tmp_path: Path) -> None:
        path = make_sdist(tmp_path / "one", {**FILES, "demo-1.0/../../outside": ""})
        with pytest.raises(BuildError, match="cannot be unpacked"):
            unpack_sdist(path, tmp_path / "out")
        assert not (tmp_path / "outside").exists()
