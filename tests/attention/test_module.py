"""DotProductAttention: Transformer Engine's arguments, every format, and what is refused."""

from __future__ import annotations

import doctest
import inspect
import sys

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from te_pkg.attention import DotProductAttention, PackedLayout, packed_attention
from te_pkg.attention.capture import mark_capturing
from te_pkg.attention.errors import ArgumentError, ArgumentTypeError, LayoutError
from tests.attention.attention_problems import poisoned
from tests.attention.layouts import layouts

MASKS = {
    "padding": {"causal": False, "align": "bottom_right"},
    "padding_causal": {"causal": True, "align": "top_left"},
    "causal,padding": {"causal": True, "align": "top_left"},
    "padding_causal_bottom_right": {"causal": True, "align": "bottom_right"},
}


def attention(**options) -> DotProductAttention:
    return DotProductAttention(4, 8, num_gqa_groups=2, **options)


@pytest.mark.parametrize("mask_type", MASKS)
@settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data(), window=st.none() | st.just((2, 0)))
def test_a_thd_call_is_packed_attention(mask_type, data, window):
    layout, rows = data.draw(layouts(max_sequences=3))
    keys, _ = data.draw(layouts(num_sequences=len(rows.lengths)))
    q, k, v = (poisoned(of, heads, 8, seed=heads) for of, heads in ((layout, 4), (keys, 2), (keys, 2)))
    out = attention(qkv_format="thd", attn_mask_type=mask_type, attention_type="cross")(
        q,
        k,
        v,
        cu_seqlens_q=layout.cu_seqlens,
        cu_seqlens_kv=keys.cu_seqlens,
        cu_seqlens_q_padded=layout.cu_seqlens_padded.clone(),
        cu_seqlens_kv_padded=keys.cu_seqlens_padded.clone(),
        max_seqlen_q=layout.max_seqlen,
        max_seqlen_kv=keys.max_seqlen,
        window_size=window,
        core_attention_bias_type="no_bias",
    )
    expected = packed_attention(q, k, v, layout, keys, window=window, **MASKS[mask_type])
    torch.testing.assert_close(out, expected.flatten(1))


@pytest.mark.parametrize("pad_between_seqs", [None, True, False])
def test_pad_between_seqs_never_changes_a_result(pad_between_seqs):
    layout = PackedLayout.from_lengths([3, 2], pad_to_multiple=4)
    q, k = poisoned(layout, 4, 8), poisoned(layout, 2, 8)
    offsets = {"cu_seqlens_q": layout.cu_seqlens, "cu_seqlens_kv": layout.cu_seqlens}
    for padded in (layout.cu_seqlens_padded, layout.cu_seqlens_padded.clone()):
        out = attention(qkv_format="thd", attn_mask_type="padding")(
            q,
            k,
            k,
            cu_seqlens_q_padded=padded,
            cu_seqlens_kv_padded=padded,
            pad_between_seqs=pad_between_seqs,
            **offsets,
        )
        torch.testing.assert_close(out, packed_attention(q, k, k, layout).flatten(1))


@pytest.mark.parametrize("form", ["bshd", "sbhd"])
@pytest.mark.parametrize("mask_type", ["no_mask", "causal", "causal_bottom_right"])
def test_whole_batches(form, mask_type):
    q, k, v = torch.randn(3, 5, 4, 8), torch.randn(3, 7, 2, 8), torch.randn(3, 7, 2, 8)
    given = [x.transpose(0, 1) for x in (q, k, v)] if form == "sbhd" else (q, k, v)
    out = attention(qkv_format=form, attn_mask_type=mask_type, attention_type="cross")(*given)
    mask = torch.ones(5, 7, dtype=torch.bool)
    if mask_type != "no_mask":
        mask = mask.tril(2 if mask_type == "causal_bottom_right" else 0)
    expected = torch.nn.functional.scaled_dot_product_attention(
        *(x.transpose(1, 2) for x in (q, k, v)), attn_mask=mask, enable_gqa=True
    )
    expected = expected.transpose(1, 2).flatten(2)
    torch.testing.assert_close(out.transpose(0, 1) if form == "sbhd" else out, expected)
    assert out.is_contiguous()


@pytest.mark.parametrize("form", ["bshd", "sbhd"])
@pytest.mark.parametrize("by", ["attention_mask", "cu_seqlens"])
@pytest.mark.parametrize("cross", [False, True])
def test_padded_batches(form, by, cross):
    lengths, lengths_kv = [5, 0, 3], [6, 2, 1] if cross else [5, 0, 3]
    s, s_kv = 5, 6 if cross else 5
    layout, keys = PackedLayout.padded_batch(lengths, s), PackedLayout.padded_batch(lengths_kv, s_kv)
    q, k, v = (poisoned(of, heads, 8, seed=heads) for of, heads in ((layout, 4), (keys, 2), (keys, 2)))
    batch = [q.view(3, s, 4, 8), k.view(3, s_kv, 2, 8), v.view(3, s_kv, 2, 8)]
    masks = [
        (torch.arange(longest) >= torch.tensor(of)[:, None])[:, None, None]
        for of, longest in ((lengths, s), (lengths_kv, s_kv))
    ]
    where = (
        {"attention_mask": tuple(masks) if cross else masks[0]}
        if by == "attention_mask"
        else {"cu_seqlens_q": layout.cu_seqlens, "cu_seqlens_kv": keys.cu_seqlens}
    )
    given = [x.transpose(0, 1).contiguous() for x in batch] if form == "sbhd" else batch
    out = attention(attn_mask_type="padding_causal")(*given, qkv_format=form, **where)
    expected = packed_attention(q, k, v, layout, keys, causal=True).view(3, s, 32)
    torch.testing.assert_close(out.transpose(0, 1) if form == "sbhd" else out, expected)
    assert not out.isnan().any()


def test_two_masks_of_one_shape_are_two_masks():
    x = torch.randn(1, 3, 4, 8)
    k = x[:, :, :2]
    dpa = attention(qkv_format="bshd", attn_mask_type="padding")
    few, all_of_them = (torch.tensor(of)[None, None, None] for of in ([False, True, True], [False] * 3))
    out = dpa(x, k, k, attention_mask=(few, all_of_them))
    torch.testing.assert_close(out[0, 0], attention(qkv_format="bshd", attn_mask_type="no_mask")(x, k, k)[0, 0])
    assert not out[0, 1:].any()


@pytest.mark.parametrize("dimension", [-3, -2])
def test_tensors_in_one(dimension):
    layout = PackedLayout.from_lengths([3, 2])
    q, k, v = (poisoned(layout, 2, 8, seed=seed) for seed in range(3))
    offsets = {"cu_seqlens_q": layout.cu_seqlens, "cu_seqlens_kv": layout.cu_seqlens}
    dpa = DotProductAttention(2, 8, qkv_format="thd", attn_mask_type="padding_causal")
    expected = dpa(q, k, v, **offsets)
    axis = dimension + 4
    for together in (
        {"qkv_layer": torch.stack([q, k, v], axis)},
        {"query_layer": q, "kv_layer": torch.stack([k, v], axis)},
    ):
        assert dpa(**together, qkv_interleave_dim=dimension, **offsets).equal(expected)
    with pytest.raises(LayoutError, match="expected 3 in dimension qkv_interleave_dim"):
        dpa(qkv_layer=torch.stack([q, k], axis), qkv_interleave_dim=dimension, **offsets)
    with pytest.raises(ArgumentTypeError, match="given are key_layer, qkv_layer, expected"):
        dpa(key_layer=k, qkv_layer=torch.stack([q, k, v], axis), **offsets)


def test_dropout_is_for_training():
    x = torch.randn(2, 6, 4, 8)
    k = x[:, :, :2]
    dpa = attention(attention_dropout=0.5, qkv_format="bshd")
    torch.manual_seed(0)
    assert not dpa(x, k, k).equal(dpa(x, k, k))
    dpa.eval()
    assert dpa(x, k, k).equal(attention(qkv_format="bshd")(x, k, k))


def test_heads_of_two_sizes_and_a_scale():
    layout = PackedLayout.from_lengths([3, 2])
    q, k, v = poisoned(layout, 4, 8), poisoned(layout, 2, 8), poisoned(layout, 2, 6)
    offsets = {"cu_seqlens_q": layout.cu_seqlens, "cu_seqlens_kv": layout.cu_seqlens}
    dpa = DotProductAttention(
        8, (8, 6), 4, tp_size=2, qkv_format="thd", attn_mask_type="padding", softmax_scale=0.1, layer_number=3
    )
    out = dpa(q, k, v, **offsets)
    torch.testing.assert_close(out, packed_attention(q, k, v, layout, scale=0.1).flatten(1))
    assert "heads=4, groups=2, sizes=(8, 6), qkv_format='thd'" in repr(dpa)


def test_gradients_reach_all_three_and_padding_stays_zero():
    layout = PackedLayout.from_lengths([3, 2], pad_to_multiple=4)
    q, k, v = (poisoned(layout, heads, 8, seed=heads).requires_grad_() for heads in (4, 2, 2))
    offsets = {f"cu_seqlens_{side}": layout.cu_seqlens for side in ("q", "kv")}
    padded = {f"cu_seqlens_{side}_padded": layout.cu_seqlens_padded for side in ("q", "kv")}
    attention(qkv_format="thd", attn_mask_type="padding_causal")(q, k, v, **offsets, **padded).sum().backward()
    for x in (q, k, v):
        assert x.grad.isfinite().all()
        assert not x.grad[3].any()


def test_under_capture_with_sizes_given_nothing_is_read():
    layout = PackedLayout.from_lengths([3, 2], pad_to_multiple=4)
    q, k = poisoned(layout, 4, 8), poisoned(layout, 2, 8)
    offsets = {f"cu_seqlens_{side}": layout.cu_seqlens for side in ("q", "kv")}
    padded = {f"cu_seqlens_{side}_padded": layout.cu_seqlens_padded for side in ("q", "kv")}
    dpa = attention(qkv_format="thd", attn_mask_type="padding_causal")
    expected = packed_attention(q, k, k, layout, causal=True).flatten(1)
    with mark_capturing():
        out = dpa(q, k, k, **offsets, **padded, max_seqlen_q=3, max_seqlen_kv=3)
    torch.testing.assert_close(out, expected)
    with mark_capturing(), pytest.raises(LayoutError, match="max_seqlen_q is not given"):
        dpa(q, k, k, **offsets, **padded)


def test_it_compiles_whole():
    torch._dynamo.reset()
    layout = PackedLayout.from_lengths([3, 2])
    q, k = poisoned(layout, 4, 8), poisoned(layout, 2, 8)
    dpa = attention(qkv_format="thd", attn_mask_type="padding_causal")

    def call(q, k, cu):
        return dpa(q, k, k, cu_seqlens_q=cu, cu_seqlens_kv=cu, max_seqlen_q=3, max_seqlen_kv=3)

    compiled = torch.compile(call, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(q, k, layout.cu_seqlens), call(q, k, layout.cu_seqlens))


class TestWindow:
    x = torch.randn(1, 5, 4, 8)

    def test_the_diagonal_of_a_window_is_theirs(self):
        """At the bottom right unless the mask is causal from the top left, or it is said."""
        k = torch.randn(1, 7, 2, 8)
        dpa = attention(qkv_format="bshd", window_size=(1, 1), attn_mask_type="no_mask")
        rows = PackedLayout.from_lengths([5]), PackedLayout.from_lengths([7])
        for said, align in ((None, "bottom_right"), (True, "bottom_right"), (False, "top_left")):
            out = dpa(self.x, k, k, bottom_right_diagonal=said)
            expected = packed_attention(self.x[0], k[0], k[0], *rows, window=(1, 1), align=align)
            torch.testing.assert_close(out[0], expected.flatten(1))

    def test_minus_one_and_zero_means_no_window_where_the_mask_is_not_causal(self):
        k = self.x[:, :, :2]
        dpa = attention(qkv_format="bshd", attn_mask_type="no_mask")
        with pytest.warns(UserWarning, match=r"window_size is \(-1, 0\)"):
            assert dpa(self.x, k, k, window_size=(-1, 0)).equal(dpa(self.x, k, k))


class TestRefusals:
    x = torch.zeros(2, 3, 4, 8)

    def test_every_fault_of_the_constructor_at_once(self):
        with pytest.raises(ArgumentError) as raised:
            DotProductAttention(
                4,
                8,
                3,
                attention_dropout=0.1,
                qkv_format="bhsd",
                attn_mask_type="arbitrary",
                get_rng_state_tracker=len,
                cp_group=1,
                softmax_type="learnable",
                return_max_logit=True,
                attention_type="both",
            )
        assert str(raised.value).splitlines() == [
            "cp_group is 1, expected None; hint: te_pkg.attention.context_parallel does that",
            "get_rng_state_tracker is <built-in function len>, expected None where there is dropout",
            "softmax_type is 'learnable', expected 'vanilla'",
            "return_max_logit is True, expected False",
            "attention_type is 'both', expected 'self' or 'cross'",
            "num_gqa_groups is 3, expected a divisor of num_attention_heads 4",
            "qkv_format is 'bhsd', expected one of 'sbhd', 'bshd', 'thd'",
            "attn_mask_type is 'arbitrary', expected one of 'no_mask', 'padding', 'causal', 'padding_causal', "
            "'causal_bottom_right', 'padding_causal_bottom_right'",
        ]

    @pytest.mark.parametrize(
        ("name", "value"),
        [
            ("core_attention_bias_type", "alibi"),
            ("core_attention_bias", 1),
            ("alibi_slopes", 2),
            ("inference_params", 3),
            ("fp8_output", True),
            ("bf16_backward", True),
            ("num_splits", 4),
            ("score_mod", len),
            ("score_mod_bprop", len),
            ("score_mod_tensors", {}),
            ("score_mod_bprop_tensors", {}),
            ("attn_mask_type", "arbitrary"),
            ("qkv_format", "hsbd"),
        ],
    )
    def test_what_is_not_supported_is_named_with_its_value(self, name, value):
        k = self.x[:, :, :2]
        with pytest.raises(ArgumentError) as raised:
            attention(qkv_format="bshd")(self.x, k, k, **{name: value})
        assert str(raised.value).startswith(f"{name} is {value!r}, expected ")

    def test_thd_wants_padding_offsets_and_its_shape(self):
        q = torch.zeros(5, 4, 8)
        k = q[:, :2]
        with pytest.raises(ArgumentError, match="attn_mask_type is 'causal', expected one with padding"):
            attention(qkv_format="thd")(q, k, k)
        dpa = attention(qkv_format="thd", attn_mask_type="padding")
        with pytest.raises(ArgumentTypeError, match="cu_seqlens_q must be a tensor"):
            dpa(q, k, k)
        with pytest.raises(LayoutError) as raised:
            dpa(self.x, q, k[..., :7])
        assert raised.value.faults == (
            "query_layer is 4-D with shape [2, 3, 4, 8], expected 3-D [t, h, d]",
            "key_layer ends in [4, 8], expected [2, 8], heads and their size",
            "value_layer ends in [2, 7], expected [2, 8], heads and their size",
        )

    def test_a_padded_batch_wants_to_know_its_lengths(self):
        k = self.x[:, :, :2]
        dpa = attention(qkv_format="bshd", attn_mask_type="padding")
        with pytest.raises(ArgumentTypeError, match="cu_seqlens_q or attention_mask must be a tensor"):
            dpa(self.x, k, k)
        with pytest.raises(LayoutError, match=r"attention_mask of q has shape \[2, 1, 1, 4\], expected \[2, 1, 1, 3\]"):
            dpa(self.x, k, k, attention_mask=torch.zeros(2, 1, 1, 4, dtype=torch.bool))


def test_what_only_says_where_they_compute_is_accepted():
    x = torch.randn(2, 3, 4, 8)
    k = x[:, :, :2]
    dpa = attention(
        qkv_format="bshd",
        sequence_parallel=True,
        get_rng_state_tracker=len,
        attention_dropout=0.0,
        cp_global_ranks=[0],
        cp_stream=object(),
        cp_comm_type="a2a",
        name="layer",
    )
    out = dpa(x, k, k, checkpoint_core_attention=True, fast_zero_fill=False, num_splits=None)
    assert out.equal(attention(qkv_format="bshd")(x, k, k))
    assert not list(dpa.parameters())


CONSTRUCTOR = """
num_attention_heads kv_channels num_gqa_groups attention_dropout qkv_format attn_mask_type window_size
bottom_right_diagonal sequence_parallel tp_size get_rng_state_tracker tp_group layer_number attention_type
cp_group cp_global_ranks cp_stream cp_comm_type softmax_scale softmax_type return_max_logit name
"""
CALL = """
query_layer key_layer value_layer attention_mask qkv_format cu_seqlens_q cu_seqlens_kv cu_seqlens_q_padded
cu_seqlens_kv_padded max_seqlen_q max_seqlen_kv attn_mask_type window_size bottom_right_diagonal
checkpoint_core_attention core_attention_bias_type core_attention_bias alibi_slopes fast_zero_fill inference_params
pad_between_seqs fp8_output bf16_backward num_splits
"""


def test_names_order_and_defaults_of_the_arguments():
    """As in the public source of Transformer Engine."""
    made = inspect.signature(DotProductAttention.__init__).parameters
    called = inspect.signature(DotProductAttention.forward).parameters
    assert list(made)[1:] == CONSTRUCTOR.split()
    assert list(called)[1 : 1 + len(CALL.split())] == CALL.split()
    assert (made["qkv_format"].default, made["attn_mask_type"].default) == ("sbhd", "causal")
    assert called["core_attention_bias_type"].default == "no_bias"
    assert called["pad_between_seqs"].default is None


def test_no_row_of_an_empty_batch_is_needed():
    dpa = attention(qkv_format="bshd", attn_mask_type="causal")
    for shape in ((0, 3), (2, 0)):
        out = dpa(torch.zeros(*shape, 4, 8), torch.zeros(*shape, 2, 8), torch.zeros(*shape, 2, 8))
        assert out.shape == (*shape, 32)


def test_docstrings_are_true():
    assert doctest.testmod(sys.modules["te_pkg.attention.module"], extraglobs={"torch": torch}).failed == 0
