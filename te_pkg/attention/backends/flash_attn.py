"""The package flash-attn, where it is installed: all sequences in one launch, with a soft cap.

The forward pass goes through the public ``flash_attn_varlen_func``, the backward pass through the function behind its
gradient, because there the output and the log-sum-exp of a whole may be given with a block of the keys. No host sync;
safe under CUDA graph capture.

Source: Dao-AILab/flash-attention, ``flash_attn/flash_attn_interface.py`` of versions 2.7 and 2.8.
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

_MODULE = "flash_attn.flash_attn_interface"

# What its functions must know by name; before 2.7 the backward pass took a window as a pair.
_NEEDED = {
    "flash_attn_varlen_func": ("softmax_scale", "causal", "window_size", "softcap", "return_attn_probs"),
    "_flash_attn_varlen_backward": ("window_size_left", "window_size_right", "softcap", "deterministic", "rng_state"),
}


@cache  # to look for what is not installed takes a tenth of a millisecond each time
def why_absent() -> str | None:
    """None, or why there is no such kernel here."""
    try:
        module = importlib.import_module(_MODULE)
    except ImportError as error:
        return f"flash-attn cannot be imported: {error}; hint: pip install flash-attn"
    if not torch.cuda.is_available():
        return f"torch {torch.__version__} finds no CUDA device"
    for name, needed in _NEEDED.items():
        function = getattr(module, name, None)
        # An operator of torch has its function inside.
        function = getattr(function, "_init_fn", function)
        missing = needed if function is None else set(needed) - set(inspect.signature(function).parameters)
        if missing:
            return f"{name} of flash-attn takes no {', '.join(sorted(missing))}, expected flash-attn 2.7 or newer"
    return None


def why_not(problem: AttentionProblem, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> str | None:
    """See :class:`te_pkg.attention.backends.Backend`."""
    if problem.dropout_p > 0:
        return f"its dropout takes no generator and no mask, got dropout_p {problem.dropout_p!r}"
    return why_not_tensors(problem, q, v) or why_absent() or why_no_window(problem, q, k)


def forward(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, problem: AttentionProblem
) -> tuple[torch.Tensor, torch.Tensor]:
    """See :class:`te_pkg.attention.backends.Backend`."""
    module = importlib.import_module(_MODULE)
    rows, keys = FlashLayout.of(problem.layout), FlashLayout.of(problem.layout_kv)
    size_v = v.shape[-1]
    width, window = max(q.shape[-1], size_v), window_of(problem, q, k) or (-1, -1)
    out, lse, _ = module.flash_attn_varlen_func(
        wide(rows.into(q), width, WIDTH),
        wide(keys.into(k), width, WIDTH),
        wide(keys.into(v), width, WIDTH),
        rows.tight.cu_seqlens,
        keys.tight.cu_seqlens,
        rows.tight.max_seqlen,
        keys.tight.max_seqlen,
        softmax_scale=problem.scale,
        causal=window == (-1, 0),
        window_size=window,
        softcap=problem.softcap or 0.0,
        return_attn_probs=True,
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
    module = importlib.import_module(_MODULE)
    rows, keys = FlashLayout.of(problem.layout), FlashLayout.of(problem.layout_kv)
    size, size_v = q.shape[-1], v.shape[-1]
    if d_lse is not None and max(size, size_v) == LARGEST:  # which leaves no column for it
        return dense.backward(d_out, q, k, v, out, lse, problem, d_lse)
    window = window_of(problem, q, k) or (-1, -1)
    given = widened(
        rows.into(d_out), rows.into(q), keys.into(k), keys.into(v), rows.into(out), rows.d_lse_into(d_lse), WIDTH
    )
    d_q, d_k, d_v = (torch.empty_like(x, memory_format=torch.contiguous_format) for x in given[1:4])
    module._flash_attn_varlen_backward(
        *given,
        rows.lse_into(lse),
        d_q,
        d_k,
        d_v,
        rows.tight.cu_seqlens,
        keys.tight.cu_seqlens,
        rows.tight.max_seqlen,
        keys.tight.max_seqlen,
        dropout_p=0.0,
        softmax_scale=problem.scale,
        causal=window == (-1, 0),
        window_size_left=window[0],
        window_size_right=window[1],
        softcap=problem.softcap or 0.0,
        alibi_slopes=None,
        deterministic=torch.are_deterministic_algorithms_enabled(),
    )
    return rows.back(narrowed(d_q, size)), keys.back(narrowed(d_k, size)), keys.back(narrowed(d_v, size_v))
