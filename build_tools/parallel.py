"""One function for many inputs, on several threads, with the results in the order of the inputs.

Threads, not processes: what takes long here (copying, inflating, hashing) leaves Python's lock to the others.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextvars import ContextVar
from typing import TYPE_CHECKING, TypeVar

from build_tools.errors import ReleaseError

if TYPE_CHECKING:
    from concurrent.futures import Future
    from threading import Event

S = TypeVar("S")
T = TypeVar("T")


_stop: ContextVar[Event | None] = ContextVar("stop", default=None)


class Stopped(BaseException):
    """The run that a thread works for has ended: what it makes is wanted no more."""


def require_running() -> None:
    """Called again and again by whatever takes long; a thread that this one starts for it inherits the context.

    Raises:
        Stopped: this is a thread of :func:`in_order`, whose caller was interrupted.
    """
    stop = _stop.get()
    if stop is not None and stop.is_set():
        raise Stopped


def cores() -> int:
    """How many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def in_order(
    function: Callable[[S], T],
    inputs: Sequence[S],
    jobs: int | None = None,
    *,
    on_error: Callable[[], None] = lambda: None,
) -> Iterator[tuple[S, T | ReleaseError]]:
    """Each input with what ``function`` makes of it, or with the error that it ends in.

    Args:
        function: what to do; it may raise.
        inputs: what to do it for.
        jobs: how many inputs are worked on at once; ``None``: one on each core. With 1 no thread is started.
        on_error: called before what runs is waited for because of an error, to make it end sooner; what calls
            :func:`require_running` does so by itself.

    Raises:
        Exception: whatever else than a ``ReleaseError`` the function raises; so too an interrupt of the caller. What
            runs is waited for, what waits is not started.
    """
    jobs = min(jobs or cores(), len(inputs))
    if jobs <= 1:
        for item in inputs:
            yield item, _outcome(function, item)
        return
    from concurrent.futures import ThreadPoolExecutor  # costly, and most runs have one input
    from threading import Event

    stop = Event()
    waiting = deque(inputs)
    running: deque[tuple[S, Future[T | ReleaseError]]] = deque()
    pool = ThreadPoolExecutor(jobs, initializer=_stop.set, initargs=(stop,))
    try:
        while waiting or running:
            while waiting and len(running) < 2 * jobs:  # one that takes long holds back few results of others
                item = waiting.popleft()
                running.append((item, pool.submit(_outcome, function, item)))
            item, future = running.popleft()
            yield item, future.result()
    except BaseException:
        stop.set()
        on_error()
        raise
    finally:
        pool.shutdown(cancel_futures=True)


def _outcome(function: Callable[[S], T], item: S) -> T | ReleaseError:
    try:
        return function(item)
    except ReleaseError as error:
        return error
