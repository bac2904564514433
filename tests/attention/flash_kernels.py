"""Flash kernels that run where no GPU is: those of PyTorch and of flash-attn, played by ``dense``.

They take what the real ones take and are as careless: sequences lie one behind the other, the diagonal ends at the
bottom right, a row that sees nothing has a log-sum-exp of +inf, and rows beyond the last sequence are garbage.
"""

from __future__ import annotations

import dataclasses
import importlib
import math
import sys
from types import ModuleType

import pytest
import torch

from te_pkg.attention import PackedLayout
from te_pkg.attention.backends import AttentionProblem, dense, flash_layout


def problem_of(cu_q, cu_k, max_q, max_k, rows, keys, scale, left, right, softcap=0.0) -> AttentionProblem:
    assert cu_q.dtype == cu_k.dtype == torch.int32
    layout = PackedLayout.from_cu_seqlens(cu_q, None, rows, max_q)
    layout_kv = PackedLayout.from_cu_seqlens(cu_k, None, keys, max_k)
    window = None if (left, right) == (-1, -1) else (left, right)
    problem = AttentionProblem.of(layout, layout_kv, scale=scale, align="bottom_right", window=window)
    return dataclasses.replace(problem, softcap=softcap or None)


def check_tensors(*tensors: torch.Tensor) -> None:
    for x in tensors:
        assert x.ndim == 3
        assert x.stride(-1) == 1
        assert x.shape[-1] % 8 == 0
        assert x.shape[-1] == tensors[0].shape[-1]
        assert x.dtype == tensors[0].dtype


def forward(q, k, v, problem):
    check_tensors(q, k, v)
    out, lse = dense.forward(q, k, v, problem)
    beyond = ~problem.layout.token_mask()
    out[beyond] = math.nan
    lse = lse.masked_fill(lse == -math.inf, math.inf)
    lse[:, beyond] = math.nan
    return out, lse


def backward(d_out, q, k, v, out, lse, problem):
    check_tensors(d_out, q, k, v, out)
    assert lse.is_contiguous()
    assert lse.dtype == torch.promote_types(q.dtype, torch.float32)
    assert not (lse == -math.inf).any()
    found = dense.backward(d_out, q, k, v, out, lse.masked_fill(lse == math.inf, -math.inf), problem)
    for x, layout in zip(found, (problem.layout, problem.layout_kv, problem.layout_kv), strict=True):
        x[~layout.token_mask()] = math.nan
    return found


def of_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Below the real ``varlen_attn``, and below the operator of its gradient."""
    importlib.import_module("torch.nn.attention.varlen")  # which asks for the real ones

    def kernel(q, k, v, cu_q, cu_k, max_q, max_k, dropout_p, is_causal, return_debug_mask, *, scale, **rest):
        assert (dropout_p, return_debug_mask) == (0.0, False)
        left, right = rest.pop("window_size_left"), rest.pop("window_size_right")
        assert is_causal == ((left, right) == (-1, 0))
        assert all(value is None for value in rest.values())
        problem = problem_of(cu_q, cu_k, max_q, max_k, q.shape[0], k.shape[0], scale, left, right)
        return *forward(q, k, v, problem), None, None, None

    def kernel_backward(
        d_out, q, k, v, out, lse, cu_q, cu_k, max_q, max_k, dropout_p, is_causal, rng_state, unused, *, scale, **window
    ):
        left, right = window["window_size_left"], window["window_size_right"]
        assert is_causal == ((left, right) == (-1, 0))
        problem = problem_of(cu_q, cu_k, max_q, max_k, q.shape[0], k.shape[0], scale, left, right)
        return backward(d_out, q, k, v, out, lse, problem)

    monkeypatch.setattr(torch.ops.aten, "_flash_attention_forward", kernel)
    monkeypatch.setattr(torch.ops.aten, "_flash_attention_backward", kernel_backward)
    _pretend(monkeypatch)


def of_flash_attn(monkeypatch: pytest.MonkeyPatch) -> None:
    """A package flash-attn with the two functions, whose parameters are those of version 2.8."""

    def flash_attn_varlen_func(
        q,
        k,
        v,
        cu_seqlens_q,
        cu_seqlens_k,
        max_seqlen_q,
        max_seqlen_k,
        dropout_p=0.0,
        softmax_scale=None,
        causal=False,
        window_size=(-1, -1),
        softcap=0.0,
        alibi_slopes=None,
        deterministic=False,
        return_attn_probs=False,
        block_table=None,
    ):
        assert return_attn_probs
        left, right = window_size
        problem = problem_of(
            cu_seqlens_q,
            cu_seqlens_k,
            max_seqlen_q,
            max_seqlen_k,
            q.shape[0],
            k.shape[0],
            softmax_scale,
            left,
            0 if causal else right,
            softcap,
        )
        return *forward(q, k, v, problem), None

    def _flash_attn_varlen_backward(
        dout,
        q,
        k,
        v,
        out,
        softmax_lse,
        dq,
        dk,
        dv,
        cu_seqlens_q,
        cu_seqlens_k,
        max_seqlen_q,
        max_seqlen_k,
        dropout_p,
        softmax_scale,
        causal,
        window_size_left,
        window_size_right,
        softcap,
        alibi_slopes,
        deterministic,
        rng_state=None,
        zero_tensors=False,
    ):
        right = 0 if causal else window_size_right
        problem = problem_of(
            cu_seqlens_q,
            cu_seqlens_k,
            max_seqlen_q,
            max_seqlen_k,
            q.shape[0],
            k.shape[0],
            softmax_scale,
            window_size_left,
            right,
            softcap,
        )
        for target, found in zip((dq, dk, dv), backward(dout, q, k, v, out, softmax_lse, problem), strict=True):
            assert target.is_contiguous()
            target.copy_(found)

    module = ModuleType("flash_attn.flash_attn_interface")
    module.flash_attn_varlen_func = flash_attn_varlen_func
    module._flash_attn_varlen_backward = _flash_attn_varlen_backward
    monkeypatch.setitem(sys.modules, "flash_attn", ModuleType("flash_attn"))
    monkeypatch.setitem(sys.modules, "flash_attn.flash_attn_interface", module)
    _pretend(monkeypatch)


def _pretend(monkeypatch: pytest.MonkeyPatch) -> None:
    """The tensors are for CUDA, and of a dtype that the kernels take."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(flash_layout, "why_not_tensors", lambda problem, q, v: None)
    for name in ("varlen", "flash_attn"):
        module = __import__(f"te_pkg.attention.backends.{name}", fromlist=["why_not_tensors"])
        monkeypatch.setattr(module, "why_not_tensors", lambda problem, q, v: None)
        monkeypatch.setattr(module, "why_absent", getattr(module.why_absent, "__wrapped__", module.why_absent))
