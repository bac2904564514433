"""Bad input: one error that names every fault, with argument, entry, value and expectation."""

from __future__ import annotations

import contextlib
import doctest
import json
from itertools import pairwise
from operator import le
from pathlib import Path

import hypothesis
import numpy as np
import pytest
import torch
from hypothesis import strategies as st

from te_pkg.attention import PackedLayout, classify_padding, cu_seqlens_from_lengths, layout_checks, length_checks
from te_pkg.attention.capture import mark_capturing
from te_pkg.attention.errors import ArgumentTypeError, AttentionError, LayoutError

CASES = json.loads((Path(__file__).parents[1] / "data/attention/invalid_layout.json").read_text())
INT32_MAX = 2**31 - 1


def offsets(*values: int, dtype: torch.dtype = torch.int64) -> torch.Tensor:
    return torch.tensor(values, dtype=dtype)


def faults_of(*args: object, **kwargs: object) -> tuple[str, ...]:
    with pytest.raises(LayoutError) as caught:
        PackedLayout.from_cu_seqlens(*args, **kwargs)
    assert isinstance(caught.value, ValueError)
    assert isinstance(caught.value, AttentionError)
    return caught.value.faults


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["fault"])
@pytest.mark.parametrize("make", [PackedLayout.from_cu_seqlens, classify_padding])
def test_case(make, case):
    cu, padded = (
        None if case[name] is None else torch.tensor(case[name]) for name in ("cu_seqlens", "cu_seqlens_padded")
    )
    with pytest.raises(LayoutError) as caught:
        make(cu, padded, case["total_tokens"])
    assert case["fault"] in str(caught.value)


class TestOffsets:
    def test_each_message_says_argument_entry_value_and_expectation(self):
        assert faults_of(offsets(1, 4)) == ("cu_seqlens does not start at 0: entry 0 is 1, expected 0",)
        assert faults_of(offsets(0, 5, 3)) == ("cu_seqlens decreases at entry 2: 3 after 5, expected at least 5",)
        assert faults_of(offsets(0, 4), offsets(0, 3)) == (
            "cu_seqlens_padded: slot 0 holds 3 rows, sequence 0 has 4, expected at least 4",
        )
        assert faults_of(offsets(0, 4, 8), offsets(0, 4)) == (
            "cu_seqlens_padded has 2 entries, expected 3 as cu_seqlens",
        )
        assert faults_of(offsets(0, 4), None, 3) == ("total_tokens 3 is less than 4, where the last slot ends",)
        assert faults_of(offsets(0, 4), None, None, 3) == ("max_seqlen 3 is less than 4, the length of sequence 0",)
        assert faults_of(offsets()) == ("cu_seqlens is empty, expected [b + 1] entries, the first one 0",)
        assert faults_of(offsets(0, 4).unsqueeze(0)) == ("cu_seqlens is 2-D with shape [1, 2], expected 1-D [b + 1]",)

    @pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
    def test_floating_point(self, dtype):
        assert faults_of(torch.zeros(2, dtype=dtype)) == (
            f"cu_seqlens is floating point ({dtype}), expected int32 or int64",
        )

    @pytest.mark.parametrize("dtype", [torch.bool, torch.int16, torch.uint8, torch.complex64])
    def test_other_dtypes(self, dtype):
        assert faults_of(torch.zeros(2, dtype=dtype)) == (f"cu_seqlens is {dtype}, expected int32 or int64",)

    def test_every_decrease_is_named(self):
        assert [fault.split(":")[0] for fault in faults_of(offsets(0, 5, 3, 4, 2))] == [
            "cu_seqlens decreases at entry 2",
            "cu_seqlens decreases at entry 4",
        ]

    def test_every_short_slot_is_named(self):
        assert [fault.split(",")[0] for fault in faults_of(offsets(0, 4, 6, 9), offsets(0, 3, 5, 7))] == [
            "cu_seqlens_padded: slot 0 holds 3 rows",
            "cu_seqlens_padded: slot 2 holds 2 rows",
        ]

    def test_faults_of_both_and_of_the_sizes_are_told_at_once(self):
        assert faults_of(offsets(1, 5, 3), offsets(0, 2, 9), 8, -1) == (
            "cu_seqlens does not start at 0: entry 0 is 1, expected 0",
            "cu_seqlens decreases at entry 2: 3 after 5, expected at least 5",
            "cu_seqlens_padded: slot 0 holds 2 rows, sequence 0 has 4, expected at least 4",
            "total_tokens 8 is less than 9, where the last slot ends",
            "max_seqlen -1 is less than 4, the length of sequence 0",
        )

    def test_an_unsound_tensor_does_not_hide_the_faults_of_the_other(self):
        assert [fault.split()[0] for fault in faults_of(torch.zeros(2), offsets(0, 3, 2), 1)] == [
            "cu_seqlens",
            "cu_seqlens_padded",
            "total_tokens",
        ]

    def test_another_device_than_the_partner(self):
        found = faults_of(offsets(0, 4), offsets(0, 4).to("meta"), 4, 4)
        assert found == ("cu_seqlens_padded is on meta, expected cpu as cu_seqlens",)

    def test_beyond_int32(self):
        assert faults_of(offsets(0, INT32_MAX + 1, INT32_MAX + 2)) == (
            f"cu_seqlens is beyond int32 at entry 1: {INT32_MAX + 1}, expected at most {INT32_MAX}",
        )
        assert faults_of(offsets(0, 4), None, INT32_MAX + 1) == (
            f"total_tokens is {INT32_MAX + 1}, expected at most {INT32_MAX}",
        )

    def test_the_last_number_that_fits(self):
        made = PackedLayout.from_cu_seqlens(offsets(0, 3, INT32_MAX))
        assert made.cu_seqlens.tolist() == [0, 3, INT32_MAX]
        assert made.total_tokens == INT32_MAX

    def test_no_tensors(self):
        with pytest.raises(
            ArgumentTypeError, match=r"cu_seqlens must be a tensor.*hint: from_lengths.*\n.*_padded must"
        ):
            PackedLayout.from_cu_seqlens([0, 4], [0, 4])

    def test_no_integers_as_sizes(self):
        with pytest.raises(
            ArgumentTypeError, match=r"total_tokens must be an integer.*\nmax_seqlen must be an integer"
        ):
            PackedLayout.from_cu_seqlens(offsets(0, 4), None, "4", 4.0)

    @hypothesis.given(st.lists(st.integers(-3, 12), min_size=1, max_size=6), st.lists(st.integers(-3, 12), max_size=6))
    def test_accepted_is_what_is_valid_and_nothing_else(self, cu, padded):
        made = None
        with contextlib.suppress(LayoutError):
            made = PackedLayout.from_cu_seqlens(offsets(*cu), offsets(*padded))
        sound = padded[:1] == cu[:1] == [0] and len(cu) == len(padded) and sorted(cu) == cu
        slots = [end - start for start, end in pairwise(padded)]
        lengths = [end - start for start, end in pairwise(cu)]
        assert (made is not None) == (sound and all(map(le, lengths, slots)))

    def test_a_tensor_of_garbage_makes_a_message_of_some_lines(self):
        found = LayoutError(f"fault {i}" for i in range(4096))
        assert len(found.faults) == 4096
        assert str(found).count("\n") == 20
        assert str(found).endswith("and 4076 faults more")


class TestLengths:
    def test_negative(self):
        for lengths in ([3, -1, 2, -4], torch.tensor([3, -1, 2, -4])):
            with pytest.raises(LayoutError) as caught:
                PackedLayout.from_lengths(lengths)
            assert caught.value.faults == (
                "lengths[1] is -1, expected at least 0",
                "lengths[3] is -4, expected at least 0",
            )

    def test_every_argument_is_named(self):
        with pytest.raises(LayoutError) as caught:
            PackedLayout.from_lengths([-1], pad_to_multiple=0)
        assert caught.value.faults == (
            "pad_to_multiple is 0, expected at least 1",
            "lengths[0] is -1, expected at least 0",
        )
        with pytest.raises(LayoutError) as caught:
            PackedLayout.from_lengths([3, 5], 4, 11, max_seqlen=4)
        assert caught.value.faults == (
            "total_tokens 11 is less than 12, where the last slot ends",
            "max_seqlen 4 is less than 5, the length of sequence 1",
        )

    def test_beyond_int32(self):
        with pytest.raises(LayoutError, match=f"the slots of lengths end at row {2**31}, beyond int32"):
            PackedLayout.from_lengths([2**30, 2**30])
        with pytest.raises(LayoutError, match=f"the slots of lengths end at row {2**31}, beyond int32"):
            PackedLayout.from_lengths([INT32_MAX], pad_to_multiple=2)

    @pytest.mark.parametrize("lengths", [[3, 2.0], [3, True], [3, None], ["3", "2"], [3, torch.tensor(2.0)]])
    def test_no_integers(self, lengths):
        with pytest.raises(ArgumentTypeError, match=r"lengths\[1\] must be an integer, got "):
            PackedLayout.from_lengths(lengths)

    @pytest.mark.parametrize("lengths", [torch.ones(2), torch.ones(2, 2, dtype=torch.int64), torch.tensor(3)])
    @pytest.mark.parametrize("make", [PackedLayout.from_lengths, lambda lengths: PackedLayout.padded_batch(lengths, 4)])
    def test_tensors_of_another_kind(self, lengths, make):
        with pytest.raises(LayoutError, match=r"lengths is (floating point|2-D|0-D)"):
            make(lengths)

    def test_longer_than_the_slots_of_a_batch(self):
        with pytest.raises(LayoutError) as caught:
            PackedLayout.padded_batch([3, 9, 4, 5], 4)
        assert caught.value.faults == (
            "lengths[1] is 9, expected at most 4, the rows of its slot",
            "lengths[3] is 5, expected at most 4, the rows of its slot",
        )

    def test_a_negative_slot(self):
        with pytest.raises(LayoutError, match="max_seqlen is -1, expected at least 0"):
            PackedLayout.padded_batch([], -1)


class TestEveryFaultInOneRun:
    @pytest.mark.parametrize("as_tensor", [False, True])
    def test_of_lengths_and_three_sizes(self, as_tensor):
        lengths = torch.tensor([3, -1]) if as_tensor else [3, -1]
        with pytest.raises(LayoutError) as caught:
            PackedLayout.from_lengths(lengths, 0, total_tokens=-5, max_seqlen=-3)
        assert caught.value.faults == (
            "pad_to_multiple is 0, expected at least 1",
            "lengths[1] is -1, expected at least 0",
            "total_tokens is -5, expected at least 0",
            "max_seqlen is -3, expected at least 0",
        )

    def test_of_types(self):
        with pytest.raises(ArgumentTypeError) as caught:
            PackedLayout.from_lengths(["a", -1], "b", total_tokens="c")
        assert str(caught.value).splitlines() == [
            "lengths[0] must be an integer, got 'a'",
            "pad_to_multiple must be an integer, got 'b'",
            "total_tokens must be an integer, got 'c'",
            "lengths[1] is -1, expected at least 0",
        ]
        with pytest.raises(ArgumentTypeError) as caught:
            PackedLayout.from_cu_seqlens([0], None, "x", "y")
        assert [line.split()[0] for line in str(caught.value).splitlines()] == [
            "cu_seqlens",
            "total_tokens",
            "max_seqlen",
        ]

    def test_of_a_batch(self):
        with pytest.raises(LayoutError) as caught:
            PackedLayout.padded_batch([3, 5, -1], 2)
        assert caught.value.faults == (
            "lengths[2] is -1, expected at least 0",
            "lengths[0] is 3, expected at most 2, the rows of its slot",
            "lengths[1] is 5, expected at most 2, the rows of its slot",
        )
        with pytest.raises(LayoutError) as caught:
            PackedLayout.padded_batch([0], -1)
        assert caught.value.faults == ("max_seqlen is -1, expected at least 0",)

    def test_an_unsound_tensor_does_not_hide_the_sizes(self):
        assert [fault.split()[0] for fault in faults_of(torch.zeros(2), None, -3, -4)] == [
            "cu_seqlens",
            "total_tokens",
            "max_seqlen",
        ]

    def test_a_short_slot_does_not_hide_lengths_that_are_not_those_of_the_offsets(self):
        with pytest.raises(LayoutError) as caught:
            PackedLayout(offsets(0, 2), offsets(0, 1), 2, 2, (3,))
        assert [fault.split()[0] for fault in caught.value.faults] == ["lengths", "cu_seqlens_padded:"]

    def test_of_lengths_that_cannot_be_read(self):
        with mark_capturing(), pytest.raises(LayoutError) as caught:
            PackedLayout.from_lengths(torch.ones(2), 0, -8)
        assert sorted(fault.split()[0] for fault in caught.value.faults) == [
            "lengths",
            "max_seqlen",
            "pad_to_multiple",
            "total_tokens",
        ]


class TestNoLengths:
    """What cannot be meant as numbers of rows."""

    @pytest.mark.parametrize("lengths", [None, 5, 2.5, np.array(3)])
    @pytest.mark.parametrize(
        "make",
        [PackedLayout.from_lengths, lambda lengths: PackedLayout.padded_batch(lengths, 4), cu_seqlens_from_lengths],
    )
    def test_is_a_type_error_of_the_family(self, make, lengths):
        with pytest.raises(ArgumentTypeError, match="lengths must be numbers of rows, one for each sequence, got "):
            make(lengths)

    def test_in_the_constructor_too(self):
        with pytest.raises(ArgumentTypeError, match="lengths must be numbers of rows"):
            PackedLayout(offsets(0, 2), offsets(0, 2), 2, 2, 5)

    @pytest.mark.parametrize("lengths", [(2,), (7, 7, 7)])
    @pytest.mark.parametrize("device", ["cpu", "meta"])
    def test_lengths_that_cannot_be_compared_are_not_dropped(self, lengths, device):
        cu = offsets(0, 2).to(device)
        with mark_capturing(), pytest.raises(LayoutError, match=r"cannot be compared .*; hint: from_lengths"):
            PackedLayout(cu, cu, 2, 2, lengths)


class TestMasksAndPositions:
    @pytest.mark.parametrize(
        ("mask", "fault"),
        [
            (torch.ones(3, dtype=torch.bool), r"mask is 1-D with shape \[3\], expected 2-D \[b, s\]"),
            (torch.ones(2, 3), r"mask is floating point \(torch.float32\), expected bool, int32, .* or uint8"),
            (torch.ones(2, dtype=torch.complex64), "mask is 1-D.*\nmask is torch.complex64"),
        ],
    )
    def test_masks(self, mask, fault):
        with pytest.raises(LayoutError, match=fault):
            PackedLayout.from_token_mask(mask)

    @pytest.mark.parametrize("ids", [torch.ones(3), torch.ones(3, dtype=torch.bool), torch.tensor(3)])
    def test_positions(self, ids):
        with pytest.raises(LayoutError, match=r"ids is (floating point|torch.bool|0-D)"):
            PackedLayout.from_position_ids(ids)

    def test_no_tensors(self):
        with pytest.raises(ArgumentTypeError, match=r"mask must be a tensor, got \[\[True\]\]"):
            PackedLayout.from_token_mask([[True]])
        with pytest.raises(ArgumentTypeError, match="ids must be a tensor"):
            PackedLayout.from_position_ids([0, 1])

    def test_a_bound_that_is_too_small(self):
        with pytest.raises(LayoutError, match="total_tokens 2 is less than 3"):
            PackedLayout.from_token_mask(torch.ones(1, 3, dtype=torch.bool), total_tokens=2)


@pytest.mark.parametrize("module", [layout_checks, length_checks])
def test_the_worked_examples_hold(module):
    assert doctest.testmod(module).failed == 0
