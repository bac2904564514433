"""The zigzag partition: each row on one rank, real rows a prefix, lengths exact, and nothing lost in silence."""

from __future__ import annotations

import doctest
import json
from itertools import accumulate
from pathlib import Path

import hypothesis
import pytest
import torch
from hypothesis import strategies as st

from te_pkg.attention import PackedLayout
from te_pkg.attention.capture import mark_capturing
from te_pkg.attention.context_parallel import (
    get_cu_seqlens_on_cp_rank,
    inverse_partition_indices,
    partition,
    partition_indices,
    rank_cu_seqlens,
    rank_half_lengths,
)
from te_pkg.attention.errors import ArgumentError, ArgumentTypeError, HostReadError, LayoutError
from tests.attention.layouts import Rows, layout_of, without_host_facts
from tests.attention.no_sync import forbid_sync

DATA = Path(__file__).parents[2] / "data/attention"
CASES = json.loads((DATA / "context_parallel.json").read_text())
INVALID = json.loads((DATA / "context_parallel_invalid.json").read_text())


@st.composite
def cut_layouts(draw: st.DrawFn) -> tuple[Rows, int]:
    """Layouts whose slots are multiples of ``2 * c``, longer than need be or not, and ``c``."""
    size = draw(st.integers(1, 5))
    lengths = tuple(draw(st.lists(st.integers(0, 30), max_size=5)))
    slots = tuple((-(-length // (2 * size)) + draw(st.integers(0, 2))) * 2 * size for length in lengths)
    return Rows(lengths, slots, sum(slots) + draw(st.integers(0, 3))), size


def offsets(rows: Rows, dtype: torch.dtype = torch.int32) -> torch.Tensor:
    return torch.tensor(rows.cu_seqlens_padded, dtype=dtype)


def held(rows: Rows, size: int, rank: int) -> list[list[list[int]]]:
    """For each sequence its two chunks on a rank, as rows of the whole buffer: read off one row after the other."""
    found = []
    for begin, slot in zip(rows.cu_seqlens_padded, rows.slots, strict=False):
        chunks: list[list[int]] = [[] for _ in range(2 * size)]
        for row in range(slot):
            chunks[row * 2 * size // slot].append(begin + row)
        found.append([chunks[rank], chunks[2 * size - 1 - rank]])
    return found


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
class TestCases:
    @pytest.fixture
    def layout(self, case) -> PackedLayout:
        return PackedLayout.from_cu_seqlens(*(torch.tensor(case[name]) for name in ("cu_seqlens", "cu_seqlens_padded")))

    def test_lengths_of_the_halves(self, case, layout):
        assert rank_half_lengths(layout, case["cp_size"]).tolist() == case["rank_half_lengths"]

    def test_offsets_of_all_ranks(self, case, layout):
        found = rank_cu_seqlens(layout, case["cp_size"])
        assert found[:, 0].tolist() == case["rank_cu_seqlens"]
        stored = [offset // case["cp_size"] for offset in case["cu_seqlens_padded"]]
        assert found[:, 1].tolist() == [stored] * case["cp_size"]

    def test_offsets_of_one_rank(self, case, layout):
        stored = layout.cu_seqlens_padded // case["cp_size"]
        for rank, expected in enumerate(case["rank_cu_seqlens"]):
            found = get_cu_seqlens_on_cp_rank(layout.cu_seqlens, stored, case["cp_size"], rank, True, True)
            assert found.tolist() == expected

    def test_rows_of_each_rank(self, case, layout):
        if case["partition_indices"] is not None:
            for rank, expected in enumerate(case["partition_indices"]):
                assert partition_indices(layout.cu_seqlens_padded, case["cp_size"], rank).tolist() == expected


@pytest.mark.parametrize("case", INVALID, ids=lambda case: case["name"])
class TestInvalid:
    def test_a_slot_that_would_lose_rows_is_named(self, case):
        cu = torch.tensor(case["cu_seqlens_padded"])
        slot = case["cu_seqlens_padded"][1]
        expected = rf"the slot of sequence 0 has {slot} rows, expected a multiple of {2 * case['cp_size']}"
        layout = PackedLayout.from_cu_seqlens(cu)
        for call in (
            lambda: partition_indices(cu, case["cp_size"], 0),
            lambda: inverse_partition_indices(cu, case["cp_size"]),
            lambda: rank_cu_seqlens(layout, case["cp_size"]),
            lambda: rank_half_lengths(layout, case["cp_size"]),
            lambda: rank_cu_seqlens(without_host_facts(layout), case["cp_size"]),
        ):
            with pytest.raises(LayoutError, match=expected):
                call()

    def test_every_such_slot_is_named_in_one_run(self, case):
        with pytest.raises(LayoutError) as caught:
            partition_indices(torch.tensor(case["cu_seqlens_padded"]), case["cp_size"], 0)
        odd = [
            i
            for i, (begin, end) in enumerate(
                zip(case["cu_seqlens_padded"], case["cu_seqlens_padded"][1:], strict=False)
            )
            if (end - begin) % (2 * case["cp_size"])
        ]
        assert [f"sequence {i} " in fault for i, fault in zip(odd, caught.value.faults, strict=True)]


class TestPartition:
    @hypothesis.given(case=cut_layouts(), dtype=st.sampled_from([torch.int32, torch.int64]))
    def test_a_rank_holds_its_two_chunks_of_each_sequence_in_order(self, case, dtype):
        rows, size = case
        for rank in range(size):
            found = partition_indices(offsets(rows, dtype), size, rank)
            assert found.tolist() == [row for chunks in held(rows, size, rank) for chunk in chunks for row in chunk]
            assert found.dtype == dtype

    @hypothesis.given(case=cut_layouts(), dtype=st.sampled_from([torch.int32, torch.int64]))
    def test_shards_laid_end_to_end_become_the_whole_again(self, case, dtype):
        rows, size = case
        cu = offsets(rows, dtype)
        shards = torch.cat([partition_indices(cu, size, rank) for rank in range(size)])
        inverse = inverse_partition_indices(cu, size)
        assert shards[inverse].tolist() == list(range(sum(rows.slots)))
        assert inverse.dtype == dtype

    @hypothesis.given(case=cut_layouts(), host=st.booleans())
    def test_lengths_are_those_of_the_rows_that_a_rank_holds(self, case, host):
        rows, size = case
        layout, real = layout_of(rows, host=host), set(rows.real_rows)
        halves = [
            [[sum(row in real for row in chunk) for chunk in chunks] for chunks in held(rows, size, rank)]
            for rank in range(size)
        ]
        found = rank_half_lengths(layout, size)
        assert found.shape == (size, len(rows.lengths), 2)
        assert found.tolist() == halves
        both = [list(accumulate(map(sum, of_rank), initial=0)) for of_rank in halves]
        stored = [offset // size for offset in rows.cu_seqlens_padded]
        assert rank_cu_seqlens(layout, size).tolist() == [[real, stored] for real in both]

    @hypothesis.given(case=cut_layouts(), first=st.booleans(), second=st.booleans())
    def test_the_offsets_of_one_rank_are_those_of_the_halves_that_are_asked_for(self, case, first, second):
        rows, size = case
        layout = layout_of(rows)
        for rank, halves in enumerate(rank_half_lengths(layout, size).tolist()):
            found = get_cu_seqlens_on_cp_rank(
                layout.cu_seqlens, layout.cu_seqlens_padded // size, size, rank, first, second
            )
            assert found.tolist() == list(accumulate((first * one + second * two for one, two in halves), initial=0))

    @hypothesis.given(case=cut_layouts())
    def test_real_rows_are_a_prefix_on_every_rank(self, case):
        rows, size = case
        real = set(rows.real_rows)
        for rank in range(size):
            for chunks in held(rows, size, rank):
                flags = [row in real for chunk in chunks for row in chunk]
                assert flags == sorted(flags, reverse=True)


class TestPlaces:
    def test_dtype_and_device_are_kept(self):
        for dtype in (torch.int32, torch.int64):
            cu, stored = torch.tensor([0, 7], dtype=dtype), torch.tensor([0, 4], dtype=dtype)
            assert get_cu_seqlens_on_cp_rank(cu, stored, 2, 0, True, True).dtype == dtype
        meta = PackedLayout.from_cu_seqlens(
            torch.zeros(3, dtype=torch.int32, device="meta"), total_tokens=8, max_seqlen=4
        )
        assert rank_cu_seqlens(meta, 2).device.type == "meta"
        assert rank_cu_seqlens(meta, 2).shape == (2, 2, 3)
        assert rank_half_lengths(meta, 2).shape == (2, 2, 2)
        on_meta = get_cu_seqlens_on_cp_rank(meta.cu_seqlens, meta.cu_seqlens_padded, 2, 0, True, False)
        assert on_meta.device.type == "meta"

    def test_all_ranks_at_once_never_sync(self):
        layout = PackedLayout.from_lengths([7, 0, 5], pad_to_multiple=4)
        expected = rank_cu_seqlens(layout, 2), rank_half_lengths(layout, 2)
        with forbid_sync(uploads=False):
            found = rank_cu_seqlens(layout, 2), rank_half_lengths(layout, 2)
        assert all(map(torch.equal, found, expected))
        unknown = without_host_facts(layout)
        with mark_capturing(), forbid_sync(uploads=False):
            captured = rank_cu_seqlens(unknown, 2)
            one = get_cu_seqlens_on_cp_rank(unknown.cu_seqlens, unknown.cu_seqlens_padded // 2, 2, 0, True, True)
        assert torch.equal(captured, expected[0])
        assert torch.equal(one, expected[0][0, 0])

    def test_an_empty_batch(self):
        empty, layout = torch.zeros(1, dtype=torch.int32), PackedLayout.from_lengths([])
        assert partition_indices(empty, 2, 1).shape == (0,)
        assert inverse_partition_indices(empty, 2).shape == (0,)
        assert rank_cu_seqlens(layout, 2).tolist() == [[[0], [0]]] * 2
        assert rank_half_lengths(layout, 2).shape == (2, 0, 2)
        assert get_cu_seqlens_on_cp_rank(empty, empty, 2, 0, True, True).tolist() == [0]

    def test_results_are_ordinary_tensors_under_inference_mode(self):
        with torch.inference_mode():
            cu = torch.tensor([0, 8])
            made = [partition_indices(cu, 2, 0), rank_cu_seqlens(PackedLayout.from_lengths([8]), 2)]
        assert not any(x.is_inference() for x in made)


class TestRefusals:
    @pytest.mark.parametrize(("size", "rank"), [(0, 0), (-2, 0), (2, 2), (2, -1)])
    def test_ranks_that_do_not_exist(self, size, rank):
        with pytest.raises(ArgumentError, match=r"^cp_(size|rank) is -?\d, expected at least"):
            partition_indices(torch.tensor([0, 8]), size, rank)

    def test_what_is_no_number_or_no_tensor(self):
        with pytest.raises(ArgumentTypeError, match=r"^cp_size must be an integer, got 2\.0$"):
            rank_cu_seqlens(PackedLayout.from_lengths([8]), 2.0)
        with pytest.raises(ArgumentTypeError, match=r"^layout must be a PackedLayout, got \[0, 8\]$"):
            rank_cu_seqlens([0, 8], 2)
        with pytest.raises(ArgumentTypeError, match=r"^cu_seqlens_padded must be a tensor, got \[0, 8\]"):
            partition_indices([0, 8], 2, 0)

    def test_what_is_no_offsets_under_the_name_that_the_caller_knows(self):
        with pytest.raises(LayoutError, match=r"^cu_seqlens_padded decreases at entry 2: 4 after 8"):
            partition_indices(torch.tensor([0, 8, 4]), 2, 0)
        with pytest.raises(
            LayoutError, match=r"^cu_seqlens_padded_on_cp_rank has 3 entries, expected 2 as cu_seqlens$"
        ):
            get_cu_seqlens_on_cp_rank(torch.tensor([0, 8]), torch.tensor([0, 4, 8]), 2, 0, True, True)

    def test_a_sequence_that_is_longer_than_its_slots_on_all_ranks(self):
        with pytest.raises(LayoutError) as caught:
            get_cu_seqlens_on_cp_rank(torch.tensor([0, 4, 13]), torch.tensor([0, 3, 7]), 2, 0, True, True)
        assert caught.value.faults == (
            "cu_seqlens_padded_on_cp_rank: slot 0 has 3 rows, expected two halves of equal size",
            "cu_seqlens: sequence 1 has 9 rows, expected at most 8, which its slots of 4 rows on 2 ranks hold",
        )

    def test_how_many_rows_there_are_cannot_be_read_under_capture(self):
        with mark_capturing(), pytest.raises(HostReadError, match="cu_seqlens_padded decide how many rows"):
            partition_indices(torch.tensor([0, 8]), 2, 0)


def test_examples():
    assert doctest.testmod(partition) == (0, doctest.testmod(partition).attempted)
