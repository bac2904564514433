"""``method="a2a"``: ranks trade sequences for heads, and each attends with some heads to whole sequences.

``c`` ranks, ``h`` heads of queries, ``h_kv`` of keys and values; both multiples of ``c``. Nothing has to be merged.
Heads that share keys stay together, because rank ``r`` takes the ``r``-th part of both.

Source: Ulysses, Jacobs et al., arXiv 2309.14509.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from te_pkg.attention.context_parallel.blocks import Block, whole_block
from te_pkg.attention.context_parallel.partial import Attended, Incoming, Kept, wide_dtype
from te_pkg.attention.context_parallel.partition import inverse_partition_indices
from te_pkg.attention.context_parallel.request import Request

__all__ = ["backward", "forward", "plan", "why_not"]


def why_not(heads: int, heads_kv: int, cp_size: int) -> list[str]:
    """What is wrong with these numbers of heads.

    >>> why_not(8, 2, 4)
    ["method 'a2a' splits the heads over the ranks: k and v have 2 heads, expected a multiple of 4"]
    """
    return [
        f"method 'a2a' splits the heads over the ranks: {name} {heads} heads, expected a multiple of {cp_size}"
        for name, heads in (("q has", heads), ("k and v have", heads_kv))
        if heads % cp_size
    ]


def plan(request: Request) -> list[list[Block]]:
    """One block: the whole problem."""
    return [whole_block(request.band, request.queries, request.keys)]


def forward(
    request: Request, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor | None, Kept]:
    """Attention of a rank's shard, its log-sum-exp if that is wanted, and what :func:`backward` needs."""
    rows, rows_kv = _places(request)
    whole_q, whole_k, whole_v = _to_heads(request, (q, rows), (k, rows_kv), (v, rows_kv))
    attended = Attended(whole_q, v.shape[2])
    for task in request.tasks[0]:
        attended.take(task, whole_k, whole_v)
    out, lse = attended.result()
    kept = Kept(whole_q, whole_k, whole_v, out, lse)
    (shard,) = _to_rows(request, (out, rows))
    if not request.wants_lse:
        return shard, None, kept
    (lse_shard,) = _to_rows(request, (lse.T.unsqueeze(-1), rows))
    return shard, lse_shard.squeeze(-1).T, kept


def backward(
    request: Request, kept: Kept, d_out: torch.Tensor, d_lse: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Gradients of a rank's shards of queries, keys and values."""
    rows, rows_kv = _places(request)
    (whole_d_out,) = _to_heads(request, (d_out, rows))
    whole_d_lse = None
    if d_lse is not None:
        whole_d_lse = _to_heads(request, (d_lse.T.unsqueeze(-1), rows))[0].squeeze(-1).T
    incoming = Incoming(kept, whole_d_out, whole_d_lse)
    gradients = [torch.zeros_like(x, dtype=wide_dtype(x.dtype)) for x in kept[:3]]
    for task in request.tasks[0]:
        incoming.add_gradients(task, kept.k, kept.v, *gradients)
    d_q, d_k, d_v = _to_rows(request, *zip(gradients, (rows, rows_kv, rows_kv), strict=True))
    return d_q, d_k, d_v


def _places(request: Request) -> tuple[torch.Tensor, torch.Tensor]:
    """Where each row of the whole buffers stands in the shards laid end to end."""
    size = request.ranks.size
    rows = inverse_partition_indices(request.queries.layout.cu_seqlens_padded, size)
    if request.band.is_self:
        return rows, rows
    return rows, inverse_partition_indices(request.keys.layout.cu_seqlens_padded, size)


def _to_heads(request: Request, *shards: tuple[torch.Tensor, torch.Tensor]) -> list[torch.Tensor]:
    """A rank's rows with all heads -> all rows, in the order of their sequences, with a rank's heads."""
    size = request.ranks.size
    parts = [x.reshape(len(x), size, x.shape[1] // size, x.shape[2]).movedim(1, 0) for x, _ in shards]
    return [
        part.reshape(-1, *part.shape[2:])[rows] for part, (_, rows) in zip(_trade(request, parts), shards, strict=True)
    ]


def _to_rows(request: Request, *heads: tuple[torch.Tensor, torch.Tensor]) -> list[torch.Tensor]:
    """The way back."""
    size, parts = request.ranks.size, []
    for x, rows in heads:
        in_shards = torch.empty_like(x, memory_format=torch.contiguous_format)
        in_shards[rows] = x
        parts.append(in_shards.view(size, len(x) // size, *x.shape[1:]))
    return [part.movedim(0, 1).flatten(1, 2) for part in _trade(request, parts)]


def _trade(request: Request, parts: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """``[c, ...]`` each, in one message."""
    traded = request.ranks.trade(torch.cat([part.flatten(1) for part in parts], 1))
    found = torch.split(traded, [part[0].numel() for part in parts], 1)
    return [part.reshape(like.shape) for part, like in zip(found, parts, strict=True)]
