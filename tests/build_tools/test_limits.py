"""Reading is bounded: what holds more is refused by a stated limit, in bounded time and memory."""

from __future__ import annotations

import struct
import subprocess
import sys
import zlib
from pathlib import Path

import pytest

from build_tools.errors import UsageError
from build_tools.wheels import Limits, check_wheel
from build_tools.wheels.finding import Findings
from build_tools.wheels.limits import MAX_DEPTH, MAX_FINDINGS, MAX_SYMLINKS, MAX_TAGS
from build_tools.wheels.member_names import check_names, is_unsafe, leaves_tree
from tests.build_tools.command_line import te_wheel
from tests.build_tools.wheel_factory import PACKAGE, Member, make_wheel, metadata_text, symlink


def codes(wheel: Path, **limits: int) -> set[str]:
    return {finding.code for finding in check_wheel(wheel, hashes=True, limits=Limits(**limits))}


@pytest.mark.parametrize(
    ("name", "description"),
    [
        ("members", {"files": {f"demo/{i}": "" for i in range(5)}}),
        ("directory", {}),
        ("metadata", {}),
        ("record", {}),
        ("rows", {"files": {f"demo/{i}": "" for i in range(5)}}),
    ],
)
def test_each_limit_refuses_what_is_over_it_and_a_user_can_raise_it(
    name: str, description: dict[str, object], tmp_path: Path
) -> None:
    wheel = make_wheel(tmp_path, **description)  # type: ignore[arg-type]
    assert codes(wheel) == set()
    assert "limit-exceeded" in codes(wheel, **{name: 4})
    low = te_wheel("check", wheel, "--limit", f"{name}=4")
    assert low.code == 1
    assert "limit-exceeded" in low.out
    assert te_wheel("check", wheel, "--limit", f"{name}=4", "--limit", f"{name}=100000").code == 0


@pytest.mark.parametrize("text", ["x=1", "members", "members=", "members=-1", "members=1e6", "=1", "members=\u0661"])
def test_a_limit_that_is_none_is_refused_with_the_names_that_there_are(text: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="members"):
        Limits.parse([text])
    assert te_wheel("check", make_wheel(tmp_path), f"--limit={text}").code == 2


def test_findings_of_one_code_are_counted_beyond_ten_thousand() -> None:
    found = Findings()
    for number in range(MAX_FINDINGS + 5):
        found.add("record-missing-row", "x", str(number))
    found.add("zip-prefix", "y")
    findings = found.all()
    assert len(findings) == MAX_FINDINGS + 2
    assert findings[-1].message == "and 5 more of this kind"
    assert findings[-1].code == "record-missing-row"


def test_metadata_of_a_hundred_megabytes_is_not_read_whatever_its_size_says(tmp_path: Path) -> None:
    data = metadata_text().encode() + bytes(100 << 20)
    honest = make_wheel(tmp_path / "honest", metadata=Member(data))
    assert codes(honest) >= {"limit-exceeded"}
    lying = make_wheel(tmp_path / "lying", metadata=Member(data, size=1000))
    assert "zip-data" in codes(lying)


def test_a_hundred_thousand_blank_rows_are_counted_not_kept(tmp_path: Path) -> None:
    findings = check_wheel(make_wheel(tmp_path, record="\n" * 100_000))
    assert len(findings) < MAX_FINDINGS + 10
    assert "limit-exceeded" in codes(make_wheel(tmp_path, record="\n" * 1_000_001))


def test_a_name_too_deep_is_refused(tmp_path: Path) -> None:
    assert not is_unsafe("x/" * (MAX_DEPTH - 1) + "x")
    deep = "x/" * (MAX_DEPTH + 1) + "x"
    assert is_unsafe(deep)
    assert "zip-unsafe-name" in codes(make_wheel(tmp_path, files={**PACKAGE, deep: ""}))


def test_ten_thousand_deep_names_are_looked_at_in_one_pass() -> None:
    names = [f"{number}/" + "x/" * (MAX_DEPTH - 2) + "x" for number in range(10_000)]
    assert check_names(names) == []
    assert [finding.code for finding in check_names([*names, "9/x"])] == ["zip-name-conflict"]


def test_symlinks_that_lead_to_symlinks_without_end_are_refused() -> None:
    links = {f"l{i}": "/".join([f"l{i + 1}"] * 200) for i in range(50)}
    assert leaves_tree("l0", links)


def test_more_symlinks_than_are_followed_are_refused(tmp_path: Path) -> None:
    links = {f"demo/{number}": symlink("__init__.py") for number in range(MAX_SYMLINKS + 1)}
    assert "limit-exceeded" in codes(make_wheel(tmp_path, files={**PACKAGE, **links}))


def test_tags_without_end_are_refused(tmp_path: Path) -> None:
    tag = ".".join(f"a{i}" for i in range(200))
    wheel = f"Wheel-Version: 1.0\nGenerator: x\nRoot-Is-Purelib: true\nTag: {tag}-{tag}-any\n"
    found = check_wheel(make_wheel(tmp_path, wheel=wheel))
    assert any(str(MAX_TAGS) in finding.message for finding in found)


def _shared(count: int, extra: bytes) -> bytes:
    """An archive whose members are all one: each central header points to the same local one."""
    name = b"x"
    packed = zlib.compress(b"")[2:-4]
    local = (
        struct.pack("<4s5H3L2H", b"PK\3\4", 20, 0, 8, 0, 33, 0, len(packed), 0, 1, len(extra)) + name + extra + packed
    )
    central = (
        struct.pack(
            "<4s6H3L5H2L", b"PK\1\2", 0x314, 20, 0, 8, 0, 33, 0, len(packed), 0, 1, 0, 0, 0, 0, 0o100644 << 16, 0
        )
        + name
    )
    end = struct.pack("<4s4H2LH", b"PK\5\6", 0, 0, count, count, len(central) * count, len(local), 0)
    return local + central * count + end


def test_members_that_share_an_extra_field_of_64_kilobytes_are_not_waded_through(tmp_path: Path) -> None:
    wheel = tmp_path / "demo-1.0-py3-none-any.whl"
    wheel.write_bytes(_shared(60_000, b"\xfe\xca\0\0" * 16_000))
    assert {"zip-overlap", "zip-duplicate"} <= codes(wheel)


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs Linux to tell the peak of a process")
def test_half_a_million_members_are_read_in_bounded_memory(tmp_path: Path) -> None:
    name = 8
    parts, central, offset = [], [], 0
    for number in range(499_990):
        raw = f"{number:08}".encode()
        parts.append(struct.pack("<4s5H3L2H", b"PK\3\4", 20, 0, 0, 0, 33, 0, 0, 0, name, 0) + raw)
        central.append(
            struct.pack(
                "<4s6H3L5H2L", b"PK\1\2", 0x314, 20, 0, 0, 0, 33, 0, 0, 0, name, 0, 0, 0, 0, 0o100644 << 16, offset
            )
            + raw
        )
        offset += 38
    body, directory = b"".join(parts), b"".join(central)
    end64 = struct.pack("<4sQHHLLQQQQ", b"PK\6\6", 44, 45, 45, 0, 0, *[len(parts)] * 2, len(directory), len(body))
    locator = struct.pack("<4sLQL", b"PK\6\7", 0, len(body) + len(directory), 1)
    end = struct.pack("<4s4H2LH", b"PK\5\6", 0, 0, 65535, 65535, len(directory), len(body), 0)
    wheel = tmp_path / "demo-1.0-py3-none-any.whl"
    wheel.write_bytes(body + directory + end64 + locator + end)
    code = (
        "from build_tools.wheels import check_wheel\n"
        f"codes = {{finding.code for finding in check_wheel({str(wheel)!r})}}\n"
        "peak = next(line for line in open('/proc/self/status') if line.startswith('VmHWM'))\n"
        "print(peak.split()[1], *sorted(codes))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    peak, *found = done.stdout.split()
    assert "dist-info-count" in found
    assert int(peak) < 1 << 20  # kilobytes
