"""The backends for CUDA, as the device runs them, against ``dense`` in float64; and under CUDA graphs.

Imported without hypothesis, because ``scripts/gpu_check.py`` runs it where pytest is and none of its plugins.
"""

from __future__ import annotations

import math

import pytest
import torch

from te_pkg.attention import PackedLayout, available_backends, packed_attention
from te_pkg.attention.backends import AttentionProblem, dense, load
from te_pkg.attention.capture import mark_capturing
from tests.attention.gpu_tools import capture, no_waiting, padding_mask, random_layout

DEVICE = "cuda:0"

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU"),
]

BANDS = [
    {},
    {"causal": True},
    {"causal": True, "align": "bottom_right"},
    {"causal": True, "window": (5, 0)},
    {"window": (3, 7), "align": "bottom_right"},
    {"softcap": 3.0, "causal": True},
]
BACKENDS = ["flash_attn", "varlen", "sdpa", "flex"]


def poisoned(layout: PackedLayout, heads: int, size: int, dtype: torch.dtype, seed: int) -> torch.Tensor:
    x = torch.randn(layout.total_tokens, heads, size, generator=torch.Generator().manual_seed(seed))
    x[padding_mask(layout)] = math.nan
    return x.to(DEVICE, dtype)


def serving(backend: str, *arguments, **options) -> None:
    reason = available_backends(*arguments, **options)[backend]
    if reason is not None:
        pytest.skip(f"{backend}: {reason}")


def assert_near(found: torch.Tensor, exact: torch.Tensor, peer: torch.Tensor) -> None:
    """No worse than three times what ``dense`` loses by rounding to the same dtype, and a little of the largest."""
    error, allowed = (found.double() - exact).abs().max(), (peer.double() - exact).abs().max()
    assert error <= 3 * allowed + 0.01 * exact.abs().max()
    assert not found.isnan().any()


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("band", BANDS, ids=str)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("cross", [False, True])
def test_both_passes_are_those_of_dense(backend, band, dtype, cross):
    layout = random_layout(1, [33, 0, 1, 70, 17], device=DEVICE)
    keys = random_layout(2, [40, 9, 0, 55, 17], device=DEVICE) if cross else layout
    q, k, v, d_out = (
        poisoned(of, heads, 64, dtype, seed)
        for seed, (of, heads) in enumerate(((layout, 4), (keys, 2), (keys, 2), (layout, 4)))
    )
    serving(backend, q, k, v, layout, keys, **band)
    d_lse = torch.randn(4, layout.total_tokens, device=DEVICE)
    results = []
    for name, of in ((backend, dtype), ("dense", dtype), ("dense", torch.float64)):
        leaves = [x.to(of).requires_grad_() for x in (q, k, v)]
        out, lse = packed_attention(*leaves, layout, keys, return_lse=True, backend=name, **band)
        seen = lse > -math.inf
        gradients = torch.autograd.grad((out, lse), leaves, (d_out.to(of), d_lse.to(lse.dtype)))
        results.append((out, lse.masked_fill(~seen, 0.0), seen, *gradients))
    ours, peer, exact = results
    assert ours[2].equal(exact[2])
    for i in (0, 1, 3, 4, 5):
        assert_near(ours[i], exact[i], peer[i])
    for x, of in ((ours[0], layout), (ours[3], layout), (ours[4], keys), (ours[5], keys)):
        assert not x[padding_mask(of).to(DEVICE)].any()


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_block_of_the_keys_is_given_the_whole(backend):
    layout = random_layout(3, [33, 64, 70], device=DEVICE)
    problem = AttentionProblem.of(layout, scale=0.125, causal=True)
    q, k, v, d_out = (poisoned(layout, 2, 64, torch.bfloat16, seed) for seed in range(4))
    serving(backend, q, k, v, layout, causal=True)
    out, lse = dense.forward(q, k, v, problem)
    whole = (out + 0.5).to(out.dtype), lse + 0.25
    found = load(backend).backward(d_out, q, k, v, *whole, problem)
    exact = dense.backward(*(x.double() for x in (d_out, q, k, v)), whole[0].double(), whole[1].double(), problem)
    peer = dense.backward(d_out, q, k, v, *whole, problem)
    for triple in zip(found, exact, peer, strict=True):
        assert_near(*triple)


@pytest.mark.parametrize("backend", ["flash_attn", "varlen"])
def test_a_graph_is_right_for_other_lengths_when_it_is_replayed(backend):
    total, longest = 200, 70
    cu, padded = (torch.zeros(4, dtype=torch.int32, device=DEVICE) for _ in range(2))
    with mark_capturing():
        layout = PackedLayout.from_cu_seqlens(cu, padded, total, longest)
    q, k, v, d_out = (torch.zeros(total, 2, 64, dtype=torch.bfloat16, device=DEVICE) for _ in range(4))
    leaves = [x.requires_grad_() for x in (q, k, v)]

    def work():
        with mark_capturing():
            out = packed_attention(*leaves, layout, causal=True, backend=backend)
            return out, *torch.autograd.grad(out, leaves, d_out)

    def refill(seed, lengths):
        now = random_layout(seed, lengths, capacity=0)
        now = PackedLayout.from_cu_seqlens(now.cu_seqlens, now.cu_seqlens_padded, total, longest)
        with torch.no_grad():
            cu.copy_(now.cu_seqlens)
            padded.copy_(now.cu_seqlens_padded)
            for i, x in enumerate((q, k, v, d_out)):
                x.copy_(poisoned(now, 2, 64, torch.bfloat16, seed + i))
        return now.to(DEVICE)

    refill(1, [50, 70, 20])
    with mark_capturing():
        serving(backend, q, k, v, layout, causal=True)
    graph, results = capture(work)
    for seed, lengths in ((2, [70, 1, 33]), (3, [0, 64, 70])):
        now = refill(seed, lengths)
        graph.replay()
        torch.cuda.synchronize()
        exact = []
        for of in (torch.float64, torch.bfloat16):
            again = [x.detach().to(of).requires_grad_() for x in (q, k, v)]
            out = packed_attention(*again, now, causal=True, backend="dense")
            exact.append((out, *torch.autograd.grad(out, again, d_out.to(of))))
        for triple in zip(results, *exact, strict=True):
            assert_near(*triple)


@pytest.mark.parametrize("backend", ["flash_attn", "varlen"])
def test_the_host_never_waits(backend):
    layout = random_layout(5, [33, 64, 70], device=DEVICE)
    with mark_capturing():
        layout = PackedLayout.from_cu_seqlens(layout.cu_seqlens, layout.cu_seqlens_padded, layout.total_tokens, 70)
    q, k, v = (torch.randn(layout.total_tokens, 2, 64, dtype=torch.bfloat16, device=DEVICE) for _ in range(3))
    leaves = [x.requires_grad_() for x in (q, k, v)]
    serving(backend, q, k, v, layout, causal=True)
    packed_attention(*leaves, layout, causal=True, backend=backend).sum().backward()
    with no_waiting():
        out = packed_attention(*leaves, layout, causal=True, backend=backend)
        torch.autograd.grad(out, leaves, torch.ones_like(out))
