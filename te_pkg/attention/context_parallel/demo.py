"""The demonstration: one layout, the share of each rank, and what every method makes of it, compared to one process.

``t`` rows, ``h`` heads, ``d`` head size, ``c`` ranks.
"""

from __future__ import annotations

import string
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise

import torch
import torch.distributed as dist

from te_pkg.attention.backends import AttentionProblem, dense
from te_pkg.attention.context_parallel.attention import METHODS, context_parallel_attention
from te_pkg.attention.context_parallel.partition import inverse_partition_indices, partition_indices, rank_cu_seqlens
from te_pkg.attention.layout import PackedLayout

__all__ = ["report"]

_LENGTHS = (7, 12, 1)
_SIZE = 16


def report() -> Iterator[str]:
    """The lines of the demonstration; every rank of the default group has to take them all. The CPU does the work.

    Yields:
        The picture of the layout; what each rank holds, sequences as letters and rows by their positions; for each
        method the largest difference to one process of outputs and of gradients.
    """
    size, rank = dist.get_world_size(), dist.get_rank()
    layout = PackedLayout.from_lengths(_LENGTHS, pad_to_multiple=2 * size, device="cpu")
    yield str(layout)
    yield ""
    yield from shares(layout, size)
    yield ""
    generator = torch.Generator().manual_seed(0)
    # As many heads as any method needs, and two heads of queries for each of keys.
    q, k, v, d_out = (
        torch.randn(layout.total_tokens, heads * size, _SIZE, dtype=torch.float64, generator=generator)
        for heads in (2, 1, 1, 2)
    )
    expected = _with_gradients(_on_one_process(layout), (q, k, v), d_out)
    rows = partition_indices(layout.cu_seqlens_padded, size, rank)
    for method in METHODS:

        def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, method: str = method) -> torch.Tensor:
            return context_parallel_attention(q, k, v, layout, group=None, method=method, causal=True)

        found = _with_gradients(attend, (q[rows], k[rows], v[rows]), d_out[rows])
        differences = [
            (_joined(one, layout, size) - other).abs().max().item() for one, other in zip(found, expected, strict=True)
        ]
        yield (
            f"{method:10}  largest difference to one process: output {differences[0]:.1e}, gradients "
            f"{max(differences[1:]):.1e}"
        )


def shares(layout: PackedLayout, cp_size: int) -> Iterator[str]:
    """What each rank holds.

    >>> list(shares(PackedLayout.from_lengths([7], pad_to_multiple=4), 2))
    ['rank 0  3 real rows of 4  a0 a1 a6 .', 'rank 1  4 real rows of 4  a2 a3 a4 a5']
    """
    sequences, positions = layout.sequence_ids().tolist(), layout.position_ids().tolist()
    offsets = rank_cu_seqlens(layout, cp_size).tolist()
    for rank, (real, stored) in enumerate(offsets):
        rows = partition_indices(layout.cu_seqlens_padded, cp_size, rank).tolist()
        names = [
            f"{string.ascii_lowercase[sequences[row] % 26]}{positions[row]}" if sequences[row] >= 0 else "."
            for row in rows
        ]
        slots = [" ".join(names[begin:end]) for begin, end in pairwise(stored)]
        yield f"rank {rank}  {real[-1]} real rows of {stored[-1]}  {' | '.join(slots)}"


def _on_one_process(layout: PackedLayout) -> Callable[..., torch.Tensor]:
    problem = AttentionProblem.of(layout, scale=_SIZE**-0.5, causal=True)

    def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return dense.forward(q, k, v, problem)[0]

    return attend


def _with_gradients(
    attend: Callable[..., torch.Tensor], given: Sequence[torch.Tensor], d_out: torch.Tensor
) -> list[torch.Tensor]:
    """The output of ``attend`` and the gradients of what it was given."""
    leaves = [x.clone().requires_grad_() for x in given]
    out = attend(*leaves)
    return [out.detach(), *torch.autograd.grad(out, leaves, d_out)]


def _joined(shard: torch.Tensor, layout: PackedLayout, cp_size: int) -> torch.Tensor:
    shards = [torch.empty_like(shard) for _ in range(cp_size)]
    dist.all_gather(shards, shard.contiguous())
    return torch.cat(shards)[inverse_partition_indices(layout.cu_seqlens_padded, cp_size)]
