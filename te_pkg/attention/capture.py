"""CUDA graph capture: the one place that knows whether it is under way.

What a capture records is replayed for ever, and the recording cannot wait for the device. So while it lasts nothing
may be read back to the host, copied from pageable host memory, or kept: a tensor that is first made there lives in
the graph's private pool and is overwritten by each replay.

Source: CUDA semantics, CUDA graphs, <https://docs.pytorch.org/docs/stable/notes/cuda.html#cuda-graphs>.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from torch import cuda

__all__ = ["is_capturing", "mark_capturing"]

# torch's own function raises on a build without CUDA, and on a machine without a driver. Where CUDA has not been
# initialised no capture can be under way, so it is not asked there. A function that was put in its place, by a
# back end that stands in for CUDA or by a test, is always asked.
_ask_torch = cuda.is_current_stream_capturing


class _Marks:
    """How many :func:`mark_capturing` are open."""

    __slots__ = ("depth",)

    def __init__(self) -> None:
        self.depth = 0


class _ThreadMarks(threading.local):
    # A thread-local, not a context variable: what captures is the current stream, and that belongs to the thread.
    # Every coroutine that runs on the thread meanwhile is captured too, and a context that is carried to another
    # thread (`asyncio.to_thread`) does not take the capture with it.
    def __init__(self) -> None:
        self.marks = _Marks()


_thread = _ThreadMarks()


def is_capturing() -> bool:
    """Whether what this thread launches now is captured into a CUDA graph.

    True while the current stream captures (:func:`torch.cuda.is_current_stream_capturing`) or inside
    :func:`mark_capturing`. Never initialises CUDA, never synchronises. Code under ``torch.compile`` keeps the answer
    that it got when it was traced.

    >>> is_capturing()
    False
    """
    if _thread.marks.depth:
        return True
    ask = cuda.is_current_stream_capturing
    return (ask is not _ask_torch or cuda.is_initialized()) and ask()  # type: ignore[no-untyped-call]


@contextmanager
def mark_capturing() -> Iterator[None]:
    """Treat everything inside as captured; for helpers that make graphs, and for tests without a GPU.

    A helper needs it where the code already runs for the graph but the stream does not capture yet, such as the last
    warm-up before a capture, whose branches must be those of the capture. Nests; holds for this thread alone.

    >>> with mark_capturing():
    ...     is_capturing()
    True
    """
    marks = _thread.marks  # a generator may be closed by another thread: it must undo what this one did
    marks.depth += 1
    try:
        yield
    finally:
        marks.depth -= 1
