"""The readable truth: every score of every pair, by plain operations of torch.

``b`` sequences, ``s`` rows of the longest one, ``h`` heads, ``d`` head size. Takes every layout, band, soft cap,
dropout and dtype on every device, never syncs, is safe under CUDA graph capture, and is differentiated as often as one
likes. It needs memory for all pairs, those of a batch ``[b, s, s]`` or of the whole buffers, whichever are fewer, and
works in float32 at least.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch

from te_pkg.attention.backends.problem import AttentionProblem
from te_pkg.attention.layout import PackedLayout
from te_pkg.attention.relayout import pack, unpack
from te_pkg.attention.zeroing import zero_padding

__all__ = ["backward", "draw_dropout", "forward", "why_absent", "why_not"]


def why_absent() -> str | None:
    """None: it is here."""
    return None


def why_not(problem: AttentionProblem, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> str | None:
    """None: it serves everything."""
    return None


def forward(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, problem: AttentionProblem
) -> tuple[torch.Tensor, torch.Tensor]:
    """See :class:`te_pkg.attention.backends.Backend`.

    >>> layout = PackedLayout.from_lengths([2])
    >>> q = k = torch.zeros(2, 1, 1)
    >>> v = torch.tensor([2.0, 4.0]).view(2, 1, 1)
    >>> out, lse = forward(q, k, v, AttentionProblem.of(layout, scale=1.0, causal=True))
    >>> out.flatten(), lse
    (tensor([2., 3.]), tensor([[0.0000, 0.6931]]))
    """
    pairs = _Pairs.of(problem, q, k, v)
    scores = pairs.scores(problem)[0]
    # The greatest is taken away first; it is no part of the result, and has no gradient.
    greatest = scores.detach().amax(-1, keepdim=True).nan_to_num(neginf=0.0)
    weights = (scores - greatest).exp()
    total = weights.sum(-1, keepdim=True)
    seen = total > 0
    safe = total.where(seen, 1.0)
    lse = (safe.log() + greatest).where(seen, -math.inf).squeeze(-1)
    out = pairs.dropped(weights / safe, problem) @ pairs.v
    rows = _rows(out, problem.layout, pairs).to(q.dtype)
    return rows.contiguous(), _lse_rows(lse, problem.layout, pairs).contiguous()


def backward(
    d_out: torch.Tensor,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    out: torch.Tensor,
    lse: torch.Tensor,
    problem: AttentionProblem,
    d_lse: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """See :class:`te_pkg.attention.backends.Backend`."""
    pairs = _Pairs.of(problem, q, k, v)
    scores, slope = pairs.scores(problem)
    d_out, out = (_batch(rows, problem.layout, pairs, pairs.dtype) for rows in (d_out, out))
    lse = _batch(lse.T, problem.layout, pairs, pairs.dtype)
    # Where nothing is seen, -inf would be taken from -inf, and no gradient counts, whatever it holds.
    blind = lse == -math.inf
    weights = (scores - lse.masked_fill(blind, 0.0)).exp()
    d_out = d_out.masked_fill(blind, 0.0)
    common = (d_out * out).sum(-1, keepdim=True)
    if d_lse is not None:
        common = common - _batch(d_lse.T, problem.layout, pairs, pairs.dtype)
    d_weights = pairs.dropped(d_out @ pairs.v.mT, problem)
    d_scores = (weights * (d_weights - common)).masked_fill(~pairs.keep, 0.0)
    if slope is not None:
        d_scores = d_scores * slope
    d_scores = d_scores * problem.scale
    d_q = d_scores @ pairs.k
    # Query heads of one group share their keys.
    d_k = (d_scores.mT @ pairs.q).sum(2, keepdim=True)
    d_v = (pairs.dropped(weights, problem).mT @ d_out).sum(2, keepdim=True)
    keys = problem.layout_kv
    return (
        _rows(d_q, problem.layout, pairs).to(q.dtype).contiguous(),
        _rows(d_k, keys, pairs).to(k.dtype).contiguous(),
        _rows(d_v, keys, pairs).to(v.dtype).contiguous(),
    )


def draw_dropout(
    q: torch.Tensor, k: torch.Tensor, problem: AttentionProblem, generator: torch.Generator | None
) -> torch.Tensor:
    """bool, which weights stay; ``True`` with a probability of ``1 - problem.dropout_p``."""
    layout, keys = problem.layout, problem.layout_kv
    batch = _as_batch(layout, keys)
    b, rows, columns = (
        (layout.num_sequences, _longest(layout), _longest(keys))
        if batch
        else (1, layout.total_tokens, keys.total_tokens)
    )
    heads = (k.shape[1], q.shape[1] // k.shape[1])
    shape = (b, *heads, rows, columns)
    # Not in torch's default dtype: bfloat16 has no number between 0 and 1/256 to draw, and a small share triples.
    if generator is None:  # which a compiler must not even see
        return torch.rand(shape, dtype=torch.float32, device=q.device) >= problem.dropout_p
    return torch.rand(shape, dtype=torch.float32, device=q.device, generator=generator) >= problem.dropout_p


class _Pairs(NamedTuple):
    """All pairs of queries and keys: ``[b, h_kv, h / h_kv, s, d]`` and ``[b, h_kv, 1, s_kv, d]``, 0 on padding.

    ``keep`` is bool ``[b, 1, 1, s, s_kv]``. As whole buffers ``b`` is 1, ``s`` is ``t_q`` and ``s_kv`` is ``t_kv``.
    """

    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    keep: torch.Tensor
    batch: bool
    dtype: torch.dtype

    @classmethod
    def of(cls, problem: AttentionProblem, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> _Pairs:
        layout, keys = problem.layout, problem.layout_kv
        batch = _as_batch(layout, keys)
        keep = _keep(problem, batch)
        pairs = cls(q, k, v, keep, batch, torch.promote_types(q.dtype, torch.float32))
        groups = k.shape[1]
        return pairs._replace(
            q=_batch(q, layout, pairs, pairs.dtype, groups),
            k=_batch(k, keys, pairs, pairs.dtype, groups),
            v=_batch(v, keys, pairs, pairs.dtype, groups),
        )

    def scores(self, problem: AttentionProblem) -> tuple[torch.Tensor, torch.Tensor | None]:
        """-inf where nothing is seen; and the derivative of the soft cap."""
        scores = (self.q @ self.k.mT) * problem.scale
        slope = None
        if problem.softcap is not None:
            capped = (scores / problem.softcap).tanh()
            scores, slope = capped * problem.softcap, 1 - capped.square()
        return scores.masked_fill(~self.keep, -math.inf), slope

    def dropped(self, weights: torch.Tensor, problem: AttentionProblem) -> torch.Tensor:
        if problem.dropout_keep is None:
            return weights
        return weights.where(problem.dropout_keep, 0.0) / (1 - problem.dropout_p)


def _as_batch(layout: PackedLayout, keys: PackedLayout) -> bool:
    """Whether a batch has fewer pairs than the whole buffers, which must have a key."""
    pairs = layout.num_sequences * _longest(layout) * _longest(keys)
    return keys.total_tokens == 0 or pairs <= layout.total_tokens * keys.total_tokens


def _longest(layout: PackedLayout) -> int:
    # Of no keys there is no greatest score.
    return max(layout.max_seqlen, 1)


def _keep(problem: AttentionProblem, batch: bool) -> torch.Tensor:
    layout, keys = problem.layout, problem.layout_kv
    device, diagonals = layout.device, problem.diagonals() if problem.is_banded else None
    if batch:
        q = torch.arange(_longest(layout), device=device)[:, None]
        kv = torch.arange(_longest(keys), device=device)
        lengths, lengths_kv = (cu.diff()[:, None, None] for cu in (layout.cu_seqlens, keys.cu_seqlens))
        keep = (q < lengths) & (kv < lengths_kv)
        met = None if diagonals is None else q + diagonals[:, None, None]
    else:
        ids, ids_kv = layout.sequence_ids(), keys.sequence_ids()
        keep = (ids[:, None] == ids_kv) & (ids >= 0)[:, None]
        q, kv = layout.position_ids()[:, None], keys.position_ids()
        # Padding is of no sequence: a number more for it.
        met = None if diagonals is None else q + torch.cat([diagonals, diagonals.new_zeros(1)])[ids][:, None]
        keep, met = keep[None], None if met is None else met[None]
    if met is not None and problem.left is not None:
        keep = keep & (kv >= met - problem.left)
    if met is not None and problem.right is not None:
        keep = keep & (kv <= met + problem.right)
    return keep[:, None, None]


def _batch(
    rows: torch.Tensor, layout: PackedLayout, pairs: _Pairs, dtype: torch.dtype, groups: int | None = None
) -> torch.Tensor:
    """``[t, h, d]`` or ``[t, h]`` -> ``[b, h_kv, h / h_kv, s, d]``."""
    rows = rows.to(dtype)
    rows = unpack(rows, layout, _longest(layout)) if pairs.batch else zero_padding(rows, layout)[None]
    rows = rows if rows.ndim == 4 else rows[..., None]
    if groups is None:
        groups = pairs.k.shape[1]
    b, s, h, d = rows.shape
    return rows.reshape(b, s, groups, h // groups, d).permute(0, 2, 3, 1, 4)


def _rows(batch: torch.Tensor, layout: PackedLayout, pairs: _Pairs) -> torch.Tensor:
    """``[b, h_kv, h / h_kv, s, d]`` -> ``[t, h, d]``, 0 on padding."""
    rows = batch.flatten(1, 2).movedim(1, 2)
    return pack(rows, layout) if pairs.batch else zero_padding(rows[0], layout)


def _lse_rows(lse: torch.Tensor, layout: PackedLayout, pairs: _Pairs) -> torch.Tensor:
    rows = lse.flatten(1, 2).mT
    rows = pack(rows, layout, fill=-math.inf) if pairs.batch else rows[0]
    return rows.T
