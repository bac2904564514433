"""What DotProductAttention is given: every fault of a type in one run, and what would have been taken for fitting."""

from __future__ import annotations

import doctest

import pytest
import torch

from te_pkg.attention import DotProductAttention, module_checks
from te_pkg.attention.errors import ArgumentError, ArgumentTypeError, LayoutError

X = torch.zeros(2, 3, 4, 8)


def attention(**options) -> DotProductAttention:
    return DotProductAttention(4, 8, num_gqa_groups=2, **options)


def test_every_fault_of_types_at_once():
    with pytest.raises(ArgumentTypeError) as raised:
        DotProductAttention(
            "4", (8,), 1.5, None, attn_mask_type=3, tp_size=None, window_size=2, bottom_right_diagonal=0,
            softmax_scale="1",
        )  # fmt: skip
    assert str(raised.value).splitlines() == [
        "num_attention_heads must be an integer, got '4'",
        "tp_size must be an integer, got None",
        "num_gqa_groups must be an integer, got 1.5",
        "kv_channels must be an integer or a pair (d, d_v), got (8,)",
        "attn_mask_type must be a str, got 3",
        "window_size must be a pair (left, right), got 2",
        "bottom_right_diagonal must be a bool or None, got 0",
        "softmax_scale must be a number or None, got '1'",
        "attention_dropout must be a number, got None",
    ]
    with pytest.raises(ArgumentTypeError) as raised:
        attention(qkv_format="bshd")(
            *[X] * 3, attn_mask_type=5, window_size=3, bottom_right_diagonal="x", pad_between_seqs="x",
            max_seqlen_q="3", max_seqlen_kv=1.5,
        )  # fmt: skip
    assert str(raised.value).splitlines() == [
        "attn_mask_type must be a str, got 5",
        "window_size must be a pair (left, right), got 3",
        "bottom_right_diagonal must be a bool or None, got 'x'",
        "pad_between_seqs must be a bool or None, got 'x'",
        "max_seqlen_q must be an integer, got '3'",
        "max_seqlen_kv must be an integer, got 1.5",
    ]


def test_sizes_and_shares_that_cannot_be_meant():
    with pytest.raises(ArgumentError) as raised:
        DotProductAttention(4, (8, 0), attention_dropout=1.5, softmax_scale=float("inf"), window_size=(-2, 0))
    assert str(raised.value).splitlines() == [
        "kv_channels is (8, 0), expected at least 1",
        "softmax_scale is inf, expected a finite number",
        "attention_dropout is 1.5, expected at least 0 and less than 1",
        "window_size is (-2, 0), expected (left, right) with -1 for unbounded, else at least 0",
    ]


@pytest.mark.parametrize("name", ["num_splits", "fp8_output", "bf16_backward"])
def test_a_tensor_is_no_answer(name):
    with pytest.raises(ArgumentError, match=rf"{name} is tensor\(\[0, 1\]\), expected "):
        attention(qkv_format="bshd")(X, *[X[:, :, :2]] * 2, **{name: torch.tensor([0, 1])})


@pytest.mark.parametrize("form", ["bshd", "sbhd"])
def test_values_of_another_batch_with_as_many_rows(form):
    """Seen as rows they would fit, and belong to other keys."""
    k, v = torch.zeros(2, 6, 2, 8), torch.zeros(3, 4, 2, 8)
    with pytest.raises(LayoutError, match=r"value_layer begins with \[3, 4\], expected \[2, 6\] as key_layer"):
        attention(qkv_format=form, attn_mask_type="no_mask")(torch.zeros(2, 6, 4, 8), k, v)


@pytest.mark.parametrize("side", ["q", "kv"])
def test_offsets_that_are_no_layout_are_called_as_the_caller_called_them(side):
    dpa = attention(qkv_format="thd", attn_mask_type="padding")
    q, cu = torch.zeros(5, 4, 8), torch.tensor([0, 2, 5])
    given = {"cu_seqlens_q": cu, "cu_seqlens_kv": cu, f"max_seqlen_{side}": 1}
    with pytest.raises(LayoutError, match=rf"^max_seqlen_{side} 1 is less than 3, the length of sequence 1$"):
        dpa(q, q[:, :2], q[:, :2], **given)
    given = {"cu_seqlens_q": cu, "cu_seqlens_kv": cu, f"cu_seqlens_{side}": [0, 2, 5]}
    with pytest.raises(ArgumentTypeError, match=rf"^cu_seqlens_{side} must be a tensor, got \[0, 2, 5\]"):
        dpa(q, q[:, :2], q[:, :2], **given)


@pytest.mark.parametrize("number", [0, 1, 3])
def test_masks_are_one_or_two(number):
    dpa = attention(qkv_format="bshd", attn_mask_type="padding")
    mask = torch.zeros(2, 1, 1, 3, dtype=torch.bool)
    k = X[:, :, :2]
    with pytest.raises(ArgumentTypeError, match=f"or two for queries and keys, got {number}"):
        dpa(X, k, k, attention_mask=(mask,) * number)
    for masks, side in (("mask", "q"), ((mask, 5), "kv")):
        with pytest.raises(ArgumentTypeError, match=f"attention_mask of {side} must be a tensor, got "):
            dpa(X, k, k, attention_mask=masks)


def test_docstrings_are_true():
    assert doctest.testmod(module_checks).failed == 0
