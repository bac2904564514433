"""Rows seen as words: whatever their strides and dtype, and only numbers that the dtype can hold."""

from __future__ import annotations

import doctest
import math

import hypothesis
import pytest
import torch
from hypothesis import strategies as st

from te_pkg.attention.errors import ArgumentTypeError
from te_pkg.attention.kernels import words
from te_pkg.attention.kernels.words import check_fill, count_write, in_words
from tests.attention.row_moves import DTYPES, random_rows

UNFILLED = [torch.float4_e2m1fn_x2, torch.uint4, torch.int3, torch.bits8]


class TestWords:
    @hypothesis.given(
        dtype=st.sampled_from(DTYPES),
        shape=st.lists(st.integers(1, 4), min_size=1, max_size=4),
        strides=st.lists(st.integers(1, 3), min_size=4, max_size=4),
        start=st.integers(0, 3),
        widest=st.sampled_from([1, 8, 16]),
    )
    def test_they_are_the_bytes_of_the_rows_in_order(self, dtype, shape, strides, start, widest):
        # Each dimension is cut from a larger one, and so one of a single element may have any stride.
        sizes = [size * step for size, step in zip(shape, strides, strict=False)]
        whole = random_rows(math.prod(sizes) + start, (), dtype)[start:].view(sizes)
        x = whole[tuple(slice(None, None, step) for step in strides[: len(shape)])]
        (seen,) = in_words(x, widest=widest)
        assert seen.itemsize <= max(widest, 1)
        plain = torch.stack([row.clone().reshape(-1).unsqueeze(-1).view(torch.uint8).flatten() for row in x])
        assert torch.equal(torch.stack([row.clone().reshape(-1).view(torch.uint8) for row in seen]), plain)
        seen.zero_()
        assert not x.clone().unsqueeze(-1).view(torch.uint8).any()

    @pytest.mark.parametrize("shape", [(5, 1), (5, 1, 1), (1, 1)])
    def test_an_element_of_each_row_may_have_any_stride(self, shape):
        x = torch.randn(*shape, 2, dtype=torch.complex128)[..., 1]
        (seen,) = in_words(x, widest=8)
        assert torch.equal(seen.clone().view(torch.complex128).view(shape), x)

    def test_a_tensor_of_one_row_may_have_any_stride_too(self):
        x = torch.tensor([[1.0], [2.0]]).T
        assert x.stride() == (1, 1)
        assert in_words(x)[0].clone().view(torch.float32).equal(x)


class TestFill:
    @pytest.mark.parametrize(
        ("dtype", "greatest", "least"),
        [
            (torch.bool, 1, 0),
            (torch.uint8, 255, 0),
            (torch.int8, 127, -128),
            (torch.uint16, 2**16 - 1, 0),
            (torch.int64, 2**63 - 1, -(2**63)),
            (torch.uint64, 2**64 - 1, 0),
            (torch.float16, 65504, -65504),
            (torch.float32, 2**127, -(2**127)),
            (torch.complex64, 2**127, -(2**127)),
            (torch.float8_e4m3fn, 448, -448),
        ],
        ids=str,
    )
    def test_up_to_the_bounds_of_the_dtype(self, dtype, greatest, least):
        for fill in (0, 1, greatest, least):
            assert check_fill(fill, dtype) == fill
            assert torch.full((1,), check_fill(fill, dtype), dtype=dtype).to(torch.complex128).item() == float(fill)
        for fill in (2 * greatest + 2, 10**400, -(10**400), least - 1 if least == 0 else 2 * least - 2):
            with pytest.raises(ArgumentTypeError, match=r"^fill is .*, expected a number that torch\.\w+ can hold$"):
                check_fill(fill, dtype)

    @pytest.mark.parametrize("dtype", UNFILLED, ids=str)
    def test_what_torch_cannot_fill_holds_0_alone(self, dtype):
        for fill in (0, 0.0, False):
            assert check_fill(fill, dtype) == 0
        for fill in (1, True, -1.5, float("nan")):
            with pytest.raises(ArgumentTypeError):
                check_fill(fill, dtype)

    def test_infinities_go_where_the_dtype_has_them(self):
        for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float8_e5m2, torch.complex64):
            assert check_fill(-math.inf, dtype) == -math.inf
        for dtype in (torch.float8_e4m3fn, torch.float8_e4m3fnuz, torch.float8_e5m2fnuz, torch.int32, torch.bool):
            with pytest.raises(ArgumentTypeError):
                check_fill(math.inf, dtype)
        assert math.isnan(check_fill(math.nan, torch.float8_e4m3fn))

    def test_both_parts_of_a_complex_number_count(self):
        assert check_fill(complex(1, -math.inf), torch.complex64) == complex(1, -math.inf)
        for fill in (complex(1e39, 0), complex(0, 1e39)):
            assert check_fill(fill, torch.complex128) == fill
            with pytest.raises(ArgumentTypeError):
                check_fill(fill, torch.complex64)

    def test_numbers_that_integers_hold_may_be_written_with_a_point(self):
        assert check_fill(-128.0, torch.int8) == -128
        for fill in (-129.0, 1e300, 0.5):
            with pytest.raises(ArgumentTypeError):
                check_fill(fill, torch.int8)


def test_a_write_under_inference_mode_is_counted_for_what_is_ordinary():
    ordinary = torch.zeros(2)
    with torch.inference_mode():
        count_write(ordinary)
        count_write(torch.zeros(2))
    assert ordinary._version == 1
    count_write(ordinary)
    assert ordinary._version == 1


def test_the_worked_examples_hold():
    assert doctest.testmod(words).failed == 0
