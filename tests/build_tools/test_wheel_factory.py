"""The factory tells the truth: its plain wheel is plain, and its zip is what zipfile writes."""

from __future__ import annotations

import io
import zipfile
from pathlib import Path

from tests.build_tools.wheel_factory import DEFLATED, STORED, Archive, Member, make_wheel, symlink, write_zip
from tests.build_tools.wheel_reader import read_right


def test_the_plain_wheel_is_right_in_every_part(tmp_path: Path) -> None:
    wheel = make_wheel(tmp_path)
    assert wheel.name == "demo-1.0-py3-none-any.whl"
    assert list(read_right(wheel)) == [
        "demo/__init__.py",
        "demo-1.0.dist-info/METADATA",
        "demo-1.0.dist-info/WHEEL",
        "demo-1.0.dist-info/RECORD",
    ]


def test_an_archive_has_the_bytes_that_zipfile_writes() -> None:
    members = [
        ("a/empty", Member(b"", method=STORED)),
        ("a/text", Member("text " * 100)),
        ("a/\N{GREEK SMALL LETTER PI}.py", Member("x = 1\n", mode=0o755)),
        ("a/link", symlink("text")),
    ]
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, member in members:
            info = zipfile.ZipInfo(name, member.date)
            info.compress_type, info.external_attr = member.method, (member.kind | member.mode) << 16
            archive.writestr(info, member.content)
    assert write_zip(members) == buffer.getvalue()


def test_zipfile_reads_the_oddities_that_it_knows(tmp_path: Path) -> None:
    archive = Archive(every={"streamed": True, "comment": b"why", "extra": b"\xfe\xca\x01\x00x"}, comment=b"all")
    wheel = make_wheel(tmp_path, files={"big": Member(b"x" * 999, zip64=True)}, archive=archive)
    with zipfile.ZipFile(wheel) as read:
        assert read.testzip() is None
        assert read.comment == b"all"
        assert all(info.flag_bits & 8 and info.comment == b"why" for info in read.infolist())
        assert read.getinfo("big").compress_type == DEFLATED
