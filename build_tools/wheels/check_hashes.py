"""Every digest and CRC of a wheel, on all cores and in bounded memory.

Long members are shared out one by one, the longest first; small ones are one share, read by one thread. Of one that is
longer than a core's share of the whole, a second thread sums what the first inflates, so that a wheel of one member is
read by two cores as well. zlib and hashlib let go of the interpreter while they work. The findings do not depend on the
threads.
"""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Callable, Iterator
from contextvars import copy_context
from itertools import islice
from queue import Queue
from threading import Event, Semaphore, Thread

from build_tools.errors import WheelError
from build_tools.parallel import cores
from build_tools.wheels import zip_format as fmt
from build_tools.wheels.finding import Finding
from build_tools.wheels.inflater import Inflater, fastest
from build_tools.wheels.member import Member
from build_tools.wheels.record import DIGEST_SIZES, digest_text
from build_tools.wheels.wheel import Wheel

PIECE = 256 << 10
"""Bytes that are inflated, then summed, at a time: they stay in the cache of a core."""
MAX_WORKERS = 8
_BATCH = 4
"""Pieces that go to the second thread at a time: to wake it for each one costs a tenth."""
_QUEUED = 2
"""Batches that may wait for the second thread."""
_LONG = 4 << 20
"""Bytes of a member from which a second thread sums it, where it is also more than one worker's share of the whole."""
_SMALL = 16 << 10
"""Bytes below which members are read by one thread, all together."""
_PER_MEMBER = 4 << 10
"""Bytes that take as long to inflate as all else that is done for a member."""
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
    stop = Event()
    workers = min(workers or cores(), MAX_WORKERS)
    sums = _Sums(wheel, inflater or fastest(), stop, max(_LONG, total // workers), max(1, workers // 2))
    found: dict[int, list[Finding]] = {}
    shares = _shares(members)

    def work() -> None:
        try:
            while shares:
                try:
                    share = shares.pop()
                except IndexError:  # another thread took it
                    return
                for index in share:
                    findings = sums.compare(members[index])
                    if findings:
                        found[index] = findings
        except BaseException:
            stop.set()
            raise

    _keep_freed_memory()
    pool = ThreadPoolExecutor(workers, thread_name_prefix="hash")
    try:
        futures = [pool.submit(copy_context().run, work) for _ in range(min(workers, len(shares)))]
        failed = [error for future in futures if (error := future.exception()) is not None]
    finally:
        stop.set()
        pool.shutdown()
    for error in failed:
        if not isinstance(error, _Stopped):
            raise error
    known = set(wheel.findings)
    return [finding for index in sorted(found) for finding in found[index] if finding not in known]


def _readable(wheel: Wheel) -> list[Member]:
    unreadable = {finding.member for finding in wheel.findings if finding.code in _UNREADABLE}
    return [
        member
        for member in wheel.archive.members
        if member.method in (fmt.STORED, fmt.DEFLATED)
        and member.name not in unreadable
        and member.data_offset > member.header_offset  # it has a local header
    ]


def _shares(members: list[Member]) -> list[list[int]]:
    """What one thread reads at a time, as indices: a member, or all small ones; the share that takes longest is last.

    Two threads that read small members get in each other's way: each step is so short that they wait for Python's
    lock more than they work.
    """
    sizes = array("Q", (member.size for member in members))  # a list of so many takes megabytes
    small = [index for index, size in enumerate(sizes) if size < _SMALL]
    shares = [[index] for index, size in enumerate(sizes) if size >= _SMALL]
    shares += [small] if small else []
    return sorted(shares, key=lambda share: sum(sizes[index] + _PER_MEMBER for index in share))


class _Sums:
    """Compares members of one archive with its RECORD; one object serves all threads."""

    def __init__(self, wheel: Wheel, inflater: Inflater, stop: Event, long: int, pairs: int) -> None:
        self._archive = wheel.archive
        self._inflater = inflater
        self._stop = stop
        self._long = long
        # Two threads take the cores, and the memory, of two: no more members have them than there are pairs.
        self._pairs = Semaphore(pairs)
        self._digests: dict[str, str] = {}
        for row in wheel.record or ():
            member = wheel.archive.by_name.get(row.path)
            if member is not None:
                self._digests[member.name] = row.digest  # the name that is there already: there may be many

    def compare(self, member: Member) -> list[Finding]:
        """What is wrong with the data of ``member``."""
        listed = self._digests.get(member.name, "")
        algorithm = listed.partition("=")[0]
        digest = hashlib.new(algorithm) if algorithm in DIGEST_SIZES else None
        crc = 0

        def add(data: bytes) -> None:
            nonlocal crc
            crc = self._inflater.crc32(data, crc)
            if digest:
                digest.update(data)

        pieces = self._archive.pieces(member, self._inflater, PIECE)
        try:
            self._feed(pieces, add, long=member.size > self._long)
        except WheelError as error:
            return [Finding("zip-data", error.reason, member.name)]
        findings = []
        if crc != member.crc:
            findings.append(Finding("zip-data", self._archive.crc_fault(member, crc), member.name))
        if digest:
            text = digest_text(algorithm, digest.digest())
            if text != listed:
                findings.append(Finding("record-digest", f"RECORD says {listed}, the file has {text}", member.name))
        return findings

    def _feed(self, pieces: Iterator[bytes], add: Callable[[bytes], None], *, long: bool) -> None:
        """Give every piece to ``add``; of a ``long`` member in a thread of its own, where one more may be."""
        if long and self._pairs.acquire(blocking=False):
            try:
                self._feed_apart(pieces, add)
            finally:
                self._pairs.release()
            return
        for piece in pieces:
            self._check_running()
            add(piece)

    def _feed_apart(self, pieces: Iterator[bytes], add: Callable[[bytes], None]) -> None:
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
