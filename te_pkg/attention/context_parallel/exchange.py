"""How ranks talk: along the ring, all with all, and in pairs, so that an error can name who did not answer.

``c`` ranks. Only collectives of :mod:`torch.distributed` on the group that is given; no group is made. Every wait ends
with the timeout of the group.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from te_pkg.attention.errors import ArgumentError, ArgumentTypeError, AttentionError

__all__ = ["OnTheWay", "RankError", "Ranks"]


class RankError(AttentionError, RuntimeError):
    """A rank of the group refused the call, disagrees with the others about it, or did not answer.

    Attributes:
        ranks: which, as counted in the group.
        faults: what each did, one sentence each.
    """

    def __init__(self, ranks: Iterable[int], faults: Iterable[str]) -> None:
        self.ranks, self.faults = tuple(ranks), tuple(faults)
        super().__init__("\n".join(self.faults))

    def __reduce__(self) -> tuple[type[RankError], tuple[tuple[int, ...], tuple[str, ...]]]:
        return type(self), (self.ranks, self.faults)


class OnTheWay:
    """What comes from the rank before while other work is done."""

    def __init__(self, received: torch.Tensor, sent: torch.Tensor, works: list[Any], before: int, after: int) -> None:
        self._received, self._works = received, works
        self._sent = sent  # must live until it has been sent
        self._before, self._after = before, after

    def wait(self) -> torch.Tensor:
        """What came.

        Raises:
            RankError: a ``RuntimeError``; it did not come, or what was to be passed on did not go.
        """
        neighbours = {self._before, self._after}
        _complete((work.wait for work in self._works), neighbours, "keys and values did not pass")
        return self._received


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

    @property
    def name(self) -> str:
        """Of the group, the same on all ranks."""
        group = dist.group.WORLD if self.group is None else self.group
        return str(group.group_name) if group is not None else ""

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
        others = [rank for rank in range(self.size) if rank != self.rank]
        operations = [self._operation(dist.irecv, records[rank], rank) for rank in others]
        operations += [self._operation(dist.isend, mine, rank) for rank in others]
        peers = others * 2
        works = self._start(operations, set(others))
        for i, work in enumerate(works):
            _complete([work.wait], {peers[i]} if len(works) == len(peers) else set(others), "the ranks do not meet")
        return records.cpu()

    def pass_on(self, buffer: torch.Tensor) -> OnTheWay:
        """Send to the next rank, receive as much from the one before, and do not wait."""
        before, after = (self.rank - 1) % self.size, (self.rank + 1) % self.size
        received = torch.empty_like(buffer)
        operations = [self._operation(dist.isend, buffer, after), self._operation(dist.irecv, received, before)]
        return OnTheWay(received, buffer, self._start(operations, {before, after}), before, after)

    def gather(self, shard: torch.Tensor) -> torch.Tensor:
        """``[n]`` of every rank: ``[c, n]``."""
        everything = shard.new_empty((self.size, *shard.shape))
        if self.size == 1:
            return everything.copy_(shard)
        # The name before torch 2.13 warns from then on.
        gather: Callable[..., Any] = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
        others = set(range(self.size)) - {self.rank}
        _complete([lambda: gather(everything.flatten(), shard, group=self.group)], others, "the gathering failed")
        return everything

    def trade(self, parts: torch.Tensor) -> torch.Tensor:
        """``parts[r]`` goes to rank ``r``; ``[c, n]`` from each rank comes back in the order of the ranks."""
        if self.size == 1:
            return parts
        parts = parts.contiguous()
        received = torch.empty_like(parts)
        others = set(range(self.size)) - {self.rank}
        _complete([lambda: dist.all_to_all_single(received, parts, group=self.group)], others, "the all-to-all failed")
        return received

    def _operation(self, what: Callable[..., Any], tensor: torch.Tensor, rank: int) -> dist.P2POp:
        peer = rank if self.group is None else dist.get_global_rank(self.group, rank)
        return dist.P2POp(what, tensor, peer, self.group)

    def _start(self, operations: list[dist.P2POp], ranks: set[int]) -> list[Any]:
        works: list[Any] = []
        _complete([lambda: works.extend(dist.batch_isend_irecv(operations))], ranks, "nothing can be sent")
        return works

    def _place_to_talk(self) -> torch.device:
        if "cpu:" in str(dist.get_backend_config(self.group)):
            return torch.device("cpu")
        return torch.device("cuda", torch.cuda.current_device())


def _complete(waits: Iterable[Callable[[], Any]], ranks: set[int], what: str) -> None:
    """Torch's errors tell no rank."""
    try:
        for wait in waits:
            wait()
    except RuntimeError as error:
        names = " or ".join(f"rank {rank}" for rank in sorted(ranks))
        raise RankError(
            sorted(ranks),
            [f"{what}: {names} failed, or did not answer in time ({_first_line(error)}); hint: see its own error"],
        ) from error


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
