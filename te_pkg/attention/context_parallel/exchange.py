"""How ranks talk: along the ring, all with all, and in pairs, so that an error can name who did not answer.

``c`` ranks. Only collectives of :mod:`torch.distributed` on the group that is given; no group is made. Every wait ends
with the timeout of the group.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

from te_pkg.attention.errors import ArgumentError, ArgumentTypeError, RankError

__all__ = ["OnTheWay", "Ranks"]

_A_MOMENT = timedelta(seconds=1)


class OnTheWay:
    """What comes from the rank before while other work is done."""

    def __init__(self, received: torch.Tensor, sent: torch.Tensor, works: list[_Work]) -> None:
        self._received, self._works = received, works
        self._sent = sent  # must live until it has been sent

    def wait(self) -> torch.Tensor:
        """What came.

        Raises:
            RankError: a ``RuntimeError``; it did not come, or what was to be passed on did not go.
        """
        for work in self._works:
            with _named(work.ranks, "the ring is broken"):
                work.wait()
        return self._received


class _Work(NamedTuple):
    """A message under way, and the ranks that may be to blame if it does not arrive."""

    wait: Callable[..., Any]
    ranks: list[int]


@dataclass(frozen=True)
class Ranks:
    """The ranks of a group, and which of them this one is.

    Attributes:
        group: theirs.
        size: ``c``.
        rank: this one, as counted in the group.
    """

    group: dist.ProcessGroup | None
    size: int
    rank: int

    @classmethod
    def of(cls, group: dist.ProcessGroup | None) -> Ranks:
        """Those of a group; None: the default group.

        Raises:
            ArgumentTypeError: a ``TypeError``; no group.
            ArgumentError: a ``ValueError``; this rank is not in it.
        """
        if group is not None and not isinstance(group, dist.ProcessGroup):
            if group is dist.GroupMember.NON_GROUP_MEMBER:
                raise ArgumentError("this rank is not in group")
            raise ArgumentTypeError(f"group must be a torch.distributed.ProcessGroup or None, got {group!r}")
        rank = dist.get_rank(group)
        if rank < 0:
            raise ArgumentError("this rank is not in group")
        return cls(group, dist.get_world_size(group), rank)

    def swap(self, record: torch.Tensor) -> torch.Tensor:
        """Every rank's record of integers, in pairs. Waits for them; on the CPU where the group can, else a host sync.

        Args:
            record: int64 or uint8 ``[n]`` on the CPU, as long on every rank.

        Returns:
            ``[c, n]`` on the CPU.

        Raises:
            RankError: a ``RuntimeError``; names a rank that did not answer.
        """
        place = self._place_to_talk()
        mine = record.to(place)
        records = mine.new_empty((self.size, *record.shape))
        records[self.rank] = mine
        receiving, sending, lost = [], [], dict[int, RuntimeError]()
        others = self._others()
        if place.type != "cpu":
            pairs = [
                (what, x, rank) for rank in others for what, x in ((dist.irecv, records[rank]), (dist.isend, mine))
            ]
            for work in self._start(pairs):
                with _named(work.ranks, "the ranks did not meet"):
                    work.wait()
            return records.cpu()
        for rank in others:
            try:
                receiving += self._start([(dist.irecv, records[rank], rank)])
                sending += self._start([(dist.isend, mine, rank)])
            except RankError as error:
                lost[rank] = error
        for work in receiving:
            if not lost:
                try:
                    work.wait()
                except RuntimeError as error:
                    lost[work.ranks[0]] = error
        # Of the lost ones too all others must learn, and not wait for this rank instead.
        for work in sending:
            with contextlib.suppress(RuntimeError):
                work.wait(*([_A_MOMENT] if lost else []))
        if lost:
            first = next(iter(lost.values()))
            cause = first.__cause__ if isinstance(first, RankError) else first
            raise _rank_error(list(lost), "the ranks did not meet", cause) from cause
        return records

    def pass_on(self, buffer: torch.Tensor) -> OnTheWay:
        """Send to the next rank, receive as much from the one before, and do not wait."""
        before, after = (self.rank - 1) % self.size, (self.rank + 1) % self.size
        received = torch.empty_like(buffer)
        works = self._start([(dist.isend, buffer, after), (dist.irecv, received, before)])
        return OnTheWay(received, buffer, works)

    def gather(self, shard: torch.Tensor) -> torch.Tensor:
        """``[n]`` of every rank: ``[c, n]``."""
        everything = shard.new_empty((self.size, *shard.shape))
        if self.size == 1:
            return everything.copy_(shard)
        # The name before torch 2.13 warns from then on.
        gather: Callable[..., Any] = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
        with _named(self._others(), "keys and values could not be gathered"):
            gather(everything.flatten(), shard, group=self.group)
        return everything

    def trade(self, parts: torch.Tensor) -> torch.Tensor:
        """``parts[r]`` goes to rank ``r``; ``[c, n]`` from each rank comes back in the order of the ranks."""
        if self.size == 1:
            return parts
        parts = parts.contiguous()
        received = torch.empty_like(parts)
        with _named(self._others(), "rows and heads could not be traded"):
            dist.all_to_all_single(received, parts, group=self.group)
        return received

    def _others(self) -> list[int]:
        return [rank for rank in range(self.size) if rank != self.rank]

    def _start(self, messages: list[tuple[Callable[..., Any], torch.Tensor, int]]) -> list[_Work]:
        """Begin to send and to receive."""
        peers = [rank if self.group is None else dist.get_global_rank(self.group, rank) for *_, rank in messages]
        if messages[0][1].device.type == "cpu":
            works = []
            for (what, tensor, rank), peer in zip(messages, peers, strict=True):
                with _named([rank], "nothing can be sent"):
                    works.append(_Work(what(tensor, peer, self.group).wait, [rank]))
            return works
        # In one batch, because a device runs them in order, and two ranks that both send first would wait for ever.
        ranks = sorted({rank for *_, rank in messages})
        operations = [
            dist.P2POp(what, tensor, peer, self.group) for (what, tensor, _), peer in zip(messages, peers, strict=True)
        ]
        with _named(ranks, "nothing can be sent"):
            return [_Work(work.wait, ranks) for work in dist.batch_isend_irecv(operations)]

    def _place_to_talk(self) -> torch.device:
        if "cpu:" in str(dist.get_backend_config(self.group)):
            return torch.device("cpu")
        return torch.device("cuda", torch.cuda.current_device())


@contextlib.contextmanager
def _named(ranks: list[int], what: str) -> Iterator[None]:
    """Torch's errors tell no rank."""
    try:
        yield
    except RankError:
        raise
    except RuntimeError as error:
        raise _rank_error(ranks, what, error) from error


def _rank_error(ranks: list[int], what: str, cause: BaseException | None) -> RankError:
    names = " or ".join(f"rank {rank}" for rank in ranks)
    why = (str(cause).splitlines() or [type(cause).__name__])[0]
    return RankError(ranks, [f"{what}: {names} failed, or did not answer in time ({why}); hint: see its own error"])
