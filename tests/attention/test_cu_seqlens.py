"""Offsets of full sequences: right numbers, right errors, in every mode that torch can be in."""

from __future__ import annotations

import doctest
import enum
import inspect
import json
from collections.abc import Iterator
from pathlib import Path

import hypothesis
import numpy as np
import pytest
import torch
from hypothesis import strategies as st

from te_pkg.attention import (
    cache_info,
    clear_caches,
    cu_seqlens,
    get_full_cu_seqlens,
)
from te_pkg.attention.capture import mark_capturing
from te_pkg.attention.errors import (
    ArgumentTypeError,
    AttentionError,
    OffsetOverflowError,
    SizeError,
)
from tests.attention.operations import Operations

DATA = Path(__file__).parents[1] / "data/attention"
CASES = json.loads((DATA / "full_cu_seqlens.json").read_text())
INT32_MAX = 2**31 - 1


def kept() -> int:
    return cache_info()["full_cu_seqlens"].entries


@pytest.fixture(autouse=True)
def _no_tensor_is_left_by_another_test() -> Iterator[None]:
    clear_caches()
    yield
    torch._dynamo.reset()


class TestValues:
    @pytest.mark.parametrize("case", [case for case in CASES if "expected" in case], ids=str)
    def test_case(self, case):
        offsets = get_full_cu_seqlens(case["batch_size"], case["max_seqlen"])
        assert offsets.tolist() == case["expected"]
        assert offsets.dtype == torch.int32

    @hypothesis.given(batch_size=st.integers(0, 60), max_seqlen=st.integers(0, INT32_MAX // 60))
    def test_entry_i_is_i_times_the_length(self, batch_size, max_seqlen):
        offsets = get_full_cu_seqlens(batch_size, max_seqlen)
        assert offsets.tolist() == [i * max_seqlen for i in range(batch_size + 1)]

    def test_the_last_offset_that_fits(self):
        assert get_full_cu_seqlens(1, INT32_MAX).tolist() == [0, INT32_MAX]

    def test_a_length_beyond_int32_that_no_sequence_has(self):
        assert get_full_cu_seqlens(0, 2**40).tolist() == [0]

    def test_arguments_are_named_and_ordered_as_in_transformer_engine(self):
        assert list(inspect.signature(get_full_cu_seqlens).parameters) == ["batch_size", "max_seqlen", "device"]
        assert get_full_cu_seqlens(batch_size=2, max_seqlen=8, device=torch.device("cpu")).tolist() == [0, 8, 16]

    def test_another_device(self):
        assert get_full_cu_seqlens(2, 8, "meta").device.type == "meta"
        assert get_full_cu_seqlens(2, 8, "cpu").tolist() == [0, 8, 16]

    def test_the_worked_examples_hold(self):
        assert doctest.testmod(cu_seqlens).failed == 0


class TestErrors:
    @pytest.mark.parametrize("case", [case for case in CASES if "error" in case], ids=str)
    def test_case(self, case):
        kind, _, message = case["error"].partition(": ")
        builtin = {"ValueError": ValueError, "OverflowError": OverflowError}[kind]
        with pytest.raises(builtin) as caught:
            get_full_cu_seqlens(case["batch_size"], case["max_seqlen"])
        assert str(caught.value).startswith(message)
        assert isinstance(caught.value, AttentionError)

    def test_negative_names_the_argument_and_the_number(self):
        with pytest.raises(SizeError, match=r"^batch_size must not be negative, got -1$"):
            get_full_cu_seqlens(-1, 8)

    def test_every_negative_argument_is_named(self):
        with pytest.raises(SizeError, match=r"batch_size .* -1\nmax_seqlen .* -8"):
            get_full_cu_seqlens(-1, -8)

    @pytest.mark.parametrize(("batch_size", "max_seqlen"), [(1, 2**31), (2**31, 1), (46341, 46341), (10**20, 10**20)])
    def test_overflow_names_the_numbers(self, batch_size, max_seqlen):
        with pytest.raises(OffsetOverflowError) as caught:
            get_full_cu_seqlens(batch_size, max_seqlen)
        assert str(caught.value).startswith(f"{batch_size * max_seqlen} is beyond int32")
        assert f"batch_size {batch_size}" in str(caught.value)
        assert f"max_seqlen {max_seqlen}" in str(caught.value)
        assert caught.value.offset == batch_size * max_seqlen

    @pytest.mark.parametrize(
        "value", [True, 2.0, "2", None, [2], np.bool_(True), torch.tensor(True), torch.tensor(2.0)]
    )
    @pytest.mark.parametrize("name", ["batch_size", "max_seqlen"])
    def test_no_integer_is_a_type_error_that_names_the_argument(self, name, value):
        get_full_cu_seqlens(2, 2)  # a kept tensor must not answer for an equal key: True == 1 and 2.0 == 2
        get_full_cu_seqlens(1, 2)
        get_full_cu_seqlens(2, 1)
        sizes = {"batch_size": 2, "max_seqlen": 2, name: value}
        with pytest.raises(ArgumentTypeError, match=f"^{name} must be an integer, got "):
            get_full_cu_seqlens(**sizes)

    def test_every_argument_of_a_wrong_type_is_named(self):
        with pytest.raises(TypeError, match=r"batch_size .*\nmax_seqlen "):
            get_full_cu_seqlens("2", 8.0)

    def test_an_error_keeps_nothing(self):
        with pytest.raises(ValueError, match="negative"):
            get_full_cu_seqlens(-1, 8)
        assert kept() == 0


class Sizes(enum.IntEnum):
    BATCH = 2


class Index:
    def __index__(self) -> int:
        return 2


class TestIntegersOfAnyKind:
    @pytest.mark.parametrize(
        "two", [np.int64(2), np.uint8(2), torch.tensor(2), torch.tensor([2]), Sizes.BATCH, Index()]
    )
    def test_share_one_tensor(self, two):
        assert get_full_cu_seqlens(two, two) is get_full_cu_seqlens(2, 2)


class TestKept:
    def test_second_call_returns_the_same_tensor(self):
        assert get_full_cu_seqlens(2, 8) is get_full_cu_seqlens(2, 8, torch.device("cpu"))

    def test_swapped_sizes_are_another_tensor(self):
        assert get_full_cu_seqlens(2, 8).tolist() != get_full_cu_seqlens(8, 2).tolist()

    def test_a_teacher_under_inference_mode_does_not_poison_a_student(self):
        table = torch.randn(17, requires_grad=True)
        with torch.inference_mode():
            teacher = table[get_full_cu_seqlens(2, 8)].sum()
        student = table[get_full_cu_seqlens(2, 8)].sum()
        student.backward()
        assert teacher == student
        assert table.grad.nonzero().flatten().tolist() == [0, 8, 16]

    def test_a_callers_edit_does_not_reach_the_next_caller(self):
        get_full_cu_seqlens(2, 8)[1] = 3
        assert get_full_cu_seqlens(2, 8).tolist() == [0, 8, 16]

    def test_sizes_without_end_do_not_fill_the_memory(self):
        for max_seqlen in range(600):
            get_full_cu_seqlens(2, max_seqlen)
        assert kept() == cache_info()["full_cu_seqlens"].max_entries == 256


class TestCapture:
    def test_nothing_is_kept(self):
        with mark_capturing():
            assert get_full_cu_seqlens(2, 8).tolist() == [0, 8, 16]
        assert kept() == 0

    def test_what_was_kept_before_is_not_handed_out(self):
        before = get_full_cu_seqlens(2, 8)
        with mark_capturing():
            assert get_full_cu_seqlens(2, 8) is not before
        assert get_full_cu_seqlens(2, 8) is before

    def test_only_operations_on_the_device_no_copy_from_the_host(self):
        with mark_capturing(), Operations() as seen:
            get_full_cu_seqlens(2, 8)
        assert seen.names == ["aten.arange.default", "aten.mul.Tensor"]

    @pytest.mark.gpu
    @pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")
    def test_a_real_graph_replays_the_offsets(self):
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            offsets = get_full_cu_seqlens(2, 8, "cuda")
        graph.replay()
        assert offsets.tolist() == [0, 8, 16]
        assert kept() == 0
