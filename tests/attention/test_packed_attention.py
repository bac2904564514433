"""packed_attention: what it computes, what it refuses, and all its derivatives."""

from __future__ import annotations

import doctest
import json
import math
import re
import sys
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings

from te_pkg.attention import BackendUnavailableError, PackedLayout, packed_attention
from te_pkg.attention.backends import dense
from te_pkg.attention.errors import ArgumentError, ArgumentTypeError, LayoutError
from tests.attention.attention_problems import assert_close, cases, naive, poisoned
from tests.attention.layouts import without_host_facts

CASES = json.loads((Path(__file__).parents[1] / "data/attention/attention.json").read_text())


def options(problem):
    """Of a problem without a shift."""
    left, right = (-1 if side is None else side for side in (problem.left, problem.right))
    return {"align": problem.align, "window": (left, right), "scale": problem.scale, "softcap": problem.softcap}


@settings(max_examples=60)
@given(cases(shifted=False))
def test_output_log_sum_exp_and_gradients_are_the_truth(case):
    problem, layout, keys = case.problem, case.problem.layout, case.problem.layout_kv
    q, k, v = (x.clone().requires_grad_() for x in (case.q, case.k, case.v))
    out, lse = packed_attention(q, k, v, layout, keys, return_lse=True, **options(problem))
    expected, logs = naive(case)
    assert_close(out, expected, layout)
    torch.testing.assert_close(lse, logs)
    found = torch.autograd.grad((out, lse), (q, k, v), (case.d_out, case.d_lse))
    truth = dense.backward(case.d_out, case.q, case.k, case.v, expected, logs, problem, case.d_lse)
    for x, y, of in zip(found, truth, (layout, keys, keys), strict=True):
        assert_close(x, y, of)


@pytest.mark.parametrize("backend", ["sdpa", "dense"])
@pytest.mark.parametrize(
    "band",
    [{}, {"causal": True, "align": "bottom_right"}, {"causal": True, "window": (1, 0)}, {"window": (0, 1)}],
    ids=str,
)
def test_derivatives_once_and_twice(backend, band):
    layout = PackedLayout.from_lengths([3, 0, 2], pad_to_multiple=4)
    keys = PackedLayout.from_lengths([2, 1, 3], total_tokens=7)
    tensors = [
        poisoned(of, heads, 2, seed=heads).nan_to_num().requires_grad_()
        for of, heads in ((layout, 2), (keys, 1), (keys, 1))
    ]

    def attend(q, k, v):
        out, lse = packed_attention(q, k, v, layout, keys, return_lse=True, backend=backend, **band)
        return out, lse.masked_fill(lse == -math.inf, 0.0)

    assert torch.autograd.gradcheck(attend, tensors)
    assert torch.autograd.gradgradcheck(attend, tensors)


@pytest.mark.filterwarnings("ignore:.*torch.jit.script.* is deprecated")  # torch's own, when it loads derivatives
def test_derivatives_of_a_soft_cap_and_forwards():
    layout = PackedLayout.from_lengths([3, 2], pad_to_multiple=4)
    x = poisoned(layout, 2, 2).nan_to_num().requires_grad_()
    assert torch.autograd.gradcheck(
        lambda x: packed_attention(x, x, x, layout, causal=True, softcap=0.7), (x,), check_forward_ad=True
    )


def test_transforms_of_functions():
    layout = PackedLayout.from_lengths([3, 2], pad_to_multiple=4)
    x = poisoned(layout, 2, 4).nan_to_num()

    def loss(q):
        return packed_attention(q, x, x, layout, causal=True).square().sum()

    q = x.clone().requires_grad_()
    loss(q).backward()
    torch.testing.assert_close(torch.func.grad(loss)(x), q.grad)
    many = torch.stack([x, 2 * x])
    found = torch.func.vmap(lambda q: packed_attention(q, x, x, layout))(many)
    torch.testing.assert_close(found, torch.stack([packed_attention(q, x, x, layout) for q in many]))
    with pytest.raises(BackendUnavailableError, match="only dense is differentiated forwards"):
        torch.func.vmap(lambda q: packed_attention(q, x, x, layout, backend="sdpa"))(many)


class TestCorpus:
    """The `attention` entries of the cases."""

    @pytest.mark.parametrize("backend", ["sdpa", "dense"])
    def test_every_entry(self, backend):
        entries = {case["name"]: case for case in CASES}
        gaps = entries.pop("gaps (issue 2391)")
        layout = PackedLayout.from_cu_seqlens(
            torch.tensor(gaps["cu_seqlens"]), torch.tensor(gaps["cu_seqlens_padded"]), gaps["total_tokens"]
        )
        q, k, v = (poisoned(layout, 2, 4, seed=seed).requires_grad_() for seed in range(3))
        out = packed_attention(q, k, v, layout, backend=backend)
        d_out = poisoned(layout, 2, 4, seed=3)
        found = (out, *torch.autograd.grad(out, (q, k, v), d_out))
        for start, end in ((0, 2), (3, 6), (7, 8)):
            ours = [x.detach()[start:end].transpose(0, 1)[None].requires_grad_() for x in (q, k, v)]
            alone = torch.nn.functional.scaled_dot_product_attention(*ours)
            gradients = torch.autograd.grad(alone, ours, d_out[start:end].transpose(0, 1)[None])
            for x, y in zip(found, (alone, *gradients), strict=True):
                torch.testing.assert_close(x[start:end], y[0].transpose(0, 1))
        for x in found:
            assert not x[[2, 6, 8]].any()

        few = entries.pop("queries without keys, bottom-right causal (flash-attention 443)")
        layout, keys = (
            PackedLayout.from_cu_seqlens(torch.tensor(few[name])) for name in ("cu_seqlens_q", "cu_seqlens_kv")
        )
        q, k = (poisoned(of, 1, 4, seed=1).requires_grad_() for of in (layout, keys))
        out, lse = packed_attention(
            q, k, k, layout, keys, causal=True, align="bottom_right", return_lse=True, backend=backend
        )
        last = [75, 109, 255]
        torch.testing.assert_close(out[last], k)
        others = torch.ones(256, dtype=torch.bool)
        others[last] = False
        assert not out[others].any()
        assert (lse[0, others] == -math.inf).all()
        assert lse[0, last].isfinite().all()
        d_q, d_k = torch.autograd.grad((out, lse), (q, k), (torch.ones_like(out), lse))
        assert d_q.isfinite().all()
        assert d_k.isfinite().all()
        assert not d_q[others].any()

        empty = entries.pop("zero-length sequences (flash-attention 1537)")
        layout, keys = (PackedLayout.from_lengths(empty[name]) for name in ("lengths_q", "lengths_kv"))
        q, k, v = (poisoned(of, 1, 4, seed=2).requires_grad_() for of in (layout, keys, keys))
        packed_attention(q, k, v, layout, keys, backend=backend).sum().backward()
        assert k.grad.isfinite().all()
        assert v.grad.ne(0).all()
        layout = PackedLayout.from_lengths([0, 0, 0, 1])
        q = poisoned(layout, 1, 4).requires_grad_()
        d_k, d_v = torch.autograd.grad(packed_attention(q, k, v, layout, keys, backend=backend).sum(), (k, v))
        assert not d_k[:3].any()
        assert not d_v[:3].any()
        assert d_v[3:].all()
        assert {name.split()[0] for name in entries} <= {"merge"}  # which context parallelism has


@pytest.mark.parametrize("lengths", [[], [0], [0, 0]])
@pytest.mark.parametrize("backend", [None, "sdpa", "dense"])
def test_nothing_at_all(lengths, backend):
    for rows in (0, 3):
        layout = PackedLayout.from_lengths(lengths, total_tokens=rows)
        q = torch.full((rows, 2, 4), math.nan, requires_grad=True)
        out, lse = packed_attention(q, q, q, layout, return_lse=True, backend=backend)
        assert (out.shape, lse.shape) == ((rows, 2, 4), (2, rows))
        assert not out.any()
        assert (lse == -math.inf).all()
        out.sum().backward()
        assert not q.grad.any()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_dtypes_come_back(dtype):
    layout = PackedLayout.from_lengths([3, 2], pad_to_multiple=4)
    q = poisoned(layout, 2, 8, dtype=dtype).requires_grad_()
    out, lse = packed_attention(q, q, q, layout, return_lse=True)
    out.sum().backward()
    assert out.dtype == q.grad.dtype == dtype
    assert lse.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    assert not out[3].any()


@pytest.mark.parametrize("number", [1e-50, 1e-300])
def test_a_scale_that_float32_rounds_to_zero_is_as_good_as_zero(number):
    layout = PackedLayout.from_lengths([3, 2])
    q = poisoned(layout, 2, 4, dtype=torch.float32)
    for band in ({"causal": True}, {"window": (0, 1)}):
        found = packed_attention(q, q, q, layout, scale=number, **band)
        assert found.equal(packed_attention(q, q, q, layout, scale=0, **band))
    with pytest.raises(BackendUnavailableError, match="a scale greater than 0, got 1e-"):
        packed_attention(q, q, q, layout, scale=number, backend="sdpa")


def test_an_autocast_around_it_changes_nothing():
    layout = PackedLayout.from_lengths([30])
    q = poisoned(layout, 2, 8, dtype=torch.float32)
    for backend in ("sdpa", "dense"):
        with torch.autocast("cpu"):
            inside = packed_attention(q, q, q, layout, backend=backend)
        assert inside.equal(packed_attention(q, q, q, layout, backend=backend))


class TestDropout:
    layout = PackedLayout.from_lengths([6, 3], pad_to_multiple=4)
    q = torch.randn(layout.total_tokens, 2, 4)

    def attend(self, **options):
        return packed_attention(self.q, self.q, self.q, self.layout, dropout_p=0.5, **options)

    def test_a_generator_or_the_seed_of_torch_repeats_it(self):
        torch.manual_seed(3)
        first = self.attend()
        assert not first.equal(self.attend())
        torch.manual_seed(3)
        assert first.equal(self.attend())
        generator = torch.Generator().manual_seed(7)
        first, second = self.attend(generator=generator), self.attend(generator=generator)
        assert not first.equal(second)
        assert first.equal(self.attend(generator=generator.manual_seed(7)))

    def test_on_average_it_is_attention_without(self):
        torch.manual_seed(0)
        mean = torch.stack([self.attend() for _ in range(3000)]).mean(0)
        torch.testing.assert_close(mean, packed_attention(self.q, self.q, self.q, self.layout), atol=0.12, rtol=0)

    def test_both_passes_drop_the_same(self):
        q = self.q.double().requires_grad_()

        def attend(q):
            generator = torch.Generator().manual_seed(1)
            return packed_attention(q, q, q, self.layout, dropout_p=0.5, generator=generator)

        assert torch.autograd.gradcheck(attend, (q,))

    def test_no_other_backend_has_it(self):
        with pytest.raises(BackendUnavailableError, match=r"got dropout_p 0\.5"):
            self.attend(backend="sdpa")


class TestRefusals:
    layout = PackedLayout.from_lengths([3, 2])
    x = torch.zeros(5, 2, 4)

    def test_every_fault_of_types_at_once(self):
        with pytest.raises(ArgumentTypeError) as raised:
            packed_attention(self.x, [1], None, 5, scale="1", dropout_p=None, window=3, generator=4)
        assert str(raised.value).splitlines() == [
            "k must be a tensor, got [1]",
            "v must be a tensor, got None",
            "layout must be a PackedLayout, got 5",
            "layout_kv must be a PackedLayout, got 5",
            "scale must be a number or None, got '1'",
            "dropout_p must be a number, got None",
            "window must be a pair (left, right), got 3",
            "generator must be a torch.Generator or None, got 4",
        ]

    def test_every_fault_of_values_at_once(self):
        keys = PackedLayout.from_lengths([1])
        with pytest.raises(ArgumentError) as raised:
            packed_attention(
                self.x[0],
                self.x.int(),
                torch.zeros(1, 3, 4, dtype=torch.float64),
                self.layout,
                keys,
                align="middle",
                window=(-2, 0),
                scale=math.inf,
                softcap=0.0,
                dropout_p=1.0,
            )
        assert str(raised.value).splitlines() == [
            "scale is inf, expected a finite number of float32",
            "softcap is 0.0, expected a finite number of float32 greater than 0",
            "dropout_p is 1.0, expected at least 0 and less than 1",
            "window is (-2, 0), expected (left, right) with -1 for unbounded, else at least 0",
            "align is 'middle', expected one of 'top_left', 'bottom_right'",
            "q is 2-D with shape [2, 4], expected [t_q, h, d]",
            "q has 2 rows, expected 5 as layout",
            "k has 5 rows, expected 1 as layout_kv",
            "k is torch.int32, expected torch.float32 as q",
            "v is torch.float64, expected torch.float32 as q",
            "layout_kv has 1 sequences, expected 2 as the queries",
        ]

    @pytest.mark.parametrize(
        ("shapes", "fault"),
        [
            (((5, 3, 4), (5, 2, 4), (5, 2, 4)), "q has 3 heads, expected a multiple of 2, those of k"),
            (((5, 2, 4), (5, 2, 4), (5, 1, 4)), "v has 1 heads, expected 2 as k"),
            (((5, 2, 4), (5, 2, 3), (5, 2, 4)), "k has heads of size 3, expected 4 as q"),
            (((5, 0, 4), (5, 0, 4), (5, 0, 4)), "q has shape [5, 0, 4], expected at least 1 head of at least 1 column"),
            (((5, 2, 4), (5, 2, 4), (5, 2, 0)), "v has shape [5, 2, 0], expected at least 1 head of at least 1 column"),
        ],
    )
    def test_heads_that_do_not_fit(self, shapes, fault):
        with pytest.raises(LayoutError) as raised:
            packed_attention(*(torch.zeros(shape) for shape in shapes), self.layout)
        assert fault in raised.value.faults

    @pytest.mark.parametrize(
        "given", [{"scale": 1e300}, {"scale": -(10**400)}, {"softcap": 1e300}, {"softcap": 10**400}, {"softcap": 1e-50}]
    )
    def test_a_number_that_the_dtype_of_the_scores_cannot_hold(self, given):
        ((name, value),) = given.items()
        with pytest.raises(
            ArgumentError, match=rf"{name} is {re.escape(str(value))}, expected a finite number of float32"
        ):
            packed_attention(self.x, self.x, self.x, self.layout, **given)
        if abs(value) <= 1e300:
            x = self.x.double()
            assert packed_attention(x, x, x, self.layout, **given).isfinite().all()

    @pytest.mark.parametrize("causal", ["no", None, 1, torch.tensor([True, False])])
    def test_causal_is_yes_or_no(self, causal):
        with pytest.raises(ArgumentTypeError, match="causal must be a bool, got "):
            packed_attention(self.x, self.x, self.x, self.layout, causal=causal)

    def test_memory_without_strides(self):
        with pytest.raises(LayoutError) as raised:
            packed_attention(self.x.to_sparse(), self.x, self.x.to_sparse(), self.layout)
        assert raised.value.faults == (
            "q is torch.sparse_coo, expected torch.strided",
            "v is torch.sparse_coo, expected torch.strided",
        )

    def test_integers_have_no_softmax(self):
        with pytest.raises(LayoutError, match=r"q is torch\.int64, expected float16, bfloat16"):
            packed_attention(*[self.x.long()] * 3, self.layout)


def test_offsets_that_change_before_the_way_back_are_noticed():
    layout = PackedLayout.from_lengths([3, 2])
    q = torch.randn(5, 1, 4, requires_grad=True)
    out = packed_attention(q, q, q, layout)
    layout.cu_seqlens[1] = 2
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        out.sum().backward()


@settings(max_examples=20)
@given(cases(shifted=False))
def test_what_the_host_knows_changes_nothing(case):
    layout, keys = (without_host_facts(of) for of in (case.problem.layout, case.problem.layout_kv))
    found = packed_attention(case.q, case.k, case.v, layout, keys, **options(case.problem))
    assert_close(found, naive(case)[0], case.problem.layout)


def test_docstrings_are_true():
    assert doctest.testmod(sys.modules["te_pkg.attention.packed_attention"]).failed == 0
