"""What each row is: the same as a person would say, for every kind of padding, without a sync."""

from __future__ import annotations

import doctest

import hypothesis
import pytest
import torch

from te_pkg.attention import PackedLayout, layout_rows
from te_pkg.attention.capture import mark_capturing
from te_pkg.attention.errors import HostReadError
from tests.attention.layouts import layouts, without_host_facts
from tests.attention.no_sync import forbid_sync


class TestRows:
    @hypothesis.given(layouts(host=None))
    def test_token_mask(self, case):
        mask = case.layout.token_mask()
        assert mask.tolist() == case.rows.token_mask
        assert mask.dtype == torch.bool

    @hypothesis.given(layouts(host=None))
    def test_sequence_ids(self, case):
        ids = case.layout.sequence_ids()
        assert ids.tolist() == case.rows.sequence_ids
        assert ids.dtype == torch.int64

    @hypothesis.given(layouts(host=None))
    def test_position_ids(self, case):
        ids = case.layout.position_ids()
        assert ids.tolist() == case.rows.position_ids
        assert ids.dtype == torch.int64

    @hypothesis.given(layouts(host=None))
    def test_padding_rows(self, case):
        rows = case.layout.padding_rows()
        assert rows.tolist() == case.rows.padding_rows
        assert rows.dtype == torch.int64

    @hypothesis.given(layouts(host=None))
    def test_real_and_padding_rows_are_all_rows(self, case):
        mask = case.layout.token_mask()
        mask[case.layout.padding_rows()] = True
        assert bool(mask.all())


@hypothesis.given(layouts())
def test_nothing_syncs(case):
    with forbid_sync(), mark_capturing():
        case.layout.token_mask(), case.layout.sequence_ids(), case.layout.position_ids(), case.layout.padding_rows()
    with forbid_sync(mode=False):
        case.layout.token_mask(), case.layout.sequence_ids(), case.layout.position_ids(), case.layout.padding_rows()


def test_refilled_offsets_are_followed():
    made = without_host_facts(PackedLayout.from_lengths([3, 2], 4))
    made.cu_seqlens.copy_(torch.tensor([0, 1, 5]))
    assert made.sequence_ids().tolist() == [0, -1, -1, -1, 1, 1, 1, 1]


def test_how_many_padding_rows_there_are_must_be_known():
    made = without_host_facts(PackedLayout.from_lengths([3, 2], 4))
    with mark_capturing(), pytest.raises(HostReadError, match=r"padding_rows\(\) needs the lengths"):
        made.padding_rows()


def test_a_large_buffer():
    made = PackedLayout.padded_batch([i % 512 for i in range(1024)], 512)
    assert int(made.token_mask().sum()) == made.real_tokens
    assert made.padding_rows().shape[0] == made.total_tokens - made.real_tokens
    assert not made.token_mask()[made.padding_rows()].any()


def test_the_worked_examples_hold():
    assert doctest.testmod(layout_rows, extraglobs={"PackedLayout": PackedLayout}).failed == 0
