"""Who may attend to whom: the dense mask is what a person would draw, the block mask is equal to it."""

from __future__ import annotations

import doctest
import itertools

import hypothesis
import pytest
import torch
from hypothesis import strategies as st
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn.attention.flex_attention import BlockMask, create_block_mask, create_mask, flex_attention

from te_pkg.attention import PackedLayout, masks
from te_pkg.attention.capture import mark_capturing
from te_pkg.attention.errors import ArgumentError, ArgumentTypeError, LayoutError
from tests.attention.layouts import LayoutCase, Rows, layout_of, layouts
from tests.attention.no_sync import forbid_sync

ALIGNMENTS = st.sampled_from(["top_left", "bottom_right"])
SIDES = st.integers(-1, 5)
WINDOWS = st.none() | st.tuples(SIDES, SIDES)


def drawn_by_hand(q: Rows, kv: Rows, causal: bool, align: str, window: tuple[int, int] | None) -> list[list[bool]]:
    left, right = window or (-1, -1)

    def may_attend(query: tuple[int, int] | None, key: tuple[int, int] | None) -> bool:
        if query is None or key is None or query[0] != key[0]:
            return False
        shift = kv.lengths[key[0]] - q.lengths[key[0]] if align == "bottom_right" else 0
        offset = key[1] - (query[1] + shift)
        return not (causal and offset > 0) and (left < 0 or offset >= -left) and (right < 0 or offset <= right)

    return [[may_attend(query, key) for key in kv.owners] for query in q.owners]


@st.composite
def pairs(draw: st.DrawFn, **limits: int) -> tuple[LayoutCase, LayoutCase]:
    """Layouts of queries and of keys with as many sequences."""
    q = draw(layouts(host=None, **limits))
    kv = draw(layouts(host=None, num_sequences=len(q.rows.lengths), **limits))
    return q, kv


class TestDense:
    @hypothesis.given(layouts(max_sequences=4, host=None), st.booleans(), ALIGNMENTS, WINDOWS)
    def test_of_one_layout(self, case, causal, align, window):
        mask = case.layout.attention_mask(causal=causal, align=align, window=window)
        assert mask.dtype == torch.bool
        assert mask.shape == (case.rows.total, case.rows.total)
        assert mask.tolist() == drawn_by_hand(case.rows, case.rows, causal, align, window)

    @hypothesis.given(pairs(max_sequences=3, max_length=6), st.booleans(), ALIGNMENTS, WINDOWS)
    def test_of_two(self, pair, causal, align, window):
        q, kv = pair
        mask = q.layout.attention_mask(kv.layout, causal=causal, align=align, window=window)
        assert mask.shape == (q.rows.total, kv.rows.total)
        assert mask.tolist() == drawn_by_hand(q.rows, kv.rows, causal, align, window)

    def test_the_corners_that_align_names(self):
        q, kv = PackedLayout.from_lengths([2]), PackedLayout.from_lengths([4])
        assert q.attention_mask(kv, causal=True).int().tolist() == [[1, 0, 0, 0], [1, 1, 0, 0]]
        assert q.attention_mask(kv, causal=True, align="bottom_right").int().tolist() == [[1, 1, 1, 0], [1, 1, 1, 1]]

    def test_queries_without_keys(self):
        # flash-attention 443: only the last query of each sequence sees its one key.
        q, kv = PackedLayout.from_lengths([76, 34, 146]), PackedLayout.from_lengths([1, 1, 1])
        mask = q.attention_mask(kv, causal=True, align="bottom_right")
        assert mask.nonzero().tolist() == [[75, 0], [109, 1], [255, 2]]

    def test_zero_length_sequences(self):
        mask = PackedLayout.from_lengths([0, 1, 0, 1]).attention_mask(PackedLayout.from_lengths([0, 3, 0, 5]))
        assert mask.int().tolist() == [[1, 1, 1, 0, 0, 0, 0, 0], [0, 0, 0, 1, 1, 1, 1, 1]]

    def test_a_causal_window_sees_nothing_ahead(self):
        made = PackedLayout.from_lengths([4])
        mask = made.attention_mask(causal=True, window=(1, 3))
        assert torch.equal(mask, made.attention_mask(window=(1, 0)))

    def test_nothing_syncs(self):
        q, kv = PackedLayout.from_lengths([3, 2], 4), PackedLayout.from_lengths([1, 5], 4)
        for uses, causal in itertools.product((None, kv), (False, True)):
            with mark_capturing(), forbid_sync():
                q.attention_mask(uses, causal=causal, align="bottom_right", window=(2, 1))

    def test_no_rows(self):
        assert PackedLayout.from_lengths([]).attention_mask().shape == (0, 0)

    def test_fake_tensors(self):
        with FakeTensorMode():
            mask = PackedLayout.from_lengths([3, 2]).attention_mask(PackedLayout.from_lengths([4, 4]), causal=True)
        assert mask.shape == (5, 8)

    def test_under_inference_mode_it_is_ordinary(self):
        with torch.inference_mode():
            assert not PackedLayout.from_lengths([3]).attention_mask().is_inference()


def found_by_looking(q: PackedLayout, kv: PackedLayout, size: int, **arguments: object) -> BlockMask:
    """The block mask that torch makes of every pair of rows."""
    dense = q.attention_mask(kv, **arguments)
    return create_block_mask(
        lambda batch, head, row, column: dense[row, column], None, None, *dense.shape, device="cpu", BLOCK_SIZE=size
    )


def assert_same_blocks(found: BlockMask, expected: BlockMask) -> None:
    assert found.shape == expected.shape
    assert found.BLOCK_SIZE == expected.BLOCK_SIZE
    for counts, indices in (("kv_num_blocks", "kv_indices"), ("full_kv_num_blocks", "full_kv_indices")):
        assert getattr(found, counts).tolist() == getattr(expected, counts).tolist()
        assert getattr(found, indices).tolist() == getattr(expected, indices).tolist()
        assert getattr(found, indices).dtype == getattr(expected, indices).dtype
    for name in ("q_num_blocks", "q_indices", "full_q_num_blocks", "full_q_indices"):
        assert getattr(found, name).tolist() == getattr(expected, name).tolist()


class TestBlocks:
    @hypothesis.given(pairs(max_sequences=5), st.booleans(), ALIGNMENTS, WINDOWS, st.integers(1, 7))
    @hypothesis.settings(max_examples=300)
    def test_are_those_that_torch_finds_by_looking_at_every_pair(self, pair, causal, align, window, size):
        q, kv = (case.layout for case in pair)
        hypothesis.assume(q.total_tokens and kv.total_tokens)
        arguments = {"causal": causal, "align": align, "window": window}
        found = masks.block_mask(q, kv, **arguments, block_size=size)
        assert_same_blocks(found, found_by_looking(q, kv, size, **arguments))

    @pytest.mark.parametrize("align", ["top_left", "bottom_right"])
    @pytest.mark.parametrize(("causal", "window"), [(False, None), (True, None), (False, (40, 7)), (True, (130, -1))])
    def test_are_equal_to_the_dense_mask(self, causal, align, window):
        q = layout_of(Rows((130, 0, 277, 1), (160, 8, 277, 9), 500))
        kv = layout_of(Rows((20, 5, 400, 64), (32, 5, 450, 64), 571), host=False)
        for keys in (None, kv):
            arguments = {"causal": causal, "align": align, "window": window}
            dense = q.attention_mask(keys, **arguments)
            blocks = q.block_mask(keys, **arguments)
            assert blocks.shape == (1, 1, *dense.shape)
            assert torch.equal(create_mask(blocks.mask_mod, 1, 1, *dense.shape, device="cpu")[0, 0], dense)
            assert_same_blocks(blocks, found_by_looking(q, keys or q, 128, **arguments))

    def test_of_a_long_buffer_no_pair_of_rows_is_looked_at(self):
        made = PackedLayout.from_lengths([100_000, 31_072])
        blocks = made.block_mask(causal=True)
        assert blocks.shape == (1, 1, 131_072, 131_072)
        assert int(blocks.full_kv_num_blocks.sum()) > 781 * 780 // 2

    def test_nothing_syncs(self):
        q, kv = PackedLayout.from_lengths([3, 2], 4), PackedLayout.from_lengths([1, 5], 4)
        for mode in (True, False):
            with mark_capturing(), forbid_sync(mode=mode):
                q.block_mask(kv, causal=True, align="bottom_right", window=(2, 1))

    @pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile:UserWarning")
    def test_flex_attention_follows_them(self):
        made = layout_of(Rows((30, 0, 50), (40, 3, 60), 110))
        q, k, v = (torch.randn(1, 2, 110, 16, dtype=torch.float64) for _ in range(3))
        mask = made.attention_mask(causal=True)
        out = flex_attention(q, k, v, block_mask=made.block_mask(causal=True))
        scores = (q @ k.mT / 4).masked_fill(~mask, -torch.inf)
        expected = torch.nan_to_num(scores.softmax(-1)) @ v
        torch.testing.assert_close(out, expected)

    def test_a_side_without_rows_is_refused(self):
        empty = PackedLayout.from_lengths([0])
        with pytest.raises(LayoutError, match="the layout of the queries has 0 rows"):
            empty.block_mask(PackedLayout.from_lengths([3]))
        with pytest.raises(LayoutError, match="the layout of the keys has 0 rows"):
            PackedLayout.from_lengths([3]).block_mask(empty)


@pytest.mark.parametrize("method", ["attention_mask", "block_mask"])
class TestErrors:
    @pytest.fixture
    def ask(self, method):
        return getattr(PackedLayout.from_lengths([3, 2]), method)

    def test_another_number_of_sequences_or_device(self, ask):
        with pytest.raises(LayoutError) as caught:
            ask(PackedLayout.from_lengths([3], device="meta"))
        assert caught.value.faults == (
            "layout_kv has 1 sequences, expected 2 as the queries",
            "layout_kv is on meta, expected cpu as the queries",
        )

    def test_alignments(self, ask):
        with pytest.raises(ArgumentError, match="align is 'top_right', expected one of 'top_left', 'bottom_right'"):
            ask(align="top_right")

    @pytest.mark.parametrize("window", [(-2, 0), (0, -3)])
    def test_windows_out_of_range(self, ask, window):
        with pytest.raises(ArgumentError, match=r"window is \(.*\), expected \(left, right\) with -1 for unbounded"):
            ask(window=window)

    def test_every_fault_is_told_at_once(self, ask):
        with pytest.raises(ArgumentError) as caught:
            ask(PackedLayout.from_lengths([3]), align="x", window=(-3, 0))
        assert [line.split()[0] for line in str(caught.value).splitlines()] == ["window", "align", "layout_kv"]

    @pytest.mark.parametrize("keys", [5, "ab", torch.ones(2)])
    def test_keys_that_are_no_layout(self, ask, keys):
        with pytest.raises(ArgumentTypeError, match="layout_kv must be a PackedLayout or None, got "):
            ask(keys)

    @pytest.mark.parametrize("side", [2**31 - 2, 2**31 - 1, 2**31, 2**40, 2**63, 2**70])
    @pytest.mark.parametrize("align", ["top_left", "bottom_right"])
    def test_a_window_wider_than_any_buffer_is_one_without_bound(self, method, ask, align, side):
        keys = PackedLayout.from_lengths([1, 6])
        for window, unbounded in (((side, 1), (-1, 1)), ((1, side), (1, -1)), ((side, side), None)):
            wide, expected = ask(keys, align=align, window=window), ask(keys, align=align, window=unbounded)
            if method == "block_mask":
                wide, expected = wide.to_dense(), expected.to_dense()
            assert torch.equal(wide, expected)

    @pytest.mark.parametrize("window", [3, (1,), (1, 2, 3), (1.5, 2), "ab", (True, 1)])
    def test_windows_of_another_kind(self, ask, window):
        with pytest.raises(ArgumentTypeError, match="window"):
            ask(window=window)


def test_the_worked_examples_hold():
    assert doctest.testmod(masks).failed == 0
