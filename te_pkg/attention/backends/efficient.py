"""PyTorch's memory-efficient kernel for CUDA, for one sequence at a time.

It takes float32, float16 and bfloat16, head sizes that are multiples of 8, as many heads of keys as of queries, and a
log-sum-exp whose rows are a multiple of 32. A mask is a bias whose rows begin at multiples of 16 elements.

Source: ``aten::_scaled_dot_product_efficient_attention`` of PyTorch.
"""

from __future__ import annotations

import torch
from torch.nn.functional import pad

from te_pkg.attention.backends.pieces import Piece

__all__ = ["backward", "forward"]

_WIDTH, _BIAS_ROW, _LSE_ROWS = 8, 16, 32


def forward(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, piece: Piece, scale: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """``[1, h, n, d]``, ``[1, h_kv, n_kv, d]`` twice -> ``[1, h, n, d]`` and ``[1, h, n]``."""
    n, size = q.shape[2:]
    q, k, v = (_aligned(x) for x in (q, *_for_each_head(q, k, v)))
    out, lse, *_ = torch.ops.aten._scaled_dot_product_efficient_attention(
        q, k, v, _bias(q, piece), True, 0.0, piece.is_causal, scale=scale
    )
    return out[..., :size], lse[..., :n]


def backward(
    d_out: torch.Tensor,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    out: torch.Tensor,
    lse: torch.Tensor,
    piece: Piece,
    scale: float,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Gradients of ``q``, ``k`` and ``v``, of their shapes."""
    n, size = q.shape[2:]
    heads = k.shape[1]
    arguments = [_aligned(x) for x in (d_out, q, *_for_each_head(q, k, v))]
    no_dropout = torch.zeros((), dtype=torch.int64, device=q.device)
    d_q, d_k, d_v, _ = torch.ops.aten._scaled_dot_product_efficient_attention_backward(
        *arguments,
        _bias(q, piece),
        _aligned(out),
        pad(lse, (0, -n % _LSE_ROWS), value=torch.inf).contiguous(),
        no_dropout,
        no_dropout,
        0.0,
        [True, True, True, False],
        piece.is_causal,
        scale=scale,
    )
    d_k, d_v = (x.unflatten(1, (heads, -1)).sum(2) for x in (d_k, d_v))
    return d_q[..., :size], d_k[..., :size], d_v[..., :size]


def _for_each_head(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    shared = q.shape[1] // k.shape[1]
    return (k, v) if shared == 1 else (k.repeat_interleave(shared, 1), v.repeat_interleave(shared, 1))


def _aligned(x: torch.Tensor) -> torch.Tensor:
    """With a head size that the kernel takes, in memory whose rows begin at multiples of it."""
    if x.shape[-1] % _WIDTH:
        x = pad(x, (0, -x.shape[-1] % _WIDTH))
    # `[1, n, h, d]` in memory, as it comes.
    return x.transpose(1, 2).contiguous().transpose(1, 2)


def _bias(q: torch.Tensor, piece: Piece) -> torch.Tensor | None:
    if not piece.is_masked:
        return None
    mask = pad(piece.mask(q), (0, -piece.keys % _BIAS_ROW))
    return mask[:, : piece.keys].expand(1, q.shape[1], -1, -1)
