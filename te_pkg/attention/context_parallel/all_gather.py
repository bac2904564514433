"""``method="all_gather"``: every rank gets all keys and values at once, and its queries attend to them.

``c`` ranks. One message instead of ``c - 1``, at the price of memory for the keys and values of all. In the backward
pass each rank finds gradients for all of them; they are traded in the order of the ranks and summed in that order, so
that results do not depend on who was first.
"""

from __future__ import annotations

import torch

from te_pkg.attention.context_parallel.blocks import Block, gathered_blocks
from te_pkg.attention.context_parallel.partial import Attended, Incoming, Kept, wide_dtype
from te_pkg.attention.context_parallel.partition import inverse_partition_indices
from te_pkg.attention.context_parallel.request import Request

__all__ = ["backward", "forward", "plan", "why_not"]


def why_not(heads: int, heads_kv: int, cp_size: int) -> list[str]:
    """Every number of heads will do."""
    return []


def plan(request: Request) -> list[list[Block]]:
    """All blocks in one step."""
    return [gathered_blocks(request.band, request.queries, request.keys, request.ranks.rank)]


def forward(
    request: Request, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, Kept]:
    """Attention of a rank's shard, its log-sum-exp, and what :func:`backward` needs."""
    attended = Attended(q, v.shape[2])
    all_k, all_v = _gather(request, k, v)
    for task in request.tasks[0]:
        attended.take(task, all_k, all_v)
    out, lse = attended.result()
    return out, lse, Kept(q, k, v, out, lse)


def backward(
    request: Request, kept: Kept, d_out: torch.Tensor, d_lse: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Gradients of a rank's shards of queries, keys and values."""
    q, k, v, *_ = kept
    incoming, wide = Incoming(kept, d_out, d_lse), wide_dtype(q.dtype)
    all_k, all_v = _gather(request, k, v)
    d_q, d_k, d_v = (torch.zeros_like(x, dtype=wide, memory_format=torch.contiguous_format) for x in (q, all_k, all_v))
    for task in request.tasks[0]:
        incoming.add_gradients(task, all_k, all_v, d_q, d_k, d_v)
    size, places = request.ranks.size, _places(request)
    shards = []
    for x in (d_k, d_v):
        in_shards = torch.empty_like(x)
        in_shards[places] = x
        shards.append(in_shards.view(size, -1))
    summed = request.ranks.trade(torch.cat(shards, 1)).sum(0)
    return d_q, summed[: k.numel()].view(k.shape), summed[k.numel() :].view(v.shape)


def _gather(request: Request, k: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Keys and values of all ranks in the order of their sequences."""
    everything = request.ranks.gather(torch.cat([k.flatten(), v.flatten()]))
    places = _places(request)
    all_k, all_v = everything[:, : k.numel()], everything[:, k.numel() :]
    return all_k.reshape(-1, *k.shape[1:])[places], all_v.reshape(-1, *v.shape[1:])[places]


def _places(request: Request) -> torch.Tensor:
    return inverse_partition_indices(request.keys.layout.cu_seqlens_padded, request.ranks.size)
