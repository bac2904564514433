"""FlexAttention, always compiled: whole blocks of scores are left out, and a soft cap is part of the kernel.

What is compiled is kept by torch; the first call of a kind takes seconds. Uncompiled it would write down every score,
as ``dense`` does, and more slowly. The backward pass runs the forward pass of the block once more: what a whole
attention makes of it is a factor for each row, and a gradient of its log-sum-exp.

Source: Dong et al., Flex Attention, <https://arxiv.org/abs/2412.05496>; ``torch/nn/attention/flex_attention.py``.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from functools import cache
from typing import Any

import torch

from te_pkg.attention import capture
from te_pkg.attention.backends.problem import AttentionProblem
from te_pkg.attention.masks import block_mask_along
from te_pkg.attention.zeroing import zero_padding, zero_padding_

__all__ = ["backward", "forward", "why_absent", "why_not"]

_SMALLEST = 16


def why_absent() -> str | None:
    """None, or why there is no such kernel here."""
    if not torch.cuda.is_available():
        return (
            f"torch {torch.__version__} finds no CUDA device, and compiled for the CPU FlexAttention has no "
            "log-sum-exp and no backward pass"
        )
    if not hasattr(_flex(), "AuxRequest"):
        return f"FlexAttention of torch {torch.__version__} has no AuxRequest"
    return None


def why_not(problem: AttentionProblem, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> str | None:
    """See :class:`te_pkg.attention.backends.Backend`."""
    if problem.dropout_p > 0:
        return f"FlexAttention has no dropout, got dropout_p {problem.dropout_p!r}"
    if q.dtype == torch.float64:
        return "FlexAttention compiled takes no float64"
    if min(q.shape[-1], v.shape[-1]) < _SMALLEST:
        return (
            f"FlexAttention compiled takes heads of at least {_SMALLEST} columns, got {min(q.shape[-1], v.shape[-1])}"
        )
    if not q.is_cuda:
        return f"FlexAttention compiled for {q.device.type} has no log-sum-exp and no backward pass"
    if q.shape[0] == 0 or k.shape[0] == 0:
        return "a block mask has no empty form, and a side has no rows"
    if capture.is_capturing():
        return "it might have to be compiled first, and a CUDA graph is being captured"
    return why_absent()


def forward(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, problem: AttentionProblem
) -> tuple[torch.Tensor, torch.Tensor]:
    """See :class:`te_pkg.attention.backends.Backend`."""
    out, lse = _attend(_without_padding(q, k, v, problem), problem)
    rows = zero_padding_(out[0].transpose(0, 1).contiguous(), problem.layout)
    return rows, lse[0].masked_fill(~problem.layout.token_mask(), -torch.inf)


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
    layout = problem.layout
    d_out = zero_padding(d_out, layout).transpose(0, 1)
    with torch.enable_grad():
        clean = _without_padding(q, k, v, problem)
        q, k, v = (x.detach().requires_grad_() for x in clean)
        inputs = (q, k, v)
        block_out, block_lse = _attend(inputs, problem)
        with torch.no_grad():
            # The weights of the whole are those of the block times `exp(lse of the block - lse)`.
            seen = (lse > -torch.inf) & (block_lse[0] > -torch.inf) & layout.token_mask()
            share = (block_lse[0] - lse).exp().where(seen, 0.0)
            beside = block_out[0].float() - out.transpose(0, 1).float()
            of_lse = share * (d_out.float() * beside).sum(-1)
            if d_lse is not None:
                of_lse = of_lse + share * d_lse
            incoming = (share.unsqueeze(-1) * d_out).to(q.dtype).where(seen.unsqueeze(-1), 0.0)
            of_lse = of_lse.where(seen, 0.0)
        found = torch.autograd.grad((block_out, block_lse), inputs, (incoming[None], of_lse[None]))
    d_q, d_k, d_v = (x[0].transpose(0, 1).contiguous() for x in found)
    keys = problem.layout_kv
    return zero_padding_(d_q, layout), zero_padding_(d_k, keys), zero_padding_(d_v, keys)


def _attend(
    inputs: tuple[torch.Tensor, torch.Tensor, torch.Tensor], problem: AttentionProblem
) -> tuple[torch.Tensor, torch.Tensor]:
    """Three times ``[1, h, t, d]`` -> ``[1, h, t_q, d_v]`` and ``[1, h, t_q]``."""
    q, k, v = inputs
    mask = block_mask_along(problem.layout, problem.layout_kv, problem.diagonals(), problem.left, problem.right)
    out, extra = _kernel()(
        q,
        k,
        v,
        score_mod=None if problem.softcap is None else _soft_cap(problem.softcap),
        block_mask=mask,
        scale=problem.scale,
        enable_gqa=q.shape[1] != k.shape[1],
        return_aux=_flex().AuxRequest(lse=True),
    )
    return out, extra.lse


def _without_padding(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, problem: AttentionProblem
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """As ``[1, h, t, d]``; 0 times a NaN of padding would be NaN."""
    sides = (q, problem.layout), (k, problem.layout_kv), (v, problem.layout_kv)
    q, k, v = (zero_padding(x, layout).transpose(0, 1).unsqueeze(0) for x, layout in sides)
    return q, k, v


@cache
def _soft_cap(softcap: float) -> Callable[..., torch.Tensor]:
    # One function for one cap, or each call would be compiled anew.
    def capped(score: torch.Tensor, *_: torch.Tensor) -> torch.Tensor:
        return softcap * torch.tanh(score / softcap)

    return capped


@cache
def _kernel() -> Callable[..., Any]:
    return torch.compile(_flex().flex_attention)


def _flex() -> Any:
    return importlib.import_module("torch.nn.attention.flex_attention")  # 0.5 s that nobody else shall wait for
