"""Every digest and CRC of a wheel, on all cores and in bounded memory.

Members are shared out among threads, the longest first; of one that is long, a second thread sums
what the first inflates, so that a wheel of one member is read by two cores as well. zlib and
hashlib let go of the interpreter while they work. The findings do not depend on the threads.
"""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Callable, Iterator
from contextvars import copy_context
from itertools import islice
from queue import Queue
from threading import Event, Thread

from build_tools.errors import WheelError
from build_tools.parallel import cores
from build_tools.wheels import zip_format as fmt
from build_tools.wheels.archive import Archive
from build_tools.wheels.finding import Finding
from build_tools.wheels.inflater import Inflater, fastest
from build_tools.wheels.member import Member
from build_tools.wheels.record import DIGEST_SIZES, Row, digest_text
from build_tools.wheels.wheel import Wheel

PIECE = 256 << 10
"""Bytes that are inflated, then summed, at a time: they stay in the cache of a core."""
MAX_WORKERS = 8
_BATCH = 4
"""Pieces that go to the second thread at a time: to wake it for each one costs a tenth."""
_QUEUED = 2
_LONG = 4 << 20
"""From here on a member gets a second thread, where it is more than one core's share: the thread costs a tenth."""
_ALWAYS = 1 << 30
_UNREADABLE = {"zip-encrypted", "zip-method", "zip-truncated"}


class _Stopped(Exception):
    """Another thread failed, or the run was interrupted."""


def check_hashes(wheel: Wheel, *, workers: int | None = None, inflater: Inflater | None = None) -> list[Finding]:
    """Inflate every member and compare its size, CRC and digest with what the headers and RECORD say.

    Args:
        wheel: an open wheel.
        workers: how many members are read at once; ``None`` for one on each core.
        inflater: what inflates; ``None`` for the fastest that is installed.

    Raises:
        FileError: the file cannot be read.
    """
    from concurrent.futures import ThreadPoolExecutor  # costly, and most runs need none

    members = _readable(wheel)
    total = sum(member.size for member in members)
    ratio = wheel.archive.limits.ratio
    if total > max(_ALWAYS, ratio * wheel.archive.size):
        message = f"it inflates to {total} bytes, over {ratio} times its own size; its digests were not read"
        return [Finding("limit-exceeded", message)]
    rows = {row.path: row for row in wheel.record} if wheel.record else {}
    stop = Event()
    workers = min(workers or cores(), MAX_WORKERS)
    sums = _Sums(wheel.archive, rows, inflater or fastest(), stop, max(_LONG, total // workers))
    found: dict[int, list[Finding]] = {}
    todo = deque(sorted(range(len(members)), key=lambda index: members[index].size))

    def work() -> None:
        try:
            while (index := _last(todo)) is not None:
                found[index] = sums.compare(members[index])
        except BaseException:
            stop.set()
            raise

    _keep_freed_memory()
    pool = ThreadPoolExecutor(workers, thread_name_prefix="hash")
    try:
        futures = [pool.submit(copy_context().run, work) for _ in range(min(workers, len(members)))]
        failed = [error for future in futures if (error := future.exception()) is not None]
    finally:
        stop.set()
        pool.shutdown()
    for error in failed:
        if not isinstance(error, _Stopped):
            raise error
    known = set(wheel.findings)
    return [finding for index in range(len(members)) for finding in found[index] if finding not in known]


def _readable(wheel: Wheel) -> list[Member]:
    unreadable = {finding.member for finding in wheel.findings if finding.code in _UNREADABLE}
    return [
        member
        for member in wheel.archive.members
        if member.entry.method in (fmt.STORED, fmt.DEFLATED)
        and member.name not in unreadable
        and member.data_offset > member.header_offset  # it has a local header
    ]


class _Sums:
    """Compares members of one archive with its RECORD; one object serves all threads."""

    def __init__(self, archive: Archive, rows: dict[str, Row], inflater: Inflater, stop: Event, long: int) -> None:
        self._archive = archive
        self._rows = rows
        self._inflater = inflater
        self._stop = stop
        self._long = long

    def compare(self, member: Member) -> list[Finding]:
        row = self._rows.get(member.name)
        algorithm = row.digest.partition("=")[0] if row else ""
        digest = hashlib.new(algorithm) if algorithm in DIGEST_SIZES else None
        crc = 0

        def add(data: bytes) -> None:
            nonlocal crc
            crc = self._inflater.crc32(data, crc)
            if digest:
                digest.update(data)

        pieces = self._archive.pieces(member, self._inflater, PIECE)
        try:
            self._feed(pieces, add, overlap=member.size > self._long)
        except WheelError as error:
            return [Finding("zip-data", error.reason, member.name)]
        findings = []
        if crc != member.entry.crc:
            findings.append(Finding("zip-data", self._archive.crc_fault(member, crc), member.name))
        if row and digest:
            text = digest_text(algorithm, digest.digest())
            if text != row.digest:
                findings.append(Finding("record-digest", f"RECORD says {row.digest}, the file has {text}", member.name))
        return findings

    def _feed(self, pieces: Iterator[bytes], add: Callable[[bytes], None], *, overlap: bool) -> None:
        """Give every piece to ``add``, in a thread of its own where they ``overlap``."""
        if not overlap:
            for piece in pieces:
                self._check_running()
                add(piece)
            return
        queue: Queue[list[bytes]] = Queue(_QUEUED)
        failed: list[BaseException] = []

        def drain() -> None:
            while batch := queue.get():
                try:
                    for piece in batch:
                        add(piece)
                except BaseException as error:  # the queue is emptied all the same: the other thread waits for room
                    failed.append(error)

        thread = Thread(target=drain, name="sum")
        thread.start()
        try:
            while batch := list(islice(pieces, _BATCH)):
                self._check_running()
                queue.put(batch)
        finally:
            queue.put([])
            thread.join()
        if failed:
            raise failed[0]

    def _check_running(self) -> None:
        if self._stop.is_set():
            raise _Stopped


def _keep_freed_memory() -> None:
    """Make room for pieces once, not for each anew: after one large block was freed, glibc keeps smaller ones."""
    bytes(4 << 20)


def _last(todo: deque[int]) -> int | None:
    try:
        return todo.pop()
    except IndexError:  # another thread took it
        return None
