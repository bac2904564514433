"""What the operating system refuses or does by halves makes no other wheel, and no half one."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from build_tools.errors import OutputExistsError, ReleaseError
from build_tools.wheels import WheelEdit, repack
from tests.build_tools.wheel_factory import PACKAGE, STORED, Member, make_wheel
from tests.build_tools.wheel_reader import read_right

EDIT = WheelEdit(name="other")


@pytest.fixture
def wheel(tmp_path: Path) -> Path:
    """Three megabytes that stay as they are, in two runs with a renamed folder between them."""
    data = Member(os.urandom(1_500_000), method=STORED)
    files = {**PACKAGE, "demo/a.bin": data, "demo-1.0.data/scripts/run": Member("#!python\n"), "demo/b.bin": data}
    return make_wheel(tmp_path / "in", files=files)


def refusing(number: int) -> Callable[..., Any]:
    def call(*arguments: object, **options: object) -> Any:
        raise OSError(number, os.strerror(number))

    return call


def short_copies(source: int, target: int, count: int, offset: int | None = None) -> int:
    return os.write(target, os.pread(source, min(count, 70_001), offset or 0))


def a_copy_then_nothing() -> Callable[..., int]:
    calls = []

    def call(source: int, target: int, count: int, offset: int | None = None) -> int:
        calls.append(count)
        return short_copies(source, target, count, offset) if len(calls) == 1 else 0

    return call


def a_copy_then_refusal() -> Callable[..., int]:
    calls = []

    def call(source: int, target: int, count: int, offset: int | None = None) -> int:
        calls.append(count)
        return short_copies(source, target, count, offset) if len(calls) == 1 else refusing(errno.EXDEV)()

    return call


@pytest.mark.parametrize(
    "copy",
    [
        *(pytest.param(refusing(number), id=errno.errorcode[number])
          for number in (errno.ENOSYS, errno.EXDEV, errno.EINVAL, errno.EOPNOTSUPP, errno.EPERM)),
        pytest.param(lambda *arguments: 0, id="copies nothing"),
        pytest.param(short_copies, id="copies little"),
        pytest.param(a_copy_then_nothing(), id="copies once"),
        pytest.param(a_copy_then_refusal(), id="copies once, then refuses"),
        pytest.param(None, id="is not there"),
    ],
)  # fmt: skip
def test_the_same_wheel_comes_out_whatever_copy_file_range_does(
    copy: Callable[..., int] | None, wheel: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = repack(wheel, tmp_path / "expected", EDIT).path.read_bytes()
    if copy is None:
        monkeypatch.delattr(os, "copy_file_range", raising=False)
    else:
        monkeypatch.setattr(os, "copy_file_range", copy, raising=False)
    output = repack(wheel, tmp_path / "out", EDIT).path
    assert output.read_bytes() == expected
    read_right(output)


def test_short_writes_are_gone_on_with(wheel: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = repack(wheel, tmp_path / "expected", EDIT).path.read_bytes()
    write = os.write
    monkeypatch.setattr(os, "write", lambda fd, data: write(fd, bytes(data)[:30_011]))
    monkeypatch.delattr(os, "copy_file_range", raising=False)
    assert repack(wheel, tmp_path / "out", EDIT).path.read_bytes() == expected


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO, errno.EDQUOT])
@pytest.mark.parametrize("call", ["copy_file_range", "write", "fsync", "link"])
def test_a_call_that_fails_leaves_nothing_and_the_input_whole(
    call: str, number: int, wheel: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = wheel.read_bytes()
    monkeypatch.setattr(os, call, refusing(number), raising=False)
    with pytest.raises(ReleaseError) as caught:
        repack(wheel, tmp_path / "out", EDIT, replace=True)
    assert isinstance(caught.value, OSError)
    assert "other-1.0-py3-none-any.whl" in str(caught.value)
    assert os.listdir(tmp_path / "out") == []
    assert wheel.read_bytes() == before


@pytest.mark.parametrize("number", [errno.EPERM, errno.EOPNOTSUPP, errno.EMLINK])
def test_without_hard_links_the_output_appears_all_the_same_and_replaces_nothing(
    number: int, wheel: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "link", refusing(number))
    output = repack(wheel, tmp_path / "out", EDIT).path
    read_right(output)
    assert os.listdir(output.parent) == [output.name]
    output.write_bytes(b"precious")
    with pytest.raises(OutputExistsError):
        repack(wheel, output.parent, EDIT)
    assert output.read_bytes() == b"precious"


@pytest.mark.parametrize(("option", "synced"), [("fsync", True), ("replace", True), ("force", False)])
def test_the_output_is_on_the_disk_before_the_input_goes_and_on_request(
    option: str, synced: bool, wheel: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    events: list[str] = []
    fsync, unlink = os.fsync, Path.unlink

    def record_fsync(fd: int) -> None:
        where = Path(os.readlink(f"/proc/self/fd/{fd}"))
        events.append(f"folder {where.name}" if where.is_dir() else "file")
        fsync(fd)

    def record_unlink(path: Path, missing_ok: bool = False) -> None:
        if path == wheel:
            events.append("input removed")
        unlink(path, missing_ok)

    monkeypatch.setattr(os, "fsync", record_fsync)
    monkeypatch.setattr(Path, "unlink", record_unlink)
    repack(wheel, tmp_path / "out" / "deep", EDIT, **{option: True})
    # A folder that was made is an entry of the one above it, which must be on the disk too.
    on_disk = ["file", "folder deep", "folder out", f"folder {tmp_path.name}"] if synced else []
    assert events == [*on_disk, *(["input removed"] if option == "replace" else [])]
    assert wheel.exists() == (option != "replace")


@pytest.mark.parametrize("change", ["grows", "shrinks", "is written to"])
def test_an_input_that_changes_while_it_is_read_is_refused(
    change: str, wheel: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pread = os.pread
    size = wheel.stat().st_size

    def copy(source: int, target: int, count: int, offset: int = 0) -> int:
        if wheel.stat().st_size == size:
            with wheel.open("r+b") as file:
                if change == "shrinks":
                    file.truncate(size // 2)
                else:
                    file.seek(0 if change == "is written to" else size)
                    file.write(b"x")
        return os.write(target, pread(source, count, offset))

    monkeypatch.setattr(os, "copy_file_range", copy, raising=False)
    with pytest.raises(ReleaseError, match=wheel.name):
        repack(wheel, tmp_path / "out", EDIT)
    assert os.listdir(tmp_path / "out") == []
