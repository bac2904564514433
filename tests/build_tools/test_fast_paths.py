"""What is usual is told in few steps; it must be told just as the closer look at each member and row tells it."""

from __future__ import annotations

import os
import struct
import subprocess
import sys
import tracemalloc
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from build_tools.wheels import WheelEdit, member_names, repack
from build_tools.wheels.central_directory import CentralDirectory
from build_tools.wheels.finding import Finding
from build_tools.wheels.member import Member
from build_tools.wheels.record import Record
from build_tools.wheels.wheel import Wheel
from tests.build_tools.damage import FORMS, damaged, small_wheel
from tests.build_tools.wheel_factory import PACKAGE, digest, make_wheel, wide_wheel
from tests.build_tools.wheel_reader import read_right

OWN = "demo-1.0.dist-info/RECORD"
NAMES = st.one_of(
    st.lists(st.sampled_from(["a", "A", "b.py", "__init__.py"]), min_size=1, max_size=3).map("/".join),
    st.text("aAB./ \\:\n\x7fé\u2028", max_size=8),
)


def read_record(wheel: Path) -> str:
    with zipfile.ZipFile(wheel) as archive:
        return archive.read(archive.namelist()[-1]).decode()


@contextmanager
def closely() -> Iterator[None]:
    """Every header, name and row is looked at by itself."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(CentralDirectory, "_usual_member", lambda *_: None)
        patch.setattr(member_names, "_are_faultless", lambda _: False)
        patch.setattr(Record, "parse_faultless", lambda *_: None)
        yield


class TestNames:
    @given(st.lists(NAMES, max_size=12))
    @settings(max_examples=600)
    @example(["a", "a/"])
    @example(["a", "A/"])
    @example(["a/b", "A/b"])
    @example(["d/a", "d/a/b/c"])
    @example(["a", "a"])
    @example(["A", "A"])
    @example(["x" * 256])
    @example(["x/" * 127 + "x"])
    def test_in_batches_have_the_findings_of_each(self, names: list[str]) -> None:
        found = member_names.check_names(names)
        with closely():
            assert found == member_names.check_names(names)

    @pytest.mark.parametrize(
        "odd", ["/x/y", "a//b", "a/./b", "../a", "a/..", "a./b", "a /b", "a.", "a ", "c:a", "a\\b", "a\nb", "a\x7f", ""]
    )
    @pytest.mark.parametrize("at", [0, 1500, 2999])
    def test_one_that_is_unsafe_is_found_among_thousands(self, odd: str, at: int) -> None:
        names = [f"demo/f{number}.py" for number in range(3000)]
        assert member_names.check_names(names) == []
        names[at] = odd
        assert "zip-unsafe-name" in [finding.code for finding in member_names.check_names(names)]

    def test_that_are_deep_take_no_memory_for_each_of_their_folders(self) -> None:
        names = [f"{number}/" + "x/" * 120 + "x" for number in range(3000)]
        tracemalloc.start()
        try:
            assert member_names.check_names(names) == []
            assert tracemalloc.get_traced_memory()[1] < 10 << 20
        finally:
            tracemalloc.stop()

    def test_of_a_usual_wheel_are_told_in_batches(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(member_names, "is_unsafe", None)
        names = ["demo/__init__.py", "demo/Makefile", "demo/d/", OWN]
        assert member_names.check_names(names) == []


CELLS = st.sampled_from(["demo/a.py", "demo/b.py", "demo/d/", "demo/é", OWN, '"demo/c,d"', "", "../x", "demo/gone"])
DIGESTS = st.sampled_from([digest(b"x"), digest(b""), "", "sha256=short", "md5=abc", digest(b"x", "sha512")])
SIZES = st.sampled_from(["1", "0", "", "01", "x", "1" * 21])
FILES = {"demo/a.py": b"x", "demo/b.py": b"x", "demo/c,d": b"", "demo/é": b"x"}


class TestRecord:
    @given(
        st.permutations([*FILES, OWN]),
        st.lists(st.tuples(CELLS, DIGESTS, SIZES).map(",".join), max_size=2),
        st.sampled_from(["\n", "\r\n", "\r"]),
        st.sampled_from(["", "\n", "\r\n", "\x00"]),
        st.booleans(),
    )
    @settings(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
    def test_is_read_as_row_by_row(
        self, tmp_path: Path, order: list[str], odd: list[str], end: str, tail: str, comma: bool
    ) -> None:
        names = [name for name in order if comma or "," not in name]
        rows = [f"{name},{digest(FILES[name])},{len(FILES[name])}" if name in FILES else f"{name},," for name in names]
        rows = [f'"demo/c,d"{row[8:]}' if row.startswith("demo/c,d") else row for row in rows]
        record = end.join([*rows, *odd]) + tail
        files = {name: data for name, data in FILES.items() if comma or "," not in name}
        wheel = make_wheel(tmp_path, files=files, omit=["METADATA", "WHEEL"], record=record)
        quick, close = self.told(wheel)
        assert quick == close

    @pytest.mark.parametrize("dist_info", ["de,mo-1.0.dist-info", '"demo-1.0.dist-info', 'demo-1.0".dist-info'])
    def test_whose_own_row_is_none_is_read_as_row_by_row(self, dist_info: str, tmp_path: Path) -> None:
        record = f"demo/a.py,{digest(b'x')},1\n{dist_info}/RECORD,,\n"
        wheel = make_wheel(
            tmp_path, dist_info=dist_info, files={"demo/a.py": "x"}, omit=["METADATA", "WHEEL"], record=record
        )
        quick, close = self.told(wheel)
        assert quick == close

    @pytest.mark.parametrize("end", ["\n", "\r\n"])
    def test_of_a_usual_wheel_is_read_at_once(self, end: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        files = {**PACKAGE, "demo/é.py": "", "demo/d/e.py": "x = 1\n"}
        text = read_record(make_wheel(tmp_path / "lf", files=files))
        wheel = make_wheel(tmp_path / "in", files=files, record=text.replace("\n", end))
        monkeypatch.setattr(Record, "parse", None)
        with Wheel.open(wheel) as read:
            assert read.findings == []
            assert read.record is not None
            assert read.record.to_bytes().decode() == text.replace("\n", end)

    @staticmethod
    def told(wheel: Path) -> list[tuple[list[Finding], bytes | None, list[object]]]:
        told: list[tuple[list[Finding], bytes | None, list[object]]] = []
        for look in (closely, None):
            with look() if look else pytest.MonkeyPatch.context(), Wheel.open(wheel) as read:
                record = read.record
                told.append((read.findings, record and record.to_bytes(), [] if record is None else [*record]))
        return told[::-1]


def members(data: bytes) -> tuple[list[Member], list[Member], list[Finding]]:
    directory = CentralDirectory(lambda offset, length: data[offset : offset + length], len(data))
    return directory.members, directory.odd, directory.findings


class TestHeaders:
    @pytest.mark.parametrize("form", FORMS)
    def test_that_are_damaged_are_told_as_one_by_one(self, form: str, tmp_path: Path) -> None:
        data = small_wheel(tmp_path, form).read_bytes()
        changes = [("nothing", data), *damaged(data, thorough=False)]
        quick = [members(change) for _, change in changes]
        with closely():
            for (what, change), told in zip(changes, quick, strict=True):
                assert told == members(change), what

    def test_of_a_clean_wheel_are_told_at_once(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(CentralDirectory, "_read_member", None)
        found, odd, findings = members(small_wheel(tmp_path, "clean").read_bytes())
        assert len(found) == 6
        assert odd == findings == []

    def test_in_another_order_than_their_data_are_no_fault(self, tmp_path: Path) -> None:
        data = small_wheel(tmp_path, "clean").read_bytes()
        end = data.rindex(b"PK\5\6")
        (start,) = struct.unpack("<L", data[end + 16 : end + 20])
        records = [b"PK\1\2" + record for record in data[start:end].split(b"PK\1\2")[1:]]
        found, _, findings = members(data[:start] + b"".join(reversed(records)) + data[end:])
        assert findings == []
        assert found == members(data)[0][::-1]

    @pytest.mark.parametrize("size", [0, 1, 900, 3000, 20_000, 100_000])
    def test_are_found_however_far_they_stand_apart(self, size: int, tmp_path: Path) -> None:
        wheel = make_wheel(tmp_path, files={f"demo/{number}.bin": os.urandom(size) for number in range(40)})
        data = wheel.read_bytes()
        found, _, findings = members(data)
        assert findings == []
        with zipfile.ZipFile(wheel) as archive:
            assert [(m.name, m.size, m.header_offset) for m in found] == [
                (info.filename, info.file_size, info.header_offset) for info in archive.infolist()
            ]


def test_a_member_has_the_numbers_of_its_header(tmp_path: Path) -> None:
    wheel = small_wheel(tmp_path, "clean")
    with zipfile.ZipFile(wheel) as archive, Wheel.open(wheel) as read:
        for info, member in zip(archive.infolist(), read.archive.members, strict=True):
            entry = member.entry
            assert (entry.name, entry.crc, entry.size) == (info.filename, info.CRC, info.file_size)
            assert (entry.compressed_size, entry.external_attr) == (info.compress_size, info.external_attr)
            assert (member.mode, member.is_dir) == (info.external_attr >> 16, info.is_dir())
            assert member.end == member.data_offset + info.compress_size


PEAK = """
import resource, sys
from build_tools.cli import main
code = main(sys.argv[1:])
print(code, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024, file=sys.stderr)
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="memory is counted in KiB on Linux")
def test_seventy_thousand_members_and_a_long_description_stay_within_64_mib(tmp_path: Path) -> None:
    wide = wide_wheel(tmp_path / "wide", 70_000)
    long = make_wheel(tmp_path / "long", description=os.urandom(3_900_000).hex())
    for wheel in (wide, long):
        command = ["repack", wheel, "--name", "other", "-o", wheel.parent / "out", "-q"]
        # A process counts the memory of the one that started it as its own, so a small one starts it.
        start = [sys.executable, "-c", "import subprocess, sys; sys.exit(subprocess.run(sys.argv[1:]).returncode)"]
        done = subprocess.run(
            [*start, sys.executable, "-c", PEAK, *command], capture_output=True, text=True, check=False
        )
        code, mib = map(int, done.stderr.split()[-2:])
        assert code == 0, done.stderr
        assert mib < 64, wheel


def test_rows_keep_their_bytes_and_new_ones_stand_before_that_of_record(tmp_path: Path) -> None:
    files = {"demo/a,b.py": "x\n", 'demo/"q".py': "y\n", **PACKAGE}
    wheel = make_wheel(tmp_path / "in", files=files)
    extra = tmp_path / "extra.py"
    extra.write_text("z\n")
    edit = WheelEdit(name="other", add_file=[f"{extra}=demo/extra.py"], remove_file=['demo/"q".py'])
    made = repack(wheel, tmp_path / "out", edit).path
    read_right(made)
    old = read_record(wheel).splitlines()
    new = read_record(made).splitlines()
    assert old[0] == new[0]
    assert old[0].startswith('"demo/a,b.py"')
    assert [line.split(",")[0] for line in new[-2:]] == ["demo/extra.py", "other-1.0.dist-info/RECORD"]
    assert len(new) == len(old)
