"""Cases of context-parallel attention: what each rank does, and the truth on one process."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch

from te_pkg.attention import PackedLayout
from te_pkg.attention.context_parallel import (
    context_parallel_attention,
    inverse_partition_indices,
    partition_indices,
)
from tests.attention.context_parallel.team import Answer, World
from tests.attention.layouts import Rows, layout_of

__all__ = ["Case", "Results", "attend", "joined", "truth"]


@dataclass(frozen=True)
class Case:
    """One call, told in numbers.

    Attributes:
        rows: of the queries' layout.
        rows_kv: of the keys'; None: the same.
        heads: of the queries.
        heads_kv: of keys and values.
        spare: rows of each shard behind its slots.
        options: of the call.
    """

    rows: Rows
    rows_kv: Rows | None = None
    heads: int = 4
    heads_kv: int = 4
    size: int = 3
    size_v: int = 2
    spare: int = 0
    dtype: torch.dtype = torch.float64
    options: tuple[tuple[str, Any], ...] = ()

    @property
    def layout(self) -> PackedLayout:
        return layout_of(self.rows)

    @property
    def layout_kv(self) -> PackedLayout | None:
        return None if self.rows_kv is None else layout_of(self.rows_kv)

    def tensors(self) -> list[torch.Tensor]:
        """q, k, v and the gradients of the output and of the log-sum-exp, whole, with NaN in every padding row."""
        generator = torch.Generator().manual_seed(7)
        layout, keys = self.layout, self.layout_kv or self.layout

        def rows(which: PackedLayout, *shape: int) -> torch.Tensor:
            x = torch.randn(which.total_tokens, *shape, generator=generator, dtype=torch.float64).to(self.dtype)
            x[which.padding_rows()] = math.nan
            return x

        return [
            rows(layout, self.heads, self.size),
            rows(keys, self.heads_kv, self.size),
            rows(keys, self.heads_kv, self.size_v),
            rows(layout, self.heads, self.size_v),
            rows(layout, self.heads),
        ]


class Results(NamedTuple):
    """Output, log-sum-exp ``[t, h]``, and the gradients of q, k, v."""

    out: torch.Tensor
    lse: torch.Tensor
    d_q: torch.Tensor
    d_k: torch.Tensor
    d_v: torch.Tensor


def attend(world: World, size: int, case: Case) -> list[np.ndarray]:
    """What one rank does; its shards of :class:`Results`."""
    group = world.group(size)
    rank = world.rank % size
    q, k, v, d_out, d_lse = case.tensors()
    layout, keys = case.layout, case.layout_kv or case.layout

    def shard(x: torch.Tensor, of: PackedLayout) -> torch.Tensor:
        held = x[partition_indices(of.cu_seqlens_padded, size, rank)]
        return torch.cat([held, held.new_full((case.spare, *held.shape[1:]), math.nan)])

    q, k, v = (shard(x, of).requires_grad_() for x, of in ((q, layout), (k, keys), (v, keys)))
    out, lse = context_parallel_attention(
        q, k, v, layout, case.layout_kv, group=group, return_lse=True, **dict(case.options)
    )
    torch.autograd.backward([out, lse], [shard(d_out, layout), shard(d_lse, layout).T.to(lse.dtype)])
    results = Results(out.detach(), lse.detach().T, q.grad, k.grad, v.grad)
    for x in results:
        spare = x[len(x) - case.spare :]
        assert torch.equal(spare, torch.full_like(spare, -math.inf if x is results.lse else 0))
    return [x[: len(x) - case.spare].double().numpy() for x in results]


def joined(answers: list[Answer], size: int, case: Case, first: int = 0) -> Results:
    """The shards of one group as whole buffers, without spare capacity."""
    layout, keys = case.layout, case.layout_kv or case.layout
    shards = [answer.get() for answer in answers[first : first + size]]
    sides = Results(layout, layout, layout, keys, keys)
    return Results(
        *(
            torch.from_numpy(np.concatenate([shard[i] for shard in shards]))[
                inverse_partition_indices(side.cu_seqlens_padded, size)
            ]
            for i, side in enumerate(sides)
        )
    )


def truth(case: Case) -> Results:
    """Every score of every pair in float64, and autograd: independent of every backend."""
    options = dict(case.options)
    layout, keys = case.layout, case.layout_kv or case.layout
    mask = layout.attention_mask(
        case.layout_kv,
        causal=options.get("causal", False),
        align=options.get("align", "top_left"),
        window=options.get("window"),
    )
    q, k, v, d_out, d_lse = (x.double().nan_to_num(nan=0.0) for x in case.tensors())
    q, k, v = (x.requires_grad_() for x in (q, k, v))
    many = case.heads // case.heads_kv
    scores = torch.einsum("qhd,khd->hqk", q, k.repeat_interleave(many, 1)) * (options.get("scale") or case.size**-0.5)
    softcap = options.get("softcap")
    if softcap is not None:
        scores = softcap * (scores / softcap).tanh()
    seen = mask.any(-1)
    scores = scores.masked_fill(~mask, -math.inf).masked_fill(~seen[:, None], 0)
    lse = scores.logsumexp(-1).masked_fill(~seen, 0)
    weights = scores.softmax(-1).masked_fill(~seen[:, None], 0) if keys.total_tokens else scores
    out = torch.einsum("hqk,khd->qhd", weights, v.repeat_interleave(many, 1))
    gradients = torch.autograd.grad([out, lse], [q, k, v], [d_out, d_lse.T.masked_fill(~seen, 0)])
    end, end_kv = (int(of.cu_seqlens_padded[-1]) for of in (layout, keys))
    whole = [out[:end], lse.masked_fill(~seen, -math.inf).T[:end], gradients[0][:end]]
    return Results(*(x.detach() for x in whole), *(x[:end_kv] for x in gradients[1:]))
