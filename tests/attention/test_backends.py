"""Every backend against the dense one: forwards, backwards, of its own results and of those of a whole."""

from __future__ import annotations

import dataclasses
import logging
import math
import pickle

import pytest
import torch
from hypothesis import HealthCheck, assume, given, settings
from torch.nn.attention.flex_attention import flex_attention

from te_pkg.attention import PackedLayout, available_backends, packed_attention
from te_pkg.attention.backends import (
    BACKENDS,
    AttentionProblem,
    BackendUnavailableError,
    choose,
    dense,
    flash_attn,
    flash_layout,
    flex,
    load,
    pieces,
    sdpa,
    varlen,
    why_absent,
    why_not,
)
from te_pkg.attention.capture import mark_capturing
from te_pkg.attention.kernels.host import HostRows
from tests.attention import flash_kernels
from tests.attention.attention_problems import assert_close, cases, poisoned, with_softcap
from tests.attention.layouts import without_host_facts

over_all = settings(max_examples=50, suppress_health_check=[HealthCheck.function_scoped_fixture])


def compare(backend, case, tolerance=1e-9):
    """Both passes; the backward also as a block of a whole whose output and log-sum-exp are others."""
    problem, q, k, v = case.problem, case.q, case.k, case.v
    layout, keys = problem.layout, problem.layout_kv
    out, lse = backend.forward(q, k, v, problem)
    expected, logs = dense.forward(q, k, v, problem)
    assert_close(out, expected, layout, tolerance)
    torch.testing.assert_close(lse.double(), logs.double(), rtol=tolerance, atol=tolerance)
    assert (lse.dtype, out.dtype, out.is_contiguous()) == (logs.dtype, q.dtype, True)
    whole = expected + 0.5, logs + 0.25
    for of_out, of_lse in ((expected, logs), whole):
        for d_lse in (None, case.d_lse):
            arguments = case.d_out, q, k, v, of_out, of_lse, problem, d_lse
            for found, truth, of in zip(
                backend.backward(*arguments), dense.backward(*arguments), (layout, keys, keys), strict=True
            ):
                assert_close(found, truth, of, tolerance)
                assert found.dtype == truth.dtype


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


both = pytest.mark.parametrize(
    ("backend", "play"),
    [(varlen, flash_kernels.of_torch), (flash_attn, flash_kernels.of_flash_attn)],
    ids=["varlen", "flash_attn"],
)


class TestFlash:
    """The kernels are played, what is between them and the caller is real."""

    @pytest.mark.parametrize(
        ("backend", "play"), [(varlen, flash_kernels.of_torch), (flash_attn, flash_kernels.of_flash_attn)]
    )
    @over_all
    @given(case=cases())
    def test_they_agree_with_dense(self, monkeypatch, backend, play, case):
        if backend is varlen:
            case = with_softcap(case, None)
        with pytest.MonkeyPatch.context() as patch:
            play(patch)
            assume(case.problem.scale > 0 and backend.why_not(case.problem, case.q, case.k, case.v) is None)
            compare(backend, case)

    @pytest.mark.parametrize(
        ("backend", "play"), [(varlen, flash_kernels.of_torch), (flash_attn, flash_kernels.of_flash_attn)]
    )
    def test_without_host_facts_rows_are_moved_and_nothing_is_read(self, monkeypatch, backend, play):
        play(monkeypatch)
        layout = without_host_facts(PackedLayout.from_lengths([3, 0, 5], pad_to_multiple=4, total_tokens=14))
        problem = AttentionProblem.of(layout, scale=0.5, causal=True)
        q, k, v = poisoned(layout, 2, 3), poisoned(layout, 1, 3, seed=1), poisoned(layout, 1, 3, seed=2)
        with mark_capturing():
            assert flash_layout.FlashLayout.of(layout).moved
            assert backend.why_not(problem, q, k, v) is None
        out, lse = backend.forward(q, k, v, problem)
        expected, logs = dense.forward(q, k, v, problem)
        assert_close(out, expected, layout)
        torch.testing.assert_close(lse, logs)

    def test_without_gaps_no_row_is_moved(self):
        tight = PackedLayout.from_lengths([3, 5], total_tokens=12)
        assert not flash_layout.FlashLayout.of(tight).moved
        last = PackedLayout.from_cu_seqlens(torch.tensor([0, 3, 8]), torch.tensor([0, 3, 12]))
        assert not flash_layout.FlashLayout.of(last).moved
        assert flash_layout.FlashLayout.of(PackedLayout.from_lengths([3, 5], pad_to_multiple=4)).moved

    @pytest.mark.parametrize(
        ("lengths", "lengths_kv", "band", "window"),
        [
            ([3], [5], {}, (-1, -1)),
            ([3], [3], {"causal": True}, (-1, 0)),
            ([3], [5], {"causal": True, "align": "bottom_right"}, (-1, 0)),
            ([3], [5], {"causal": True}, None),
            ([3, 4], [5, 6], {"window": (4, 2)}, (6, 0)),
            ([3, 4], [5, 9], {"window": (4, 2)}, None),
            ([3, 4], [3, 4], {"causal": True, "shift": (3, 4)}, (-1, -1)),
            ([3, 4], [3, 4], {"causal": True, "shift": (1, 1)}, (-1, 1)),
            ([3, 4], [3, 4], {"causal": True, "shift": (-1, -1)}, None),
            ([0, 4], [7, 4], {"causal": True}, (-1, 0)),
        ],
    )
    def test_a_band_becomes_a_window_where_one_says_it(self, lengths, lengths_kv, band, window):
        layout, keys = PackedLayout.from_lengths(lengths), PackedLayout.from_lengths(lengths_kv)
        problem = AttentionProblem.of(layout, keys, scale=1.0, **band)
        q, k = torch.zeros(layout.total_tokens, 1, 8), torch.zeros(keys.total_tokens, 1, 8)
        assert flash_layout.window_of(problem, q, k) == window
        assert (flash_layout.why_no_window(problem, q, k) is None) == (window is not None)

    def test_heads_that_leave_no_column_for_the_gradient_of_the_log_sum_exp(self, monkeypatch):
        flash_kernels.of_torch(monkeypatch)
        layout = PackedLayout.from_lengths([3])
        problem = AttentionProblem.of(layout, scale=0.1)
        q = poisoned(layout, 1, 256)
        out, lse = varlen.forward(q, q, q, problem)
        found = varlen.backward(q, q, q, q, out, lse, problem, lse)
        for a, b in zip(found, dense.backward(q, q, q, q, out, lse, problem, lse), strict=True):
            torch.testing.assert_close(a, b)

    def test_an_old_flash_attn_is_refused_with_what_it_lacks(self, monkeypatch):
        flash_kernels.of_flash_attn(monkeypatch)
        assert flash_attn.why_absent() is None
        import flash_attn.flash_attn_interface as interface

        monkeypatch.setattr(interface, "_flash_attn_varlen_backward", lambda window_size, softcap, deterministic: None)
        assert "takes no rng_state, window_size_left, window_size_right" in flash_attn.why_absent()
        monkeypatch.delattr(interface, "_flash_attn_varlen_backward")
        assert "expected flash-attn 2.7 or newer" in flash_attn.why_absent()

    def test_the_parameters_that_are_named_are_those_of_the_real_varlen_attn(self, monkeypatch):
        monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
        assert varlen.why_absent() is None
        schema = str(torch.ops.torch_attn._varlen_attn_backward.default._schema)
        names = [argument.name for argument in torch.ops.torch_attn._varlen_attn_backward.default._schema.arguments]
        assert names == [
            *("grad_out", "query", "key", "value", "out", "lse", "cu_seq_q", "cu_seq_k", "max_q", "max_k"),
            *("is_causal", "rng_state", "scale", "window_size"),
        ], schema


class TestFlex:
    @pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
    @over_all
    @given(case=cases(max_length=5))
    def test_it_agrees_with_dense(self, monkeypatch, case):
        """Uncompiled, which is the same mathematics, and allowed on the CPU."""
        monkeypatch.setattr(flex, "_kernel", lambda: flex_attention)
        monkeypatch.setattr("torch.nn.attention.flex_attention._validate_device", lambda *_: None)
        assume(case.q.shape[0] and case.k.shape[0])
        compare(flex, case, 1e-5)

    def test_one_soft_cap_is_one_function(self):
        assert flex._soft_cap(3.0) is flex._soft_cap(3.0)
        torch.testing.assert_close(flex._soft_cap(2.0)(torch.tensor(4.0)), 2 * torch.tensor(2.0).tanh())


class TestEfficient:
    def test_the_kernel_for_cuda_takes_these_arguments(self):
        """On the meta device: shapes and signatures, no numbers."""
        from te_pkg.attention.backends import efficient

        q, k = torch.empty(1, 4, 5, 12, device="meta"), torch.empty(1, 2, 7, 12, device="meta")
        for least, most in ((None, None), (None, 0), (-1, 2)):
            piece = pieces.Piece(0, 5, 0, 7, least, most)
            out, lse = efficient.forward(q, k, k, piece, 0.5)
            assert (out.shape, lse.shape) == ((1, 4, 5, 12), (1, 4, 5))
            found = efficient.backward(out, q, k, k, out, lse, piece, 0.5)
            assert [x.shape for x in found] == [q.shape, k.shape, k.shape]

    def test_what_is_around_the_kernel_is_right(self, monkeypatch):
        """With the kernel played: sdpa takes it for CUDA."""
        from te_pkg.attention.backends import efficient

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


class TestChoice:
    q = torch.zeros(3, 1, 16)
    problem = AttentionProblem.of(PackedLayout.from_lengths([3]), scale=1.0)

    def test_the_first_that_can_serve_is_taken_and_the_log_says_why(self, caplog):
        with caplog.at_level(logging.DEBUG, "te_pkg.attention"):
            assert choose(self.problem, self.q, self.q, self.q) is sdpa
        (line,) = caplog.messages
        assert line.startswith("backend sdpa: the first that can serve this; not flash_attn: the kernels are for CUDA")
        capped = dataclasses.replace(self.problem, softcap=1.0)
        assert choose(capped, self.q, self.q, self.q) is dense

    def test_one_that_is_asked_for_is_taken_or_refused_with_the_reason(self, caplog):
        with caplog.at_level(logging.DEBUG, "te_pkg.attention"):
            assert choose(self.problem, self.q, self.q, self.q, "dense") is dense
        assert caplog.messages == ["backend dense: asked for"]
        with pytest.raises(
            BackendUnavailableError, match="backend 'varlen' cannot serve this: the kernels are for CUDA"
        ) as e:
            choose(self.problem, self.q, self.q, self.q, "varlen")
        copy = pickle.loads(pickle.dumps(e.value))
        assert (copy.backend, copy.reason, str(copy)) == (e.value.backend, e.value.reason, str(e.value))
        with pytest.raises(RuntimeError, match="there is no such backend, expected one of 'flash_attn', 'varlen'"):
            choose(self.problem, self.q, self.q, self.q, "cudnn")

    def test_every_backend_says_what_it_lacks_on_this_machine(self):
        for name in BACKENDS:
            assert why_absent(name) is None or isinstance(why_absent(name), str)
            reason = why_not(name, self.problem, self.q, self.q, self.q)
            assert reason is None or reason == load(name).why_not(self.problem, self.q, self.q, self.q)
        assert why_absent("dense") is why_absent("sdpa") is None
        assert "no such backend" in why_absent("cudnn")

    def test_dropout_and_soft_cap_are_refused_by_those_that_have_none(self):
        dropped, capped = (dataclasses.replace(self.problem, **by) for by in ({"dropout_p": 0.5}, {"softcap": 2.0}))
        q = self.q
        refused = {
            name
            for name in BACKENDS
            if why_not(name, dropped, q, q, q) and "dropout" in why_not(name, dropped, q, q, q)
        }
        assert refused == {"flash_attn", "varlen", "sdpa", "flex"}
        refused = {name for name in BACKENDS if "soft" in (why_not(name, capped, q, q, q) or "")}
        assert refused == {"varlen", "sdpa"}

    def test_available_backends_tells_the_same(self):
        layout = self.problem.layout
        assert available_backends() == {name: why_absent(name) for name in BACKENDS}
        found = available_backends(self.q, self.q, self.q, layout, softcap=2.0)
        capped = dataclasses.replace(self.problem, softcap=2.0)
        assert found == {name: why_not(name, capped, self.q, self.q, self.q) for name in BACKENDS}
        with pytest.raises(TypeError, match=r"^v, layout must be given too"):
            available_backends(self.q, self.q)

    @pytest.mark.parametrize("backend", [name for name in BACKENDS if name not in ("sdpa", "dense")])
    @pytest.mark.skipif(torch.cuda.is_available(), reason="has a GPU")
    def test_packed_attention_refuses_what_is_not_there(self, backend):
        with pytest.raises(BackendUnavailableError) as raised:
            packed_attention(self.q, self.q, self.q, self.problem.layout, backend=backend)
        assert raised.value.backend == backend
