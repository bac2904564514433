"""Ids, labels and positions: padded, cut into shards, and never a token lost."""

from __future__ import annotations

import doctest
from unittest import mock

import hypothesis
import pytest
import torch
from hypothesis import strategies as st

from te_pkg.attention.capture import mark_capturing
from te_pkg.attention.context_parallel import (
    generate_positional_ids_for_cp,
    get_batch_on_this_cp_rank,
    pad_thd_sequences_for_cp,
    partition_indices,
    token_batch,
)
from te_pkg.attention.errors import ArgumentError, ArgumentTypeError, HostReadError, LayoutError

LENGTHS = st.lists(st.integers(0, 12), max_size=6)
INTEGERS = st.sampled_from([torch.int32, torch.int64])


def offsets(lengths: list[int], dtype: torch.dtype = torch.int64) -> torch.Tensor:
    return torch.tensor([0, *lengths]).cumsum(0, dtype=dtype)


@pytest.fixture
def ranks(request):
    """As if this process were one of some ranks."""
    rank, size = request.param
    with (
        mock.patch.object(torch.distributed, "get_world_size", return_value=size),
        mock.patch.object(torch.distributed, "get_rank", return_value=rank),
    ):
        yield rank, size


class TestPadding:
    @hypothesis.given(
        lengths=LENGTHS, factor=st.integers(1, 8), offset_dtype=INTEGERS, dtype=INTEGERS, two=st.booleans()
    )
    def test_each_sequence_is_followed_by_what_it_lacks(self, lengths, factor, offset_dtype, dtype, two):
        ids = torch.arange(1, sum(lengths) + 1, dtype=dtype)
        cu = offsets(lengths, offset_dtype)
        given = ids.view(1, len(ids)) if two else ids
        padded, labels, slots = pad_thd_sequences_for_cp(given, 10 * given, cu, factor, padding_token_id=-1)
        expected, expected_labels = [], []
        for begin, length in zip(cu.tolist(), lengths, strict=False):
            row = ids[begin : begin + length].tolist()
            expected += row + [-1] * (-length % factor)
            expected_labels += [10 * x for x in row] + [-100] * (-length % factor)
        assert padded.tolist() == expected
        assert labels.tolist() == expected_labels
        assert slots.tolist() == offsets([length + -length % factor for length in lengths]).tolist()
        assert (padded.dtype, labels.dtype, slots.dtype) == (dtype, dtype, offset_dtype)

    @hypothesis.given(lengths=LENGTHS, factor=st.integers(1, 8), dtype=st.sampled_from([torch.int16, torch.int64]))
    def test_positions_count_on_through_the_padding(self, lengths, factor, dtype):
        found = generate_positional_ids_for_cp(offsets(lengths), factor, dtype=dtype)
        assert found.tolist() == [i for length in lengths for i in range(length + -length % factor)]
        assert found.dtype == dtype

    def test_the_offsets_that_come_back_are_nobody_elses(self):
        cu = offsets([4], torch.int32)
        ids = torch.arange(4)
        *_, slots = pad_thd_sequences_for_cp(ids, ids, cu, 4)
        slots.add_(1)
        assert cu.tolist() == [0, 4]

    def test_one_look_at_the_offsets_however_many_sequences(self):
        reads = []
        original = torch.Tensor.tolist
        ids = torch.arange(300)
        with mock.patch.object(torch.Tensor, "tolist", lambda self: reads.append(self.shape) or original(self)):
            pad_thd_sequences_for_cp(ids, ids, offsets([3] * 100), 4)
        assert len(reads) == 1

    def test_rows_of_no_sequence_are_refused_with_both_numbers(self):
        ids = torch.arange(7)
        with pytest.raises(LayoutError) as caught:
            pad_thd_sequences_for_cp(ids, ids[None, :4], offsets([3, 2]), 4)
        assert caught.value.faults == (
            "input_ids has 7 rows, expected 5, where cu_seqlens ends",
            "labels has 4 rows, expected 5, where cu_seqlens ends",
        )

    def test_a_batch_is_no_packed_buffer(self):
        ids = torch.zeros(2, 3, dtype=torch.int64)
        with pytest.raises(LayoutError, match=r"^input_ids has shape \[2, 3\], expected \[t\] or \[1, t\]"):
            pad_thd_sequences_for_cp(ids, ids, offsets([3, 3]), 4)

    @pytest.mark.parametrize(
        ("cu_seqlens", "factor", "fault"),
        [
            ([], 4, "cu_seqlens is empty"),
            ([1, 3], 4, "cu_seqlens does not start at 0: entry 0 is 1"),
            ([0, 2, 1, 3], 4, "cu_seqlens decreases at entry 2: 1 after 2"),
            ([0, -(2**63)], 4, "cu_seqlens decreases at entry 1"),
            ([0, 2**63 - 1], 4, "cu_seqlens is beyond int32 at entry 1"),
            ([0, 3], 2**31, "the slots of lengths end at row 2147483648, beyond int32"),
            ([0, 1, 2, 3], 2**62, "the slots of lengths end at row 13835058055282163712, beyond int32"),
            ([0, 3], 2**80, "the slots of lengths end at row 1208925819614629174706176, beyond int32"),
        ],
    )
    def test_offsets_that_cannot_be_padded_are_named(self, cu_seqlens, factor, fault):
        ids, cu = torch.arange(3), torch.tensor(cu_seqlens, dtype=torch.int64)
        for call in (
            lambda: pad_thd_sequences_for_cp(ids, ids, cu, factor),
            lambda: generate_positional_ids_for_cp(cu, factor),
        ):
            with pytest.raises(LayoutError, match=f"^{fault}"):
                call()

    def test_without_rows_any_multiple_will_do(self):
        ids, cu = torch.arange(0), torch.tensor([0, 0, 0])
        assert [x.tolist() for x in pad_thd_sequences_for_cp(ids, ids, cu, 2**80)] == [[], [], [0, 0, 0]]

    def test_wrong_arguments(self):
        ids = torch.arange(3)
        with pytest.raises(LayoutError, match="divisibility_factor is 0, expected at least 1"):
            pad_thd_sequences_for_cp(ids, ids, offsets([3]), 0)
        with pytest.raises(ArgumentTypeError, match="labels must be a tensor, got None"):
            pad_thd_sequences_for_cp(ids, None, offsets([3]), 4)
        with pytest.raises(ArgumentTypeError, match="cu_seqlens must be a tensor"):
            generate_positional_ids_for_cp([0, 3], 4)
        with pytest.raises(ArgumentTypeError, match=r"dtype must be a torch.dtype, got 'int32'"):
            generate_positional_ids_for_cp(offsets([3]), 4, "int32")
        with mark_capturing(), pytest.raises(HostReadError, match="cu_seqlens decide how many rows"):
            generate_positional_ids_for_cp(offsets([3]), 4)


class TestShards:
    @pytest.mark.parametrize("ranks", [(0, 2), (1, 2), (2, 3)], indirect=True)
    @pytest.mark.parametrize("shape", [(-1,), (1, -1), (-1, 1)])
    def test_a_rank_gets_its_rows_wherever_the_sequence_dimension_is(self, ranks, shape):
        rank, size = ranks
        cu = offsets([12, 24])
        ids = torch.arange(36, dtype=torch.int32).view(shape)
        held = partition_indices(cu, size, rank).tolist()
        found, labels, positions = get_batch_on_this_cp_rank(cu, ids, None, ids.double())
        assert found.flatten().tolist() == held
        assert found.ndim == ids.ndim
        assert labels is None
        assert (found.dtype, positions.dtype) == (torch.int32, torch.float64)

    @pytest.mark.parametrize("ranks", [(0, 1)], indirect=True)
    def test_one_rank_holds_everything(self, ranks):
        ids = torch.arange(7)
        assert get_batch_on_this_cp_rank(offsets([7]), ids, ids, None) == (ids, ids, None)

    @pytest.mark.parametrize("ranks", [(1, 2)], indirect=True)
    def test_an_empty_batch(self, ranks):
        nothing = torch.zeros(0, dtype=torch.int64)
        found = get_batch_on_this_cp_rank(offsets([]), nothing, nothing[None], None)
        assert [x.shape for x in found[:2]] == [(0,), (1, 0)]

    @pytest.mark.parametrize("ranks", [(0, 2)], indirect=True)
    def test_rows_beyond_the_slots_are_refused_with_both_numbers(self, ranks):
        with pytest.raises(LayoutError) as caught:
            get_batch_on_this_cp_rank(offsets([8]), torch.arange(10), torch.arange(8), torch.zeros(2, 3))
        assert [fault.partition(", where")[0] for fault in caught.value.faults] == [
            "input_ids_padded has shape [10], expected 8 rows",
            "position_ids_padded has shape [2, 3], expected 8 rows",
        ]

    @pytest.mark.parametrize("ranks", [(0, 2)], indirect=True)
    def test_a_slot_that_would_lose_tokens_is_named(self, ranks):
        with pytest.raises(LayoutError, match="the slot of sequence 1 has 6 rows, expected a multiple of 4"):
            get_batch_on_this_cp_rank(offsets([4, 6]), torch.arange(10), None, None)

    def test_batches_are_refused_by_name(self):
        for name in ("bshd", "sbhd", "hds"):
            with pytest.raises(ArgumentError, match=f"qvk_format is '{name}', expected 'thd'"):
                get_batch_on_this_cp_rank(offsets([8]), None, None, None, qvk_format=name)


def test_examples():
    assert doctest.testmod(token_batch).failed == 0
