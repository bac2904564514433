"""The dense backend, which is the truth for the others, against loops over rows."""

from __future__ import annotations

import dataclasses
import doctest
import math

import torch
from hypothesis import given, settings

from te_pkg.attention import PackedLayout
from te_pkg.attention.backends import AttentionProblem, dense
from tests.attention.attention_problems import assert_close, cases, naive, poisoned, with_tensors


@settings(max_examples=60)
@given(cases())
def test_each_row_is_the_softmax_of_what_it_sees(case):
    out, lse = dense.forward(case.q, case.k, case.v, case.problem)
    expected, logs = naive(case)
    assert_close(out, expected, case.problem.layout)
    torch.testing.assert_close(lse, logs)
    gradients = dense.backward(case.d_out, case.q, case.k, case.v, out, lse, case.problem, case.d_lse)
    assert all(x.is_contiguous() for x in (out, lse, *gradients))
    assert (lse == -math.inf).equal(logs == -math.inf)


@settings(max_examples=30)
@given(cases())
def test_gradients_are_those_of_the_loops(case):
    problem = case.problem
    layout, keys = problem.layout, problem.layout_kv
    inputs = [x.clone().requires_grad_() for x in (case.q, case.k, case.v)]
    out, lse = naive(with_tensors(case, *inputs))
    real = layout.token_mask()
    seen = lse > -math.inf
    loss = (out * case.d_out)[real].sum() + (lse * case.d_lse)[seen].sum()
    expected = (
        torch.autograd.grad(loss, inputs, materialize_grads=True)
        if loss.requires_grad
        else [torch.zeros_like(x) for x in inputs]
    )
    found = dense.backward(case.d_out, case.q, case.k, case.v, out.detach(), lse.detach(), problem, case.d_lse)
    for x, truth, of in zip(found, expected, (layout, keys, keys), strict=True):
        assert_close(x, truth, of)


@settings(max_examples=30)
@given(cases(shifted=False))
def test_blocks_of_keys_given_the_whole_add_up_to_its_gradients(case):
    """What a ring does: each rank has some keys of each sequence, and the output and log-sum-exp of all."""
    problem = case.problem
    keys = problem.layout_kv
    out, lse = dense.forward(case.q, case.k, case.v, problem)
    whole = dense.backward(case.d_out, case.q, case.k, case.v, out, lse, problem)
    lengths = keys.lengths or ()
    cut = [length // 2 for length in lengths]
    if problem.align == "bottom_right":
        shift = tuple(n_kv - n for n, n_kv in zip(problem.layout.lengths, lengths, strict=True))
    else:
        shift = (0,) * len(lengths)
    d_q = torch.zeros_like(whole[0])
    for begins, counts in (([0] * len(cut), cut), (cut, [n - c for n, c in zip(lengths, cut, strict=True)])):
        block = PackedLayout.from_lengths(counts)
        rows = [
            start + begin + i
            for start, begin, n in zip(keys.slot_offsets, begins, counts, strict=False)
            for i in range(n)
        ]
        moved = tuple(by - begin for by, begin in zip(shift, begins, strict=True))
        part = dataclasses.replace(problem, layout_kv=block, align="top_left", shift=moved)
        found = dense.backward(case.d_out, case.q, case.k[rows], case.v[rows], out, lse, part)
        d_q += found[0]
        torch.testing.assert_close(found[1], whole[1][rows])
        torch.testing.assert_close(found[2], whole[2][rows])
    torch.testing.assert_close(d_q, whole[0])


def test_whole_buffers_and_a_batch_come_to_the_same(monkeypatch):
    layout = PackedLayout.from_lengths([9, 1, 0, 2], pad_to_multiple=4)
    problem = AttentionProblem.of(layout, scale=0.5, causal=True, window=(3, -1))
    q, k, v = poisoned(layout, 4, 3), poisoned(layout, 2, 3, seed=1), poisoned(layout, 2, 3, seed=2)
    results = []
    for batch in (True, False):
        monkeypatch.setattr(dense, "_as_batch", lambda *_, batch=batch: batch)
        out, lse = dense.forward(q, k, v, problem)
        results.append((out, lse, *dense.backward(poisoned(layout, 4, 3, seed=3), q, k, v, out, lse, problem)))
    for a, b in zip(*results, strict=True):
        torch.testing.assert_close(a, b)


def test_a_shift_on_the_device_is_the_same_as_numbers():
    layout = PackedLayout.from_lengths([4, 3])
    q = poisoned(layout, 1, 3)
    for shift in ((1, -2), torch.tensor([1, -2])):
        problem = AttentionProblem.of(layout, scale=1.0, causal=True, shift=shift)
        assert problem.diagonals().tolist() == [1, -2]
        assert problem.host_diagonals((4, 3), (4, 3)) == [1, -2]
        out = dense.forward(q, q, q, problem)[0]
        torch.testing.assert_close(out[4:6], torch.zeros(2, 1, 3, dtype=torch.float64))
        torch.testing.assert_close(out[6], q[4])


def test_half_precision_is_computed_in_float32():
    layout = PackedLayout.from_lengths([40])
    for dtype in (torch.bfloat16, torch.float16):
        q = poisoned(layout, 2, 16, dtype=dtype)
        out, lse = dense.forward(q, q, q, AttentionProblem.of(layout, scale=0.25))
        exact, logs = dense.forward(q.double(), q.double(), q.double(), AttentionProblem.of(layout, scale=0.25))
        assert (out.dtype, lse.dtype) == (dtype, torch.float32)
        torch.testing.assert_close(lse.double(), logs, rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(out, exact.to(dtype), rtol=0.01, atol=1e-3)


def test_dropped_weights_are_those_of_the_mask_in_both_passes():
    layout = PackedLayout.from_lengths([5, 3], pad_to_multiple=4)
    problem = AttentionProblem.of(layout, scale=0.5, dropout_p=0.4)
    q, k, v = (poisoned(layout, 2, 3, seed=seed).nan_to_num().requires_grad_() for seed in range(3))
    keep = dense.draw_dropout(q, k, problem, torch.Generator().manual_seed(5))
    problem = dataclasses.replace(problem, dropout_keep=keep)
    out, lse = dense.forward(q, k, v, problem)
    without = dense.forward(q, k, v, AttentionProblem.of(layout, scale=0.5))
    assert lse.equal(without[1])
    assert not out.allclose(without[0])
    d_out = poisoned(layout, 2, 3, seed=9)
    expected = torch.autograd.grad(out, (q, k, v), d_out)
    for x, truth in zip(dense.backward(d_out, q, k, v, out, lse, problem), expected, strict=True):
        torch.testing.assert_close(x, truth)
    assert abs(keep.float().mean() - 0.6) < 0.15


def test_docstrings_are_true():
    assert doctest.testmod(dense).failed == 0


def test_a_small_share_is_dropped_as_often_in_every_default_dtype():
    problem = AttentionProblem.of(PackedLayout.from_lengths([1000]), scale=1.0, dropout_p=0.001)
    q = torch.zeros(1000, 1, 1)
    default = torch.get_default_dtype()
    drawn = []
    try:
        for dtype in (torch.float32, torch.bfloat16):
            torch.set_default_dtype(dtype)
            drawn.append(dense.draw_dropout(q, q, problem, torch.Generator().manual_seed(3)))
    finally:
        torch.set_default_dtype(default)
    assert drawn[0].equal(drawn[1])
    assert 0.0008 < 1 - drawn[1].double().mean() < 0.0012


def test_the_gradient_of_a_row_that_sees_nothing_may_hold_anything():
    layout, keys = PackedLayout.from_lengths([3]), PackedLayout.from_lengths([1])
    q, k = poisoned(layout, 1, 4), poisoned(keys, 1, 4)
    problem = AttentionProblem.of(layout, keys, scale=1.0, causal=True, align="bottom_right")
    d_out = torch.full((3, 1, 4), math.nan).double()
    d_out[2] = 1
    found = dense.backward(d_out, q, k, k, *dense.forward(q, k, k, problem), problem)
    assert all(x.isfinite().all() for x in found)
