"""Compress files on all cores, in bounded memory, to bytes that do not depend on the cores.

A file is cut in blocks of one megabyte. Each block is deflated by itself, with the 32 KiB before
it as dictionary and a byte boundary at its end, so the blocks laid end to end are one deflate
stream. A file of one block gets exactly the bytes that zlib gives it in one call.
"""

from __future__ import annotations

import hashlib
import os
import zlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Generic, NamedTuple, Self, TypeVar

from build_tools.parallel import cores, require_running

if TYPE_CHECKING:
    from concurrent.futures import Future

BLOCK = 1 << 20
MAX_WORKERS = 8
"""Each holds about three blocks: more cores would take more memory than a rewrite may."""
_DICTIONARY = 32 << 10

T = TypeVar("T")


class Summary(NamedTuple):
    """What is known of a file once all of it was read."""

    crc: int
    size: int
    sha256: bytes

    @classmethod
    def of(cls, pieces: Iterable[bytes]) -> Self:
        """What is known of a file whose data are these."""
        crc, size, digest = 0, 0, hashlib.sha256()
        for data in pieces:
            crc, size = zlib.crc32(data, crc), size + len(data)
            digest.update(data)
        return cls(crc, size, digest.digest())


class Piece(NamedTuple, Generic[T]):
    """The next compressed bytes of ``source``; ``summary`` stands on its last piece."""

    source: T
    data: bytes
    summary: Summary | None


def deflate_files(sources: Iterable[T], blocks: Callable[[T], Iterator[bytes]]) -> Iterator[Piece[T]]:
    """Compress ``sources`` in their order.

    Args:
        sources: one object for each file.
        blocks: gives the data of a source in blocks of :data:`BLOCK` bytes (the last may be shorter).
    """
    from concurrent.futures import ThreadPoolExecutor  # costly, and few runs compress files

    workers = min(cores(), MAX_WORKERS)
    window: deque[tuple[T, Future[bytes], Summary | None]] = deque()
    pool = ThreadPoolExecutor(workers, thread_name_prefix="deflate")
    try:
        for source in sources:
            for data, dictionary, summary in _with_summary(blocks(source)):
                window.append((source, pool.submit(deflate, data, dictionary, summary is not None), summary))
                if len(window) > 2 * workers:
                    yield _piece(*window.popleft())
        while window:
            yield _piece(*window.popleft())
    finally:
        pool.shutdown(cancel_futures=True)


def file_blocks(path: str | os.PathLike[str]) -> Iterator[bytes]:
    """The bytes of a file in blocks for :func:`deflate_files`."""
    # Buffered: a raw read may stop early, and the bytes would depend on where it did.
    with open(path, "rb") as file:
        while data := file.read(BLOCK):
            require_running()
            yield data


def _with_summary(blocks: Iterator[bytes]) -> Iterator[tuple[bytes, bytes, Summary | None]]:
    """Each block with the dictionary before it; the last one with the summary of all."""
    crc, size, digest = 0, 0, hashlib.sha256()
    before = b""
    data = next(blocks, b"")
    while True:
        crc, size = zlib.crc32(data, crc), size + len(data)
        digest.update(data)
        following = next(blocks, None)
        if following is None:
            yield data, before, Summary(crc, size, digest.digest())
            return
        yield data, before, None
        before, data = data[-_DICTIONARY:], following


def deflate(data: bytes, dictionary: bytes = b"", last: bool = True) -> bytes:
    """``data`` as a raw deflate stream, at the level that zlib and zipfile take by default.

    Args:
        data: what to compress.
        dictionary: the bytes before it in the same stream.
        last: whether the stream ends here; else it ends on a byte boundary, to be gone on with.
    """
    compressor = deflater(dictionary)
    return compressor.compress(data) + compressor.flush(zlib.Z_FINISH if last else zlib.Z_SYNC_FLUSH)


def deflater(dictionary: bytes = b"") -> zlib._Compress:
    """What compresses one raw deflate stream, in pieces of any length, to the bytes that :func:`deflate` gives."""
    form = (zlib.Z_DEFAULT_COMPRESSION, zlib.DEFLATED, -zlib.MAX_WBITS)
    return zlib.compressobj(*form, zdict=dictionary) if dictionary else zlib.compressobj(*form)


def _piece(source: T, future: Future[bytes], summary: Summary | None) -> Piece[T]:
    return Piece(source, future.result(), summary)
