"""The layout as a value: every way to make one, what the host knows, and where it may travel."""

from __future__ import annotations

import dataclasses
import doctest
import json
from pathlib import Path

import hypothesis
import numpy as np
import pytest
import torch
from hypothesis import strategies as st

from te_pkg.attention import PackedLayout, Padding, classify_padding, layout, padding
from te_pkg.attention.capture import mark_capturing
from te_pkg.attention.errors import HostReadError, LayoutError, PaddingError
from tests.attention.layouts import Rows, assert_same, facts, layout_of, layouts, without_host_facts
from tests.attention.no_sync import forbid_sync
from tests.attention.questions import offsets

DATA = Path(__file__).parents[1] / "data/attention"
CASES = json.loads((DATA / "layout.json").read_text())
LENGTHS = st.lists(st.integers(0, 40), max_size=12)


def kinds(names: list[str]) -> Padding:
    found = Padding.NONE
    for name in names:
        found |= Padding[name]
    return found


def numbers(case: list[int] | str) -> list[int]:
    if isinstance(case, list):
        return case
    first, last = case.split("..")
    return list(range(int(first), int(last) + 1))


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
class TestCases:
    @pytest.fixture
    def made(self, case) -> PackedLayout:
        cu, padded = (torch.tensor(case[name], dtype=torch.int32) for name in ("cu_seqlens", "cu_seqlens_padded"))
        return PackedLayout.from_cu_seqlens(cu, padded, case["total_tokens"])

    def test_padding(self, case, made):
        assert made.padding() == kinds(case["padding"])
        assert without_host_facts(made).padding() == kinds(case["padding"])
        assert classify_padding(made.cu_seqlens, made.cu_seqlens_padded, case["total_tokens"]) == kinds(case["padding"])

    def test_padding_rows(self, case, made):
        assert made.padding_rows().tolist() == numbers(case["padding_rows"])

    def test_longest(self, case, made):
        assert made.max_seqlen == case["max_seqlen"]

    def test_sequence_ids(self, case, made):
        if case["sequence_ids"] is not None:
            assert made.sequence_ids().tolist() == case["sequence_ids"]

    def test_it_is_drawn(self, case, made):
        assert str(made).count("\n") >= 1


class TestFromLengths:
    @hypothesis.given(lengths=LENGTHS, multiple=st.integers(1, 9), spare=st.none() | st.integers(0, 5))
    def test_slots_are_lengths_rounded_up(self, lengths, multiple, spare):
        slots = tuple(-(-length // multiple) * multiple for length in lengths)
        total = None if spare is None else sum(slots) + spare
        rows = Rows(tuple(lengths), slots, sum(slots) + (spare or 0))
        assert_same(PackedLayout.from_lengths(lengths, multiple, total), layout_of(rows))

    @hypothesis.given(lengths=LENGTHS, multiple=st.integers(1, 9))
    def test_a_tensor_means_the_same_as_its_numbers(self, lengths, multiple):
        of_numbers = PackedLayout.from_lengths(lengths, multiple)
        of_tensor = PackedLayout.from_lengths(torch.tensor(lengths, dtype=torch.int64), multiple)
        assert_same(of_tensor, of_numbers)
        with mark_capturing():
            captured = PackedLayout.from_lengths(
                torch.tensor(lengths, dtype=torch.int32),
                multiple,
                of_numbers.total_tokens,
                max_seqlen=of_numbers.max_seqlen,
            )
        assert captured.lengths is None
        assert captured.cu_seqlens.tolist() == of_numbers.cu_seqlens.tolist()
        assert captured.cu_seqlens_padded.tolist() == of_numbers.cu_seqlens_padded.tolist()

    @pytest.mark.parametrize("lengths", [(3, 2), iter([3, 2]), range(3, 1, -1), np.array([3, 2]), [np.int64(3), 2]])
    def test_numbers_of_any_kind(self, lengths):
        assert PackedLayout.from_lengths(lengths).lengths == (3, 2)
        assert all(type(length) is int for length in PackedLayout.from_lengths([np.int64(3), 2]).lengths)

    def test_a_gapless_layout_has_one_tensor_of_offsets(self):
        made = PackedLayout.from_lengths([4, 8], pad_to_multiple=4)
        assert made.cu_seqlens is made.cu_seqlens_padded

    def test_numbers_never_sync(self):
        with forbid_sync():
            assert PackedLayout.from_lengths([3, 2, 4], 4).padding() == Padding.BETWEEN
        with forbid_sync(mode=False):
            PackedLayout.from_lengths([3, 2, 4], 4)

    def test_device(self):
        assert PackedLayout.from_lengths([3], device="meta").device.type == "meta"
        assert PackedLayout.from_lengths(torch.tensor([3]), device="meta").cu_seqlens_padded.device.type == "meta"
        with torch.device("meta"):
            assert PackedLayout.from_lengths([3]).device.type == "meta"
            assert PackedLayout.from_lengths([3], device="cpu").device.type == "cpu"

    def test_an_upper_bound_for_the_longest(self):
        assert PackedLayout.from_lengths([3, 2], max_seqlen=8).max_seqlen == 8


class TestFromCuSeqlens:
    @hypothesis.given(layouts())
    def test_is_what_a_person_would_write_down(self, case):
        made, rows = case
        assert made.cu_seqlens.tolist() == rows.cu_seqlens
        assert made.cu_seqlens_padded.tolist() == rows.cu_seqlens_padded
        assert facts(made) == (
            rows.total,
            rows.max_seqlen,
            rows.lengths,
            tuple(rows.cu_seqlens_padded),
            sum(rows.lengths),
        )
        assert made.num_sequences == len(rows.lengths)
        assert made.padding() == rows.kinds

    def test_sizes_are_read_off_where_they_are_not_given(self):
        made = PackedLayout.from_cu_seqlens(offsets(0, 3, 5, 9), offsets(0, 4, 6, 11))
        assert (made.total_tokens, made.max_seqlen) == (11, 4)

    def test_sizes_that_are_given_hold(self):
        made = PackedLayout.from_cu_seqlens(offsets(0, 3, 5), None, 16, 512)
        assert (made.total_tokens, made.max_seqlen) == (16, 512)

    def test_sizes_of_any_kind(self):
        made = PackedLayout.from_cu_seqlens(offsets(0, 3, 5), None, np.int64(16), torch.tensor(512))
        assert [type(size) for size in (made.total_tokens, made.max_seqlen)] == [int, int]

    def test_int32_offsets_are_used_as_they_are(self):
        cu, padded = offsets(0, 3, 5), offsets(0, 4, 8)
        made = PackedLayout.from_cu_seqlens(cu, padded)
        assert made.cu_seqlens is cu
        assert made.cu_seqlens_padded is padded

    @pytest.mark.parametrize(
        "cu", [offsets(0, 3, 5, dtype=torch.int64), torch.tensor([0, 9, 3, 9, 5, 9], dtype=torch.int32)[::2]]
    )
    def test_other_offsets_become_contiguous_int32(self, cu):
        made = PackedLayout.from_cu_seqlens(cu)
        assert made.cu_seqlens.dtype == torch.int32
        assert made.cu_seqlens.is_contiguous()
        assert made.cu_seqlens.tolist() == [0, 3, 5]

    def test_equal_but_separate_tensors_are_no_padding(self):
        made = PackedLayout.from_cu_seqlens(offsets(0, 8, 16), offsets(0, 8, 16))
        assert made.padding() == Padding.NONE
        assert made.cu_seqlens is made.cu_seqlens_padded

    def test_the_bare_constructor_checks_too(self):
        made = PackedLayout(offsets(0, 3, 5), offsets(0, 4, 8), 8, 3)
        assert made.lengths == (3, 2)
        with pytest.raises(LayoutError, match="total_tokens 7 is less than 8"):
            dataclasses.replace(made, total_tokens=7)
        with pytest.raises(LayoutError, match=r"lengths is \(3, 3\), expected \(3, 2\)"):
            PackedLayout(offsets(0, 3, 5), offsets(0, 4, 8), 8, 3, (3, 3))


class TestFromTokenMask:
    @pytest.mark.parametrize("case", json.loads((DATA / "from_token_mask.json").read_text()), ids=str)
    @pytest.mark.parametrize("dtype", [torch.bool, torch.int64, torch.uint8])
    def test_case(self, case, dtype):
        made = PackedLayout.from_token_mask(torch.tensor(case["token_mask"], dtype=dtype))
        assert made.cu_seqlens.tolist() == case["expected"]
        assert made.padding() == Padding.NONE

    @hypothesis.given(layouts(kinds=Padding.NONE))
    def test_a_row_has_as_many_tokens_as_it_has_true(self, case):
        longest = case.rows.max_seqlen
        mask = torch.zeros(len(case.rows.lengths), longest + 2, dtype=torch.bool)
        for row, length in enumerate(case.rows.lengths):
            mask[row, torch.randperm(longest + 2)[:length]] = True
        assert_same(PackedLayout.from_token_mask(mask), case.layout)

    def test_under_capture_with_sizes(self):
        with mark_capturing(), forbid_sync(uploads=False):
            made = PackedLayout.from_token_mask(torch.ones(2, 3, dtype=torch.bool), total_tokens=8, max_seqlen=3)
        assert made.lengths is None
        assert made.cu_seqlens.tolist() == [0, 3, 6]
        assert made.padding() == Padding.CAPACITY


class TestFromPositionIds:
    @pytest.mark.parametrize("case", json.loads((DATA / "from_position_ids.json").read_text()), ids=str)
    def test_case(self, case):
        made = PackedLayout.from_position_ids(torch.tensor(case["position_ids"]))
        assert made.cu_seqlens.tolist() == case["expected"]
        assert made.total_tokens == len(case["position_ids"])

    @hypothesis.given(st.lists(st.integers(1, 9), max_size=6))
    def test_gives_back_what_position_ids_came_from(self, lengths):
        made = PackedLayout.from_lengths(lengths)
        assert_same(PackedLayout.from_position_ids(made.position_ids()), made)

    def test_each_row_of_a_batch_starts_a_sequence(self):
        ids = torch.tensor([[0, 1, 0], [5, 6, 7]])
        assert PackedLayout.from_position_ids(ids).lengths == (2, 1, 3)

    def test_no_rows(self):
        assert PackedLayout.from_position_ids(torch.empty(0, dtype=torch.int64)).lengths == ()
        assert PackedLayout.from_position_ids(torch.empty(2, 0, dtype=torch.int64)).lengths == ()

    def test_capture_cannot_know_how_many_sequences_there_are(self):
        with mark_capturing(), pytest.raises(HostReadError, match=r"ids .* a CUDA graph is being captured"):
            PackedLayout.from_position_ids(torch.tensor([0, 1]))


class TestPaddedBatch:
    @hypothesis.given(lengths=LENGTHS, extra=st.integers(0, 3))
    def test_every_slot_has_s_rows(self, lengths, extra):
        s = max(lengths, default=0) + extra
        made = PackedLayout.padded_batch(lengths, s)
        assert made.cu_seqlens_padded.tolist() == [i * s for i in range(len(lengths) + 1)]
        assert (made.lengths, made.total_tokens, made.max_seqlen) == (tuple(lengths), len(lengths) * s, s)
        assert_same(PackedLayout.padded_batch(torch.tensor(lengths, dtype=torch.int64), s), made)

    def test_under_capture_nothing_is_read(self):
        lengths = torch.tensor([3, 1])
        with mark_capturing(), forbid_sync(uploads=False):
            made = PackedLayout.padded_batch(lengths, 4)
        assert facts(made) == (8, 4, None, None, None)
        assert made.cu_seqlens.tolist() == [0, 3, 4]
        assert made.cu_seqlens_padded.tolist() == [0, 4, 8]

    def test_a_batch_without_padding_has_one_tensor_of_offsets(self):
        made = PackedLayout.padded_batch([4, 4], 4)
        assert made.cu_seqlens is made.cu_seqlens_padded


class TestPadding:
    def test_kinds_are_flags(self):
        assert Padding(0) == Padding.NONE
        assert not Padding.NONE
        assert [kind.name for kind in Padding] == ["LAST", "BETWEEN", "CAPACITY"]

    def test_a_layout_that_cannot_be_read_says_so(self):
        made = without_host_facts(PackedLayout.from_lengths([3, 2], 4))
        with mark_capturing(), pytest.raises(HostReadError, match=r"padding\(\) needs the lengths .* captured; hint: "):
            made.padding()
        with pytest.raises(HostReadError, match="have no values"):
            made.to("meta").padding()

    def test_known_padding_is_told_under_capture_too(self):
        made = PackedLayout.from_lengths([3, 2], 4)
        with mark_capturing(), forbid_sync(uploads=False):
            assert made.padding() == Padding.LAST | Padding.BETWEEN

    def test_classify_compares_values_and_so_refuses_capture(self):
        with mark_capturing(), pytest.raises(HostReadError, match="classify_padding"):
            classify_padding(offsets(0, 3))

    def test_classify_checks(self):
        with pytest.raises(LayoutError, match="decreases at entry 2"):
            classify_padding(offsets(0, 3, 2))


class TestPaddedTo:
    @hypothesis.given(layouts(host=None), st.integers(1, 9))
    def test_is_what_from_lengths_would_make(self, case, multiple):
        made = case.layout.padded_to(multiple)
        assert_same(made, PackedLayout.from_lengths(case.rows.lengths, multiple, max_seqlen=case.rows.max_seqlen))
        assert made.cu_seqlens is case.layout.cu_seqlens

    def test_is_capture_safe_where_the_lengths_are_known(self):
        made = PackedLayout.from_lengths([3, 2, 4])
        with mark_capturing(), forbid_sync(uploads=False):
            padded = made.padded_to(4)
        assert padded.cu_seqlens_padded.tolist() == [0, 4, 8, 12]
        assert padded.slot_offsets == (0, 4, 8, 12)

    def test_needs_the_lengths(self):
        with pytest.raises(HostReadError, match=r"padded_to\(\)"):
            PackedLayout.from_cu_seqlens(torch.empty(3, dtype=torch.int32, device="meta"), None, 8, 4).padded_to(4)

    def test_a_multiple_less_than_one(self):
        with pytest.raises(LayoutError, match="multiple is 0, expected at least 1"):
            PackedLayout.from_lengths([3]).padded_to(0)


class TestFlashAttnKwargs:
    def test_without_gaps(self):
        made = PackedLayout.from_lengths([3, 5])
        assert made.flash_attn_kwargs() == {
            "cu_seqlens_q": made.cu_seqlens,
            "cu_seqlens_k": made.cu_seqlens,
            "max_seqlen_q": 5,
            "max_seqlen_k": 5,
        }

    @hypothesis.given(layouts(host=None, kinds=Padding.LAST | Padding.CAPACITY))
    def test_padding_at_the_end_is_no_gap(self, case):
        assert case.layout.flash_attn_kwargs()["cu_seqlens_q"] is case.layout.cu_seqlens

    @pytest.mark.parametrize("host", [True, False])
    def test_gaps_are_refused_with_a_way_out(self, host):
        made = layout_of(Rows((3, 2), (4, 2), 6), host=host)
        with pytest.raises(PaddingError, match=r"padding between.*hint: flash_attn_kwargs\(seqused=True\)"):
            made.flash_attn_kwargs()

    @hypothesis.given(layouts(host=None))
    def test_storage_and_what_is_used_of_it(self, case):
        with forbid_sync():
            kwargs = case.layout.flash_attn_kwargs(seqused=True)
        assert kwargs["cu_seqlens_q"].tolist() == kwargs["cu_seqlens_k"].tolist() == case.rows.cu_seqlens_padded
        assert kwargs["seqused_q"].tolist() == kwargs["seqused_k"].tolist() == list(case.rows.lengths)
        assert kwargs["seqused_q"].dtype == torch.int32

    def test_unknown_gaps_under_capture(self):
        made = without_host_facts(PackedLayout.from_lengths([3, 2], 4))
        with mark_capturing(), pytest.raises(HostReadError):
            made.flash_attn_kwargs()


def test_making_a_large_layout_looks_at_no_entry_by_itself():
    lengths = [i % 500 for i in range(4096)]
    made = PackedLayout.from_lengths(lengths, 16)
    assert made.cu_seqlens.tolist()[-1] == sum(lengths) == made.real_tokens
    assert made.num_sequences == 4096


@pytest.mark.parametrize("module", [layout, padding])
def test_the_worked_examples_hold(module):
    assert doctest.testmod(module, extraglobs={"classify_padding": classify_padding}).failed == 0
