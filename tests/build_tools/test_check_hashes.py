"""``--hashes``: every digest and CRC, whatever the threads and the inflater, in bounded memory."""

from __future__ import annotations

import random
import subprocess
import sys
import threading
import zlib
from importlib import import_module
from pathlib import Path
from types import ModuleType

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from build_tools.errors import FileError
from build_tools.wheels import Finding, Limits, check_wheel
from build_tools.wheels.check_hashes import _LONG, PIECE, _shares, check_hashes
from build_tools.wheels.inflater import ZLIB, Inflater, fastest
from build_tools.wheels.wheel import Wheel
from tests.build_tools.wheel_factory import STORED, Member, digest, make_wheel

NOISE = random.Random(1).randbytes(1 << 16)
OTHER = digest(b"other")


def hashes(wheel: Path, **how: object) -> list[Finding]:
    with Wheel.open(wheel) as opened:
        return check_hashes(opened, **how)  # type: ignore[arg-type]


def installed() -> list[Inflater]:
    """Every inflater that is installed, beside zlib."""
    found = []
    for name in ("isal.isal_zlib", "zlib_ng.zlib_ng"):
        try:
            module = import_module(name)
        except ImportError:
            continue
        found.append(Inflater(name, module.decompressobj, module.crc32, module.error))
    return [*found, fastest()]


@st.composite
def damaged(draw: st.DrawFn) -> tuple[dict[str, Member], set[str]]:
    """Files, some with a wrong CRC, and the names of those whose digest RECORD gives wrongly."""
    files = {}
    wrong = set()
    sizes = st.sampled_from([0, 1, 100, PIECE - 1, PIECE, PIECE + 1, 3 * PIECE])
    for number in range(draw(st.integers(1, 8))):
        size = draw(sizes)
        data = (NOISE * (size // len(NOISE) + 1))[:size]
        method = draw(st.sampled_from([STORED, 8]))
        files[f"demo/{number}"] = Member(data, method=method, crc=draw(st.sampled_from([None, 1])))
        if draw(st.booleans()):
            wrong.add(f"demo/{number}")
    return files, wrong


@settings(max_examples=40, deadline=None)
@given(made=damaged())
def test_the_findings_and_their_order_do_not_depend_on_the_threads(
    made: tuple[dict[str, Member], set[str]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    files, wrong = made
    wheel = make_wheel(
        tmp_path_factory.getbasetemp() / "threads",
        files=files,
        record=lambda rows: [[row[0], OTHER, row[2]] if row[0] in wrong else row for row in rows],
    )
    expected = [
        (code, name)
        for name, member in files.items()
        for code, bad in (
            ("zip-data", member.crc == 1 and zlib.crc32(member.content) != 1),
            ("record-digest", name in wrong),
        )
        if bad
    ]
    for workers in (1, 2, 5):
        found = hashes(wheel, workers=workers)
        assert [(finding.code, finding.member) for finding in found] == expected


@pytest.mark.parametrize("method", [STORED, 8])
def test_a_long_member_is_summed_beside_the_inflating_with_the_same_result(method: int, tmp_path: Path) -> None:
    data = NOISE * (_LONG // len(NOISE) + 3) + b"odd"
    assert hashes(make_wheel(tmp_path, files={"demo/x": Member(data, method=method)})) == []
    wheel = make_wheel(
        tmp_path,
        files={"demo/x": Member(data, method=method, crc=1)},
        record=lambda rows: [[rows[0][0], OTHER, rows[0][2]], *rows[1:]],
    )
    assert [finding.code for finding in hashes(wheel)] == ["zip-data", "record-digest"]


def test_damage_in_the_middle_of_a_long_member_is_found_and_no_thread_stays(tmp_path: Path) -> None:
    data = NOISE * (2 * _LONG // len(NOISE))
    wheel = make_wheel(tmp_path, files={"demo/x": Member(data)})
    raw = bytearray(wheel.read_bytes())
    raw[len(raw) // 2 : len(raw) // 2 + 100] = bytes(100)
    wheel.write_bytes(raw)
    before = threading.active_count()
    found = hashes(wheel)
    assert found[0].code == "zip-data"
    assert {finding.member for finding in found} == {"demo/x"}
    assert threading.active_count() == before


@pytest.mark.parametrize("where", [0, 1, 2, 3])
def test_a_long_stream_damaged_anywhere_is_found_and_every_inflater_agrees(where: int, tmp_path: Path) -> None:
    wheel = make_wheel(tmp_path, files={"demo/x": Member(NOISE * (2 * _LONG // len(NOISE)))})
    raw = bytearray(wheel.read_bytes())
    offset = 100 + where * (len(raw) - 3000) // 3
    raw[offset : offset + 64] = b"\xff" * 64
    wheel.write_bytes(raw)
    before = threading.active_count()
    expected = [(finding.code, finding.member) for finding in hashes(wheel, inflater=ZLIB)]
    assert expected == [("zip-data", "demo/x"), ("record-digest", "demo/x")]
    for inflater in installed():
        assert [(finding.code, finding.member) for finding in hashes(wheel, inflater=inflater)] == expected
    assert threading.active_count() == before


def test_an_interrupt_amid_a_long_member_ends_both_threads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wheel = make_wheel(tmp_path, files={"demo/x": Member(NOISE * (3 * _LONG // len(NOISE)), method=STORED)})
    before = threading.active_count()
    with Wheel.open(wheel) as opened:
        read_at = opened.archive.read_at

        def interrupted(offset: int, length: int) -> bytes:
            if offset > _LONG:
                raise KeyboardInterrupt
            return read_at(offset, length)

        monkeypatch.setattr(opened.archive, "read_at", interrupted)
        with pytest.raises(KeyboardInterrupt):
            check_hashes(opened)
    assert threading.active_count() == before


def test_an_error_of_the_disk_is_an_error_and_no_finding(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wheel = make_wheel(tmp_path, files={f"demo/{i}": Member(NOISE) for i in range(9)})
    with Wheel.open(wheel) as opened:

        def fail(offset: int, length: int) -> bytes:
            raise FileError("the disk is broken")

        monkeypatch.setattr(opened.archive, "read_at", fail)
        with pytest.raises(FileError, match="broken"):
            check_hashes(opened)


def test_an_inflater_that_fails_while_it_sums_is_heard_of(tmp_path: Path) -> None:
    def fail(data: bytes, crc: int) -> int:
        raise MemoryError

    wheel = make_wheel(tmp_path, files={"demo/x": Member(NOISE * (_LONG // len(NOISE) + 20), method=STORED)})
    with pytest.raises(MemoryError):
        hashes(wheel, inflater=ZLIB._replace(crc32=fail))


@pytest.mark.parametrize("name", ["isal.isal_zlib", "zlib_ng.zlib_ng"])
def test_a_faster_inflater_that_is_installed_finds_the_same(name: str, tmp_path: Path) -> None:
    module = pytest.importorskip(name)
    inflater = Inflater(name, module.decompressobj, module.crc32, module.error)
    files = {f"demo/{size}": Member((NOISE * 4)[:size]) for size in (0, 1, PIECE, 3 * PIECE + 1)}
    files["demo/bad"] = Member(NOISE, crc=1)
    wheel = make_wheel(tmp_path, files=files)
    assert hashes(wheel, inflater=inflater) == hashes(wheel, inflater=ZLIB)
    raw = bytearray(wheel.read_bytes())
    raw[2000:2100] = bytes(100)
    wheel.write_bytes(raw)
    assert [f.code for f in hashes(wheel, inflater=inflater)] == [f.code for f in hashes(wheel, inflater=ZLIB)]


def test_without_one_it_is_zlib(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("isal.isal_zlib", "zlib_ng.zlib_ng"):
        monkeypatch.setitem(sys.modules, name, None)
    assert fastest() is ZLIB


def test_one_module_inflates_and_another_sums_where_both_are_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    def module(name: str) -> ModuleType:
        made = ModuleType(name)
        vars(made).update(decompressobj=f"{name}-inflates", crc32=f"{name}-sums", error=zlib.error)
        return made

    isal, ng = "isal.isal_zlib", "zlib_ng.zlib_ng"
    for name in (isal, ng):
        monkeypatch.setitem(sys.modules, name.partition(".")[0], ModuleType(name.partition(".")[0]))
        monkeypatch.setitem(sys.modules, name, module(name))
    assert fastest() == (isal, f"{isal}-inflates", f"{ng}-sums", zlib.error)
    monkeypatch.setitem(sys.modules, ng, None)
    assert fastest() == (isal, f"{isal}-inflates", f"{isal}-sums", zlib.error)
    monkeypatch.setitem(sys.modules, ng, module(ng))
    monkeypatch.setitem(sys.modules, isal, None)
    assert fastest() == (ng, f"{ng}-inflates", f"{ng}-sums", zlib.error)


def test_a_bomb_is_not_inflated(tmp_path: Path) -> None:
    bomb = Member(bytes(1 << 20), size=1 << 31)
    wheel = make_wheel(
        tmp_path, files={"demo/bomb": bomb}, record=lambda rows: [[*rows[0][:2], str(1 << 31)], *rows[1:]]
    )
    codes = [finding.code for finding in check_wheel(wheel, hashes=True)]
    assert codes == ["limit-exceeded"]
    raised = [finding.code for finding in check_wheel(wheel, hashes=True, limits=Limits(ratio=10**9))]
    assert raised == ["zip-data"]


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs Linux to tell the peak of a process")
def test_a_member_of_half_a_gigabyte_is_read_in_64_mib(tmp_path: Path) -> None:
    import hashlib
    import zipfile

    wheel = make_wheel(tmp_path, files={"demo/x": b""})
    size, block = 512 << 20, NOISE * 16
    sha, target = hashlib.sha256(), tmp_path / "big" / wheel.name
    target.parent.mkdir()
    with zipfile.ZipFile(wheel) as source, zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as made:
        for info in source.infolist():
            data = source.read(info)
            if info.filename == "demo/x":
                with made.open(zipfile.ZipInfo("demo/x"), "w") as file:
                    for _ in range(size // len(block)):
                        file.write(block)
                        sha.update(block)
                continue
            if info.filename.endswith("RECORD"):
                import base64

                text = base64.urlsafe_b64encode(sha.digest()).rstrip(b"=")
                data = data.replace(digest(b"").encode() + b",0", b"sha256=" + text + f",{size}".encode())
            made.writestr(zipfile.ZipInfo(info.filename), data)
    code = (
        "from build_tools.cli import main\n"
        f"code = main(['check', '--hashes', {str(target)!r}])\n"
        "peak = next(line for line in open('/proc/self/status') if line.startswith('VmHWM'))\n"
        "print(code, peak.split()[1])\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    exit_code, peak = done.stdout.split()
    assert exit_code == "0", done.stderr
    assert int(peak) < 64 << 10


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs Linux to tell the peak of a process")
def test_many_small_members_and_long_ones_are_read_in_64_mib_on_eight_cores(tmp_path: Path) -> None:
    long = {f"demo/long{number}": Member(NOISE * 320) for number in range(7)}
    small = {f"demo/{number // 100}/{number}.h": str(number) for number in range(30_000)}
    wheel = make_wheel(tmp_path, files={**long, **small})
    code = (
        "import sys\n"
        "from build_tools.wheels.check_hashes import check_hashes\n"
        "from build_tools.wheels.wheel import Wheel\n"
        f"found = check_hashes(Wheel.open({str(wheel)!r}), workers=8)\n"
        "peak = next(line for line in open('/proc/self/status') if line.startswith('VmHWM'))\n"
        "print(len(found), peak.split()[1])\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    findings, peak = map(int, done.stdout.split())
    assert findings == 0
    assert peak < 64 << 10


def test_small_members_are_one_share_and_what_takes_longest_comes_first(tmp_path: Path) -> None:
    sizes = [10, 100_000, 20, 3_000_000, 16_384]
    wheel = make_wheel(tmp_path, files={f"demo/{size}": Member(bytes(size)) for size in sizes})
    with Wheel.open(wheel) as opened:
        shares = _shares(opened.archive.members)
    assert shares[-1] == [3]
    assert [0, 2, 5, 6, 7] in shares
    assert sorted(index for share in shares for index in share) == list(range(8))
