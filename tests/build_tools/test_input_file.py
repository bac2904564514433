"""A file that is read from one end to the other: what fails bears its name."""

from __future__ import annotations

import errno
import io
import os
from pathlib import Path

import pytest

from build_tools.errors import FileError, MissingFileError
from build_tools.input_file import open_input


@pytest.mark.parametrize("spelling", [str, Path])
def test_it_is_read_as_any_file(spelling: type, tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"0123456789")
    with open_input(spelling(path)) as file:
        assert isinstance(file, io.BufferedReader)
        assert (file.read(3), file.seek(8), file.read()) == (b"012", 8, b"89")


def test_a_descriptor_is_read_under_the_name_and_closed_with_the_file(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"x")
    fd = os.open(path, os.O_RDONLY)
    path.unlink()
    with open_input("gone", fd) as file:
        assert file.read() == b"x"
    with pytest.raises(OSError, match=os.strerror(errno.EBADF)):
        os.fstat(fd)


def test_what_cannot_be_opened_or_read_is_an_error_of_its_name(tmp_path: Path) -> None:
    with pytest.raises(MissingFileError, match=r"cannot read '.*gone'"):
        open_input(tmp_path / "gone")
    for size in (-1, 1, 1 << 20):
        with open_input("its name", os.open(tmp_path / "out", os.O_WRONLY | os.O_CREAT)) as file:
            with pytest.raises(FileError, match="cannot read 'its name'") as refused:
                file.read(size)
            assert refused.value.errno == errno.EBADF
