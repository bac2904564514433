"""``method="p2p"``: keys and values go round the ring of ranks, one step ahead of the work.

``c`` ranks, ``c`` steps. In each a rank sends on the keys and values that it works on, and receives the next ones
meanwhile. In the backward pass their gradients follow them one step behind, and are home after ``c`` steps. A rank
holds two shards of keys and values at any time, and never those of all.

Source: ring attention, Liu et al., arXiv 2310.01889; the zigzag order is that of
:mod:`~te_pkg.attention.context_parallel.partition`.
"""

from __future__ import annotations

import torch

from te_pkg.attention.context_parallel.blocks import Block, ring_blocks
from te_pkg.attention.context_parallel.partial import Attended, Incoming, Kept, wide_dtype
from te_pkg.attention.context_parallel.request import Request

__all__ = ["backward", "forward", "plan", "why_not"]


def why_not(heads: int, heads_kv: int, cp_size: int) -> list[str]:
    """Every number of heads will do."""
    return []


def plan(request: Request) -> list[list[Block]]:
    """The blocks of each step."""
    rank, size = request.ranks.rank, request.ranks.size
    return [
        ring_blocks(request.band, request.queries, request.keys, rank, (rank - step) % size) for step in range(size)
    ]


def forward(
    request: Request, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, Kept]:
    """Attention of a rank's shard, its log-sum-exp, and what :func:`backward` needs."""
    attended = Attended(q, v.shape[2])
    keys = _Keys.of(k, v)
    for step, tasks in enumerate(request.tasks):
        coming = request.ranks.pass_on(keys.buffer) if step + 1 < len(request.tasks) else None
        for task in tasks:
            attended.take(task, keys.k, keys.v)
        if coming is not None:
            keys = keys.like(coming.wait())
    out, lse = attended.result()
    return out, lse, Kept(q, k, v, out, lse)


def backward(
    request: Request, kept: Kept, d_out: torch.Tensor, d_lse: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Gradients of a rank's shards of queries, keys and values."""
    incoming = Incoming(kept, d_out, d_lse)
    d_q = torch.zeros_like(kept.q, dtype=wide_dtype(kept.q.dtype), memory_format=torch.contiguous_format)
    keys = _Keys.of(kept.k, kept.v)
    gradients, following = keys, None
    for step, tasks in enumerate(request.tasks):
        coming = request.ranks.pass_on(keys.buffer) if step + 1 < len(request.tasks) else None
        gradients = keys.like(torch.zeros_like(keys.buffer, dtype=d_q.dtype))
        for task in tasks:
            incoming.add_gradients(task, keys.k, keys.v, d_q, gradients.k, gradients.v)
        if following is not None:
            # What the ranks before have found for these same keys.
            gradients.buffer.add_(following.wait())
        following = request.ranks.pass_on(gradients.buffer) if request.ranks.size > 1 else None
        if coming is not None:
            keys = keys.like(coming.wait())
    home = keys.like(gradients.buffer if following is None else following.wait())
    return d_q, home.k, home.v


class _Keys:
    """Keys and values in one buffer, so that one message carries both."""

    def __init__(self, buffer: torch.Tensor, shape: torch.Size, shape_v: torch.Size) -> None:
        self.buffer, self._shape, self._shape_v = buffer, shape, shape_v
        self.k = buffer[: shape.numel()].view(shape)
        self.v = buffer[shape.numel() :].view(shape_v)

    @classmethod
    def of(cls, k: torch.Tensor, v: torch.Tensor) -> _Keys:
        return cls(torch.cat([k.flatten(), v.flatten()]), k.shape, v.shape)

    def like(self, buffer: torch.Tensor) -> _Keys:
        return _Keys(buffer, self._shape, self._shape_v)
