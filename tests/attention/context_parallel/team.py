"""Real processes that talk over gloo, started once and given many things to do.

``Team(4)`` starts four ranks; :meth:`Team.run` calls one function on each of them, and has the answers of all. A call
that takes longer than it may ends with every rank killed: no test hangs. Ranks meet through a file, not on a port.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import pickle
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

__all__ = ["Answer", "Team", "World"]

# Forks of a server that has imported torch already: a team is there in a tenth of a second.
_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload([__name__, "te_pkg.attention.context_parallel", "te_pkg.attention.backends.dense"])


@dataclass
class World:
    """What a rank knows: which it is, and the groups by the number of their ranks."""

    rank: int
    size: int
    groups: dict[int, dist.ProcessGroup] = field(default_factory=dict)

    def group(self, size: int) -> dist.ProcessGroup:
        return self.groups[size]


@dataclass(frozen=True)
class Answer:
    """What a rank returned, or the error it ended with; neither where the process died."""

    value: Any = None
    error: BaseException | None = None
    trace: str = ""
    died: bool = False

    def get(self) -> Any:
        if self.error is not None:
            raise AssertionError(self.trace) from self.error
        assert not self.died, "the rank died"
        return self.value


class Team:
    """Ranks that wait for something to do.

    Args:
        size: how many.
        folder: for the file through which they meet.
        timeout: of the group, in seconds.
    """

    def __init__(self, size: int, folder: Path, timeout: float = 30) -> None:
        self.size = size
        self._timeout = timeout
        self._ends: list[Connection] = []
        self._ranks = []
        for rank in range(size):
            here, there = _context.Pipe()
            process = _context.Process(
                target=_work, args=(there, rank, size, str(folder / "meet"), timeout), daemon=True
            )
            process.start()
            there.close()
            self._ends.append(here)
            self._ranks.append(process)
        self._collect(60)

    def run(self, function: Callable[..., Any], *args: Any, limit: float = 60) -> list[Answer]:
        """``function(world, *args)`` on every rank.

        Args:
            limit: seconds until every rank is killed.
        """
        message = pickle.dumps((function, args))
        for end in self._ends:
            with contextlib.suppress(BrokenPipeError):  # of a rank that died
                end.send_bytes(message)
        return self._collect(limit)

    def close(self) -> None:
        for end in self._ends:
            end.close()
        for process in self._ranks:
            process.join(5)
            if process.is_alive():
                process.kill()
                process.join()

    def __enter__(self) -> Team:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _collect(self, limit: float) -> list[Answer]:
        answers = []
        for end in self._ends:
            if not end.poll(limit):
                for process in self._ranks:
                    process.kill()
                raise AssertionError(f"a rank did not answer within {limit} s")
            try:
                answers.append(end.recv())
            except EOFError:
                answers.append(Answer(died=True))
        return answers


def _work(end: Connection, rank: int, size: int, meeting: str, timeout: float) -> None:
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        store=dist.FileStore(meeting, size),
        rank=rank,
        world_size=size,
        timeout=timedelta(seconds=timeout),
    )
    world = World(rank, size)
    for part in range(1, size + 1):
        # Every rank is in one group of each size that divides the team: in the last one it is not the rank that it is
        # in the whole team.
        if size % part == 0:
            members = [list(range(first, first + part)) for first in range(0, size, part)]
            groups = [dist.new_group(ranks, timedelta(seconds=timeout)) for ranks in members]
            world.groups[part] = groups[rank // part]
    end.send(Answer())
    while True:
        try:
            function, args = pickle.loads(end.recv_bytes())
        except EOFError:
            os._exit(0)  # without waiting for ranks that are gone
        try:
            answer = Answer(function(world, *args))
        except Exception as error:
            answer = Answer(error=error, trace=traceback.format_exc())
        try:
            end.send(answer)
        except Exception:
            end.send(Answer(error=RuntimeError(str(answer.error)), trace=answer.trace))
