"""``torch.nn.attention.varlen``: flash-attention as PyTorch ships it, all sequences in one launch.

The forward pass goes through the public ``varlen_attn``, the backward pass through the operator behind its gradient,
because there the output and the log-sum-exp of a whole may be given with a block of the keys. No host sync; safe under
CUDA graph capture.

Source: ``torch/nn/attention/varlen.py`` of PyTorch 2.13.
"""

from __future__ import annotations

import importlib
import inspect
from functools import cache

import torch

from te_pkg.attention.backends import dense
from te_pkg.attention.backends.flash_layout import (
    LARGEST,
    WIDTH,
    FlashLayout,
    why_no_window,
    why_not_tensors,
    window_of,
)
from te_pkg.attention.backends.problem import AttentionProblem
from te_pkg.attention.backends.widths import narrowed, wide, widened

__all__ = ["backward", "forward", "why_absent", "why_not"]

_MODULE = "torch.nn.attention.varlen"

# What `varlen_attn` must know by name: older ones have no window, no log-sum-exp or no grouped heads.
_NEEDED = ("return_aux", "scale", "window_size", "enable_gqa")


@cache  # to look for what is not installed takes a tenth of a millisecond each time
def why_absent() -> str | None:
    """None, or why there is no such kernel here."""
    if not torch.cuda.is_available():
        return f"torch {torch.__version__} finds no CUDA device"
    try:
        module = importlib.import_module(_MODULE)
    except ImportError:
        return f"torch {torch.__version__} has no {_MODULE}"
    missing = set(_NEEDED) - set(inspect.signature(module.varlen_attn).parameters)
    if missing:
        return f"varlen_attn of torch {torch.__version__} has no {', '.join(sorted(missing))}"
    return None


def why_not(problem: AttentionProblem, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> str | None:
    """See :class:`te_pkg.attention.backends.Backend`."""
    if problem.softcap is not None:
        return f"varlen_attn has no soft cap, got softcap {problem.softcap!r}"
    if problem.dropout_p > 0:
        return f"varlen_attn has no dropout, got dropout_p {problem.dropout_p!r}"
    return why_not_tensors(problem, q, v) or why_absent() or why_no_window(problem, q, k)


def forward(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, problem: AttentionProblem
) -> tuple[torch.Tensor, torch.Tensor]:
    """See :class:`te_pkg.attention.backends.Backend`."""
    module = importlib.import_module(_MODULE)
    rows, keys = FlashLayout.of(problem.layout), FlashLayout.of(problem.layout_kv)
    size_v = v.shape[-1]
    width = max(q.shape[-1], size_v)
    q, k, v = (wide(x, width, WIDTH) for x in (rows.into(q), keys.into(k), keys.into(v)))
    out, lse = module.varlen_attn(
        q,
        k,
        v,
        rows.tight.cu_seqlens,
        keys.tight.cu_seqlens,
        rows.tight.max_seqlen,
        keys.tight.max_seqlen,
        return_aux=module.AuxRequest(lse=True),
        scale=problem.scale,
        window_size=window_of(problem, q, k),
        enable_gqa=q.shape[1] != k.shape[1],
    )
    return rows.back(narrowed(out, size_v)), rows.lse_back(lse)


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
    rows, keys = FlashLayout.of(problem.layout), FlashLayout.of(problem.layout_kv)
    size, size_v = q.shape[-1], v.shape[-1]
    if d_lse is not None and max(size, size_v) == LARGEST:  # which leaves no column for it
        return dense.backward(d_out, q, k, v, out, lse, problem, d_lse)
    window = window_of(problem, q, k) or (-1, -1)
    given = widened(
        rows.into(d_out), rows.into(q), keys.into(k), keys.into(v), rows.into(out), rows.d_lse_into(d_lse), WIDTH
    )
    d_q, d_k, d_v = torch.ops.torch_attn._varlen_attn_backward(
        *given,
        rows.lse_into(lse),
        rows.tight.cu_seqlens,
        keys.tight.cu_seqlens,
        rows.tight.max_seqlen,
        keys.tight.max_seqlen,
        window == (-1, 0),
        torch.zeros(2, dtype=torch.uint64, device=q.device),  # of a dropout that there is not
        problem.scale,
        list(window),
    )
    return rows.back(narrowed(d_q, size)), keys.back(narrowed(d_k, size)), keys.back(narrowed(d_v, size_v))
