"""One function for many inputs, on several threads, with the results in the order of the inputs.

Threads, not processes: what takes long here (copying, inflating, hashing) leaves Python's lock to the others.
"""

from __future__ import annotations

import errno
import os
from collections import deque
from collections.abc import Callable, Generator, Sequence
from contextvars import ContextVar
from functools import partial
from typing import TYPE_CHECKING, NoReturn, TypeVar

from build_tools.errors import FileError, ReleaseError

if TYPE_CHECKING:
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
    name: Callable[[S], str] = str,
    on_error: Callable[[], None] = lambda: None,
) -> Generator[tuple[S, T | ReleaseError], None, None]:
    """Each input with what ``function`` makes of it, or with the error that it ends in.

    An ``OSError`` or a ``MemoryError`` costs its own input alone: it becomes a :class:`FileError` that names the input.

    Args:
        function: what to do; it may raise.
        inputs: what to do it for.
        jobs: how many inputs are worked on at once; ``None``: one on each core. With 1 no thread is started; where
            the system has no more threads to give, there are fewer.
        name: what an input is called in such an error; as it is, where the inputs are paths.
        on_error: called before what runs is waited for because of an error, to make it end sooner; what calls
            :func:`require_running` does so by itself.

    Raises:
        Exception: whatever else than a ``ReleaseError``, an ``OSError`` or a ``MemoryError`` the function raises; so
            too an interrupt of the caller. What runs is waited for, what waits is not started: close the iterator,
            or that is done when nobody knows it any more.
    """
    jobs = min(jobs or cores(), len(inputs))
    if jobs > 1:
        yield from _on_threads(function, inputs, jobs, name, on_error)
        return
    for item in inputs:
        yield item, _outcome(function, item, name)


def _on_threads(
    function: Callable[[S], T],
    inputs: Sequence[S],
    jobs: int,
    name: Callable[[S], str],
    on_error: Callable[[], None],
) -> Generator[tuple[S, T | ReleaseError], None, None]:
    # Not ThreadPoolExecutor: where no thread can be started it raises and leaves work queued; here there are fewer
    # threads, or none.
    from queue import SimpleQueue
    from threading import Event, Thread

    stop = Event()
    tasks: SimpleQueue[tuple[S, SimpleQueue[Callable[[], T | ReleaseError]]] | None] = SimpleQueue()

    def work() -> None:
        _stop.set(stop)
        while (task := tasks.get()) is not None and not stop.is_set():
            item, answer = task
            answer.put(_attempt(function, item, name))

    def wait() -> None:
        for thread in team:
            thread.join()

    team: list[Thread] = []
    waiting = deque(inputs)
    running: deque[tuple[S, SimpleQueue[Callable[[], T | ReleaseError]]]] = deque()
    try:
        while len(team) < jobs:
            thread = Thread(target=work, name="job")
            try:
                thread.start()  # one that is interrupted here is in no team, and finds nothing to do
            except RuntimeError:  # the system has no more
                break
            team.append(thread)
        while waiting or running:
            while waiting and len(running) < 2 * jobs:  # one that takes long holds back few results of others
                running.append((waiting.popleft(), SimpleQueue()))
                tasks.put(running[-1])
            item, answer = running.popleft()
            yield item, answer.get()() if team else _outcome(function, item, name)
    except BaseException:
        stop.set()
        on_error()
        raise
    finally:
        stop.set()
        for _ in range(jobs):
            tasks.put(None)
        try:
            wait()
        except BaseException:  # an interrupt while another error is dealt with
            wait()
            raise


def _attempt(function: Callable[[S], T], item: S, name: Callable[[S], str]) -> Callable[[], T | ReleaseError]:
    """What gives the outcome, or raises it."""
    try:
        outcome = _outcome(function, item, name)
    except BaseException as error:
        return partial(_raise, error)
    return lambda: outcome


def _raise(error: BaseException) -> NoReturn:
    raise error


def _outcome(function: Callable[[S], T], item: S, name: Callable[[S], str]) -> T | ReleaseError:
    try:
        return function(item)
    except ReleaseError as error:
        return error
    except (OSError, MemoryError) as error:  # of one input: the others go on
        return _refused(name(item), error)


def _refused(called: str, error: OSError | MemoryError) -> FileError:
    """What the system refused to the input ``called`` so; a file that ``error`` names besides is told too."""
    if isinstance(error, MemoryError):
        reason = OSError(errno.ENOMEM, "out of memory")
    elif error.filename is None or str(error.filename) == called:
        reason = error
    else:
        reason = OSError(error.errno, f"{error.strerror}: {error.filename!r}")
    refused = FileError.of("work on", called, reason)
    refused.__cause__ = error
    return refused
