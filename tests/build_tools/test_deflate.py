"""Compression on all cores: one deflate stream, the same bytes whatever the number of cores."""

from __future__ import annotations

import hashlib
import random
import zlib
from collections.abc import Iterator

import pytest

from build_tools.wheels import deflate
from build_tools.wheels.deflate import BLOCK, deflate_files

SOURCE = random.Random(0)
FILES = {
    "empty": b"",
    "one byte": b"x",
    "one block": SOURCE.randbytes(BLOCK),
    "one block and a byte": bytes(BLOCK) + b"x",
    "three blocks of text": b"".join(b"line %d\n" % (n % 5000) for n in range(300_000)),
    "noise": SOURCE.randbytes(2 * BLOCK + 17),
}


def blocks(name: str) -> Iterator[bytes]:
    data = FILES[name]
    return (data[at : at + BLOCK] for at in range(0, len(data), BLOCK))


def compress_all() -> dict[str, bytes]:
    out = dict.fromkeys(FILES, b"")
    for piece in deflate_files(FILES, blocks):
        out[piece.source] += piece.data
        if piece.summary:
            data = FILES[piece.source]
            assert (piece.summary.crc, piece.summary.size) == (zlib.crc32(data), len(data))
            assert piece.summary.sha256 == hashlib.sha256(data).digest()
    return out


def test_the_blocks_laid_end_to_end_are_one_deflate_stream() -> None:
    for name, compressed in compress_all().items():
        inflater = zlib.decompressobj(-zlib.MAX_WBITS)
        assert inflater.decompress(compressed) == FILES[name], name
        assert inflater.eof
        assert not inflater.unused_data


def test_a_file_of_one_block_gets_the_bytes_that_zlib_gives_it_in_one_call() -> None:
    compressor = zlib.compressobj(zlib.Z_DEFAULT_COMPRESSION, zlib.DEFLATED, -zlib.MAX_WBITS)
    assert compress_all()["one block"] == compressor.compress(FILES["one block"]) + compressor.flush()


def test_what_a_block_refers_back_to_is_found_in_the_block_before() -> None:
    # Without a dictionary each block would start from nothing and the text would take more room.
    whole = len(zlib.compress(FILES["three blocks of text"]))
    assert len(compress_all()["three blocks of text"]) < 1.05 * whole


@pytest.mark.parametrize("cores", [1, 2, 7])
def test_the_bytes_do_not_depend_on_the_number_of_cores(cores: int, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = compress_all()
    monkeypatch.setattr(deflate.os, "sched_getaffinity", lambda _: set(range(cores)), raising=False)
    assert compress_all() == expected


def test_a_source_that_fails_ends_the_work_with_its_error() -> None:
    def fail(_: str) -> Iterator[bytes]:
        yield b"x" * BLOCK
        raise OSError(5, "Input/output error")

    with pytest.raises(OSError, match="Input/output"):
        list(deflate_files(["a", "b"], fail))
