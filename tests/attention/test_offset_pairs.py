"""Questions about padding that cannot be meant: every fault of both sides, under the names that the caller knows."""

from __future__ import annotations

import pytest

from te_pkg.attention import resolve_pad_between_seqs, verify_replay
from te_pkg.attention.capture import mark_capturing
from te_pkg.attention.errors import ArgumentError, ArgumentTypeError, AttentionError, LayoutError
from tests.attention.no_sync import forbid_sync
from tests.attention.questions import offsets


def test_offsets_that_are_none_are_named_as_the_caller_names_them(memory):
    cu = offsets(0, 3, 8)
    with pytest.raises(LayoutError) as raised:
        resolve_pad_between_seqs(cu, offsets(0, 5, 3), cu, offsets(1, 4, 8), decisions=memory)
    assert "cu_seqlens_kv decreases at entry 2" in str(raised.value)
    assert "cu_seqlens_kv_padded does not start at 0" in str(raised.value)
    assert memory.info().entries == 0


def test_a_fault_of_one_side_does_not_hide_those_of_the_other(memory):
    q, kv, cu = offsets(0, 5, 3), offsets(2, 8), offsets(0, 8)
    with pytest.raises(LayoutError) as raised:
        resolve_pad_between_seqs(q, cu, offsets(0, 5, 9), kv, decisions=memory)
    assert [fault.split()[0] for fault in raised.value.faults] == [
        "cu_seqlens_q",
        "cu_seqlens_kv_padded",
        "cu_seqlens_kv_padded:",
    ]


@pytest.mark.parametrize("captured", [False, True])
def test_what_is_no_tensor_is_refused(memory, captured):
    with mark_capturing() if captured else forbid_sync(), pytest.raises(ArgumentTypeError) as raised:
        resolve_pad_between_seqs(None, [0, 3], offsets(0, 3), [0, 4], decisions=memory)
    assert str(raised.value).splitlines() == [
        "cu_seqlens_q must be a tensor, got None",
        "cu_seqlens_kv must be a tensor, got [0, 3]",
        "cu_seqlens_kv_padded must be a tensor, got [0, 4]",
    ]


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"pad_between_seqs": 1}, ArgumentTypeError),
        ({"qkv_format": "THD"}, ArgumentError),
        ({"qkv_format": None}, ArgumentTypeError),
        ({"qkv_format": "thd_2thd_2sbhd"}, ArgumentError),
        ({"decisions": 5}, ArgumentTypeError),
        ({"cp_size": 0}, ArgumentError),
        ({"cp_size": True}, ArgumentTypeError),
        ({"cp_size": 2.0}, ArgumentTypeError),
    ],
)
def test_other_arguments(options, error):
    cu = offsets(0, 3)
    with pytest.raises(error) as raised:
        resolve_pad_between_seqs(cu, cu, offsets(0, 3), None, **options)
    assert isinstance(raised.value, AttentionError)
    assert next(iter(options)) in str(raised.value)


def test_a_memory_that_is_none_cannot_be_verified():
    with pytest.raises(ArgumentTypeError, match="decisions must be PaddingDecisions or None, got 5"):
        verify_replay(5)
