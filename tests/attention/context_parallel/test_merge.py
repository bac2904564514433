"""Merging: what one pass gives, whatever stands where nothing was seen."""

from __future__ import annotations

import doctest
import math

import hypothesis
import pytest
import torch
from hypothesis import strategies as st

from te_pkg.attention.buffer_checks import GradientError
from te_pkg.attention.capture import mark_capturing
from te_pkg.attention.context_parallel import merge, merge_attention, merge_attention_
from te_pkg.attention.errors import ArgumentTypeError, LayoutError
from tests.attention.no_sync import forbid_sync

INF, NAN = math.inf, math.nan


def attended(scores: torch.Tensor, values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Attention of ``[h, t, s]`` scores to ``[h, s, d]`` values: ``[t, h, d]`` and ``[h, t]``."""
    return (scores.softmax(-1) @ values).movedim(0, 1), scores.logsumexp(-1)


def merged_in_place(out_a, lse_a, out_b, lse_b):
    out, lse = out_a.clone(), lse_a.clone()
    merge_attention_(out, lse, out_b, lse_b)
    return out, lse


either_form = pytest.mark.parametrize("merged", [merge_attention, merged_in_place])


@either_form
class TestValues:
    @hypothesis.given(seed=st.integers(0, 99), cut=st.integers(1, 8), spread=st.sampled_from([1.0, 50.0, 1000.0]))
    def test_two_parts_are_what_one_pass_gives(self, merged, seed, cut, spread):
        generator = torch.Generator().manual_seed(seed)
        scores = spread * torch.randn(3, 5, 9, dtype=torch.float64, generator=generator)
        values = torch.randn(3, 9, 2, dtype=torch.float64, generator=generator)
        out, lse = merged(*attended(scores[..., :cut], values[:, :cut]), *attended(scores[..., cut:], values[:, cut:]))
        expected, expected_lse = attended(scores, values)
        torch.testing.assert_close(out, expected, rtol=1e-13, atol=1e-13)
        torch.testing.assert_close(lse, expected_lse, rtol=1e-13, atol=1e-13)

    @pytest.mark.parametrize("garbage", [NAN, INF, -INF, 7.0])
    @pytest.mark.parametrize("empty", [-INF, INF])
    def test_a_side_without_keys_never_counts_whatever_it_holds(self, merged, garbage, empty):
        out, lse = torch.randn(4, 2, 3), torch.randn(2, 4)
        nothing, never = torch.full((4, 2, 3), garbage), torch.full((2, 4), empty)
        for found, found_lse in (merged(out, lse, nothing, never), merged(nothing, never, out, lse)):
            assert torch.equal(found, out)
            assert torch.equal(found_lse, lse)
        found, found_lse = merged(nothing, never, nothing, never)
        assert torch.equal(found, torch.zeros(4, 2, 3))
        assert torch.equal(found_lse, torch.full((2, 4), -INF))

    def test_such_rows_beside_others(self, merged):
        out_a, out_b = torch.full((3, 1, 2), 2.0), torch.full((3, 1, 2), 4.0)
        lse_a, lse_b = torch.tensor([[0.0, -INF, 0.0]]), torch.tensor([[0.0, 1.0, INF]])
        out_a[1], out_b[2] = NAN, NAN
        out, lse = merged(out_a, lse_a, out_b, lse_b)
        assert out[:, 0, 0].tolist() == [3.0, 4.0, 2.0]
        assert lse[0].tolist() == pytest.approx([math.log(2), 1.0, 0.0])

    def test_nan_that_was_computed_is_not_hidden(self, merged):
        out, lse = merged(torch.ones(1, 1, 2), torch.zeros(1, 1), torch.full((1, 1, 2), NAN), torch.full((1, 1), NAN))
        assert out.isnan().all()
        assert lse.isnan().all()

    def test_infinities_of_either_sign_that_would_cancel_are_seen(self, merged):
        lse_a, lse_b = torch.tensor([[-INF, 0.0, INF, 0.0]]), torch.tensor([[0.0, -INF, 0.0, INF]])
        out, lse = merged(torch.full((4, 1, 1), 3.0), lse_a, torch.full((4, 1, 1), 5.0), lse_b)
        assert out.flatten().tolist() == [5.0, 3.0, 5.0, 3.0]
        assert lse.tolist() == [[0.0] * 4]

    def test_numbers_whose_difference_overflows_are_merged_as_numbers(self, merged):
        lse_a, lse_b = torch.tensor([[-3e38, 3e38]]), torch.tensor([[3e38, -3e38]])
        out, lse = merged(torch.full((2, 1, 1), 3.0), lse_a, torch.full((2, 1, 1), 5.0), lse_b)
        assert out.flatten().tolist() == [5.0, 3.0]
        assert lse.tolist() == torch.maximum(lse_a, lse_b).tolist()

    def test_no_overflow_however_far_apart(self, merged):
        out, lse = merged(
            torch.ones(1, 1, 1), torch.full((1, 1), -3e38), torch.zeros(1, 1, 1), torch.full((1, 1), 3e38)
        )
        assert out.item() == 0
        assert lse.item() == pytest.approx(3e38)

    @pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
    def test_at_most_twice_the_rounding_error_of_one_pass(self, merged, dtype):
        generator = torch.Generator().manual_seed(0)
        scores = 3 * torch.randn(4, 64, 256, dtype=torch.float64, generator=generator)
        values = torch.randn(4, 256, 32, dtype=torch.float64, generator=generator).to(dtype)
        exact, exact_lse = attended(scores, values.double())
        narrow = scores.float()

        def rounded(part: slice) -> tuple[torch.Tensor, torch.Tensor]:
            out, lse = attended(narrow[..., part], values[:, part].float())
            return out.to(dtype), lse

        once, once_lse = rounded(slice(None))
        out, lse = rounded(slice(0, 64))
        for begin in (64, 128, 192):
            out, lse = merged(
                out.float(), lse, rounded(slice(begin, begin + 64))[0].float(), rounded(slice(begin, begin + 64))[1]
            )
        assert out.dtype == torch.float32
        error = (out.to(dtype).double() - exact).abs()
        error_once = (once.double() - exact).abs()
        assert error.max() <= 2 * error_once.max()
        assert error.mean() <= 2 * error_once.mean()
        assert (lse.double() - exact_lse).abs().max() <= 2 * max((once_lse.double() - exact_lse).abs().max(), 2e-7)

    @pytest.mark.parametrize("shape", [(0, 2, 3), (4, 0, 3), (4, 2, 0)])
    def test_nothing_to_merge(self, merged, shape):
        out, lse = torch.zeros(shape), torch.zeros(shape[1], shape[0])
        found, found_lse = merged(out, lse, out, lse)
        assert found.shape == shape
        assert found_lse.shape == lse.shape

    def test_strided_memory(self, merged):
        out_a, out_b = torch.randn(2, 4, 3).transpose(0, 1), torch.randn(4, 2, 6)[..., ::2]
        lse_a, lse_b = torch.randn(4, 2).T, torch.randn(2, 4)
        found = merged(out_a, lse_a, out_b, lse_b)
        plain = merge_attention(*(x.contiguous() for x in (out_a, lse_a, out_b, lse_b)))
        torch.testing.assert_close(found, plain)

    @pytest.mark.parametrize("holds_empty", [False, True])
    def test_it_never_syncs_on_a_device_and_gives_the_same_there(self, merged, holds_empty):
        given = [torch.randn(4, 2, 3), torch.randn(2, 4), torch.randn(4, 2, 3), torch.randn(2, 4)]
        if holds_empty:
            given[1][0, 0], given[0][0, 0] = -INF, NAN
        expected = merged(*given)
        with mark_capturing(), forbid_sync(uploads=False):
            found = merged(*given)
        torch.testing.assert_close(found, expected, rtol=0, atol=0)


class TestForms:
    def test_dtypes_are_those_of_the_first(self):
        lse = torch.zeros(2, 4)
        for dtype in (torch.bfloat16, torch.float32, torch.float64):
            out, merged = merge_attention(torch.ones(4, 2, 3, dtype=dtype), lse, torch.zeros(4, 2, 3, dtype=dtype), lse)
            assert out.dtype == dtype
            assert merged.dtype == torch.float32
            total = torch.ones(4, 2, 3)
            merge_attention_(total, lse.clone(), torch.zeros(4, 2, 3, dtype=dtype), lse)
            assert total.dtype == torch.float32
            assert torch.equal(total, torch.full((4, 2, 3), 0.5))

    def test_in_place_into_a_view_leaves_the_rest_alone(self):
        whole, lse = torch.zeros(6, 1, 2), torch.zeros(1, 6)
        merge_attention_(whole[2:5], lse[:, 2:5], torch.full((3, 1, 2), 2.0), torch.zeros(1, 3))
        assert whole[:, 0, 0].tolist() == [0, 0, 1, 1, 1, 0]
        assert lse[0].tolist() == pytest.approx([0, 0, *[math.log(2)] * 3, 0])

    def test_clean_spares_a_look_and_nothing_else(self):
        lse = torch.tensor([[0.0, -INF]])
        for clean in (False, True):
            out, total = torch.tensor([1.0, 0.0]).view(2, 1, 1), torch.tensor([[-INF, -INF]])
            merge_attention_(out, total, torch.tensor([3.0, 0.0]).view(2, 1, 1), lse, clean=clean)
            assert out.flatten().tolist() == [3.0, 0.0]
            assert torch.equal(total, lse)


class TestGradients:
    def test_they_are_those_of_the_formula(self):
        given = [
            torch.randn(shape, dtype=torch.float64, requires_grad=True)
            for shape in ((4, 2, 3), (2, 4), (4, 2, 3), (2, 4))
        ]
        assert torch.autograd.gradcheck(merge_attention, given)

    def test_a_side_without_keys_gets_none_whatever_comes_in(self):
        given = [torch.randn(shape, dtype=torch.float64) for shape in ((3, 1, 2), (1, 3), (3, 1, 2), (1, 3))]
        given[1][0, 0] = given[3][0, 1] = given[1][0, 2] = given[3][0, 2] = -INF
        given[0][0] = given[2][1] = given[0][2] = given[2][2] = NAN
        given = [x.requires_grad_() for x in given]
        out, lse = merge_attention(*given)
        d_out = torch.ones_like(out)
        d_out[2] = NAN
        d_a, d_lse_a, d_b, d_lse_b = torch.autograd.grad([out, lse], given, [d_out, torch.ones_like(lse)])
        assert d_a[:, 0, 0].tolist() == [0, 1, 0]
        assert d_b[:, 0, 0].tolist() == [1, 0, 0]
        assert d_lse_a[0].tolist() == [0, 1, 0]
        assert d_lse_b[0].tolist() == [1, 0, 0]

    def test_not_twice(self):
        given = [torch.randn(shape, requires_grad=True) for shape in ((4, 2, 3), (2, 4), (4, 2, 3), (2, 4))]
        (gradient,) = torch.autograd.grad(merge_attention(*given)[0].square().sum(), given[0], create_graph=True)
        with pytest.raises(RuntimeError, match="once_differentiable"):
            gradient.sum().backward()

    def test_not_in_place(self):
        out, lse = torch.zeros(4, 2, 3), torch.zeros(2, 4)
        with pytest.raises(GradientError, match="hint: use merge_attention"):
            merge_attention_(out, lse, torch.zeros(4, 2, 3, requires_grad=True), lse)


class TestRefusals:
    def test_every_fault_in_one_run(self):
        out, lse = torch.zeros(4, 2, 3), torch.zeros(2, 4)
        with pytest.raises(LayoutError) as caught:
            merge_attention(out, lse.T, out.double(), lse.to("meta"))
        assert caught.value.faults == (
            "lse_a has shape [4, 2], expected [2, 4] as out_a",
            "lse_b is on meta, expected cpu as out_a",
            "out_b is torch.float64, expected torch.float32 as out_a",
        )

    def test_what_cannot_be_meant(self):
        out, lse = torch.zeros(4, 2, 3), torch.zeros(2, 4)
        with pytest.raises(ArgumentTypeError, match="lse_b must be a tensor, got 0"):
            merge_attention(out, lse, out, 0)
        with pytest.raises(LayoutError, match=r"out_a is 2-D with shape \[4, 2\], expected 3-D \[t, h, d\]"):
            merge_attention(out[..., 0], lse, out, lse)
        with pytest.raises(LayoutError, match=r"block_out is torch.int64, expected floating point"):
            merge_attention_(out, lse, out.long(), lse)


def test_examples():
    assert doctest.testmod(merge).failed == 0
