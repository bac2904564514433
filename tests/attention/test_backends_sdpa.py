"""sdpa, sequence by sequence, and the kernel that it takes for CUDA."""

from __future__ import annotations

import doctest
import math

import pytest
import torch
from hypothesis import HealthCheck, assume, given, settings

from te_pkg.attention import PackedLayout
from te_pkg.attention.backends import (
    AttentionProblem,
    dense,
    efficient,
    pieces,
    sdpa,
)
from te_pkg.attention.capture import mark_capturing
from te_pkg.attention.kernels.host import HostRows
from tests.attention.attention_problems import assert_close, cases, compare, poisoned
from tests.attention.layouts import without_host_facts

over_all = settings(max_examples=50, suppress_health_check=[HealthCheck.function_scoped_fixture])


class TestSdpa:
    @pytest.mark.parametrize("queries", [2, 256])
    @over_all
    @given(case=cases(capped=False, max_length=9))
    def test_it_agrees_with_dense(self, monkeypatch, queries, case):
        monkeypatch.setattr(pieces, "_QUERIES_WITH_A_MASK", queries)
        reason = sdpa.why_not(case.problem, case.q, case.k, case.v)
        assert reason == (None if case.problem.scale > 0 else "the kernels take a scale greater than 0, got -0.5")
        assume(reason is None)
        compare(sdpa, case)

    @pytest.mark.parametrize(
        "band",
        [
            {"causal": True},
            {"causal": True, "window": (100, 0)},
            {"causal": True, "align": "bottom_right"},
            {"window": (3, 400)},
            {},
        ],
        ids=str,
    )
    def test_long_sequences_whose_masks_are_cut(self, band):
        layout = PackedLayout.from_lengths([700, 0, 513, 1], pad_to_multiple=8)
        keys = PackedLayout.from_lengths([900, 5, 300, 1])
        problem = AttentionProblem.of(layout, keys, scale=0.5, **band)
        q, k, v = poisoned(layout, 2, 4), poisoned(keys, 1, 4, seed=1), poisoned(keys, 1, 4, seed=2)
        out, lse = sdpa.forward(q, k, v, problem)
        expected, logs = dense.forward(q, k, v, problem)
        assert_close(out, expected, layout)
        torch.testing.assert_close(lse, logs)
        d_out = poisoned(layout, 2, 4, seed=3)
        arguments = d_out, q, k, v, out, lse, problem
        for found, truth, of in zip(
            sdpa.backward(*arguments), dense.backward(*arguments), (layout, keys, keys), strict=True
        ):
            assert_close(found, truth, of)

    def test_a_mask_is_made_only_where_the_band_is_no_triangle(self):
        layout = PackedLayout.from_lengths([5])
        rows = HostRows((5,), (0, 5), 5)
        (causal,) = next(iter(pieces.pieces(AttentionProblem.of(layout, scale=1.0, causal=True), rows, rows)))
        assert (causal.is_causal, causal.is_masked) == (True, False)
        (everything,) = next(iter(pieces.pieces(AttentionProblem.of(layout, scale=1.0), rows, rows)))
        assert (everything.is_causal, everything.is_masked) == (False, False)
        (window,) = next(iter(pieces.pieces(AttentionProblem.of(layout, scale=1.0, window=(1, 0)), rows, rows)))
        assert window.is_masked
        assert window.mask(torch.zeros(1)).eq(0).int().tolist() == [
            [1, 0, 0, 0, 0],
            [1, 1, 0, 0, 0],
            [0, 1, 1, 0, 0],
            [0, 0, 1, 1, 0],
            [0, 0, 0, 1, 1],
        ]

    def test_strided_memory_is_read_as_it_lies(self):
        layout = PackedLayout.from_lengths([4, 3], pad_to_multiple=4)
        together = poisoned(layout, 3, 2, 4)
        q, k, v = together.unbind(1)
        problem = AttentionProblem.of(layout, scale=0.5, causal=True)
        out, lse = sdpa.forward(q, k, v, problem)
        expected, _ = dense.forward(q, k, v, problem)
        assert_close(out, expected, layout)
        d_out = torch.ones(1, 1, 1, dtype=torch.float64).expand(8, 2, 4)
        columns = [x.transpose(1, 2).contiguous().transpose(1, 2) for x in (q, k, v)]
        for a, b in zip(
            sdpa.backward(d_out, *columns, out, lse, problem),
            dense.backward(d_out, q, k, v, out, lse, problem),
            strict=True,
        ):
            torch.testing.assert_close(a, b)

    @pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
    @pytest.mark.parametrize("window", [None, (300, 0)])
    def test_its_error_is_at_most_twice_that_of_the_kernels(self, dtype, window):
        layout = PackedLayout.from_lengths([600, 37], pad_to_multiple=8)
        q, k, v, d_out = (poisoned(layout, 2, 32, dtype=dtype, seed=seed) for seed in range(4))
        problem = AttentionProblem.of(layout, scale=32**-0.5, causal=True, window=window)
        exact_out, exact_lse = dense.forward(q.double(), k.double(), v.double(), problem)
        exact = dense.backward(*(x.double() for x in (d_out, q, k, v)), exact_out, exact_lse, problem)
        out, lse = sdpa.forward(q, k, v, problem)
        found = sdpa.backward(d_out, q, k, v, out, lse, problem)
        mask = layout.attention_mask(causal=True, window=window)[:600, :600]
        theirs = [x[:600].transpose(0, 1)[None].requires_grad_() for x in (q, k, v)]
        result = torch.nn.functional.scaled_dot_product_attention(
            *theirs, attn_mask=torch.zeros(600, 600, dtype=dtype).masked_fill(~mask, -math.inf)
        )
        gradients = torch.autograd.grad(result, theirs, d_out[:600].transpose(0, 1)[None])
        for ours, peer, truth in zip((out, *found), (result, *gradients), (exact_out, *exact), strict=True):
            error = (ours[:600].double() - truth[:600]).abs().max()
            allowed = (peer[0].transpose(0, 1).double() - truth[:600]).abs().max()
            assert error <= 2 * allowed

    def test_it_needs_the_lengths_on_the_host(self):
        layout = PackedLayout.from_lengths([3])
        q = torch.zeros(3, 1, 8)
        problem = AttentionProblem.of(layout, scale=1.0)
        with mark_capturing():
            assert "lengths of layout are not known" in sdpa.why_not(problem, q, q, q)
        # Those of the CPU's own memory it reads.
        unknown = AttentionProblem.of(without_host_facts(layout), scale=1.0)
        assert sdpa.why_not(unknown, q, q, q) is None
        assert "no fused kernels" not in (sdpa.why_not(problem, q, q, q) or "")
        assert "got tensors on meta" in sdpa.why_not(
            AttentionProblem.of(without_host_facts(layout).to("meta"), scale=1.0), *[q.to("meta")] * 3
        )


class TestEfficient:
    def test_the_kernel_for_cuda_takes_these_arguments(self):
        """On the meta device: shapes and signatures, no numbers."""
        q, k = torch.empty(1, 4, 5, 12, device="meta"), torch.empty(1, 2, 7, 12, device="meta")
        for least, most in ((None, None), (None, 0), (-1, 2)):
            piece = pieces.Piece(0, 5, 0, 7, least, most)
            out, lse = efficient.forward(q, k, k, piece, 0.5)
            assert (out.shape, lse.shape) == ((1, 4, 5, 12), (1, 4, 5))
            found = efficient.backward(out, q, k, k, out, lse, piece, 0.5)
            assert [x.shape for x in found] == [q.shape, k.shape, k.shape]

    def test_what_is_around_the_kernel_is_right(self, monkeypatch):
        """With the kernel played: sdpa takes it for CUDA."""
        calls = []

        def kernel(q, k, v, bias, with_lse, dropout_p, is_causal, *, scale):
            assert q.shape[-1] % 8 == 0
            assert all(x.transpose(1, 2).is_contiguous() for x in (q, k, v))
            assert (with_lse, dropout_p, k.shape[1]) == (True, 0.0, q.shape[1])
            assert bias is None or (bias.stride(-2) % 16 == 0 and bias.shape == (1, 4, q.shape[2], k.shape[2]))
            calls.append(is_causal)
            mask = None if bias is None else bias[0, 0]
            out, lse = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
                q, k, v, 0.0, is_causal, attn_mask=mask, scale=scale
            )
            return out, torch.nn.functional.pad(lse, (0, -lse.shape[2] % 32), value=math.inf), None, None

        def kernel_backward(d_out, q, k, v, bias, out, lse, seed, offset, dropout_p, wanted, is_causal, *, scale):
            assert (lse.shape[2] % 32, lse.is_contiguous(), dropout_p) == (0, True, 0.0)
            assert wanted == [True, True, True, False]
            found = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward(
                *(d_out, q, k, v, out, lse[..., : q.shape[2]], 0.0, is_causal),
                attn_mask=None if bias is None else bias[0, 0],
                scale=scale,
            )
            return *found, None

        monkeypatch.setattr(torch.ops.aten, "_scaled_dot_product_efficient_attention", kernel)
        monkeypatch.setattr(torch.ops.aten, "_scaled_dot_product_efficient_attention_backward", kernel_backward)
        monkeypatch.setattr(sdpa, "_forward", efficient.forward)
        monkeypatch.setattr(sdpa, "_backward", efficient.backward)
        layout, keys = PackedLayout.from_lengths([5, 9], pad_to_multiple=4), PackedLayout.from_lengths([5, 12])
        for band in ({"causal": True}, {"window": (2, 1)}, {}):
            problem = AttentionProblem.of(layout, keys, scale=0.5, **band)
            q, k, v = poisoned(layout, 4, 3), poisoned(keys, 2, 3, seed=1), poisoned(keys, 2, 3, seed=2)
            out, lse = sdpa.forward(q, k, v, problem)
            expected, logs = dense.forward(q, k, v, problem)
            assert_close(out, expected, layout)
            torch.testing.assert_close(lse, logs)
            arguments = poisoned(layout, 4, 3, seed=3), q, k, v, out, lse, problem
            for a, b in zip(sdpa.backward(*arguments), dense.backward(*arguments), strict=True):
                torch.testing.assert_close(a, b)
        assert {*calls} == {True, False}


@pytest.mark.parametrize("module", [pieces, sdpa], ids=lambda module: module.__name__)
def test_docstrings_are_true(module):
    assert doctest.testmod(module, extraglobs={"torch": torch, "PackedLayout": PackedLayout}).failed == 0
