"""varlen and flash_attn: the kernels are played, what is between them and the caller is real."""

from __future__ import annotations

import pytest
import torch
from hypothesis import HealthCheck, assume, given, settings

from te_pkg.attention import PackedLayout
from te_pkg.attention.backends import (
    AttentionProblem,
    dense,
    flash_attn,
    flash_layout,
    varlen,
)
from te_pkg.attention.capture import mark_capturing
from tests.attention import flash_kernels
from tests.attention.attention_problems import assert_close, cases, compare, poisoned, with_softcap
from tests.attention.layouts import without_host_facts

over_all = settings(max_examples=50, suppress_health_check=[HealthCheck.function_scoped_fixture])


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
        assert varlen.why_absent.__wrapped__() is None
        schema = str(torch.ops.torch_attn._varlen_attn_backward.default._schema)
        names = [argument.name for argument in torch.ops.torch_attn._varlen_attn_backward.default._schema.arguments]
        assert names == [
            *("grad_out", "query", "key", "value", "out", "lse", "cu_seq_q", "cu_seq_k", "max_q", "max_k"),
            *("is_causal", "rng_state", "scale", "window_size"),
        ], schema
