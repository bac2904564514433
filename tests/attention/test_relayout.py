"""Moves between layouts: right rows, right errors, into memory that is given, and without waiting for the device."""

from __future__ import annotations

import doctest
import importlib.util
import inspect
import sys

import hypothesis
import pytest
import torch
from hypothesis import strategies as st

from te_pkg.attention import PackedLayout, clear_caches, pack, pad_rows, relayout, unpack, unpad_rows
from te_pkg.attention.capture import mark_capturing
from te_pkg.attention.errors import (
    ArgumentTypeError,
    AttentionError,
    GradientError,
    HostReadError,
    KernelUnavailableError,
    LayoutError,
)
from tests.attention.layouts import layouts, without_host_facts
from tests.attention.no_sync import forbid_sync
from tests.attention.row_moves import expected_rows, kernel_named, moves, poisoned_memory, random_rows, same_bits

TRITON = pytest.param(
    "triton", marks=pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton is not installed")
)
SOURCE = PackedLayout.from_lengths([3, 0, 2], pad_to_multiple=4, total_tokens=9)
TARGET = PackedLayout.from_lengths([3, 0, 2], pad_to_multiple=3)
BATCH = PackedLayout.padded_batch([3, 0, 2], 4)


class TestRelayout:
    @hypothesis.given(move=moves(), trailing=st.sampled_from([(), (3,), (2, 4), (0,)]), known=st.booleans())
    @hypothesis.settings(deadline=None)
    def test_any_layout_to_any_other(self, move, trailing, known):
        x = random_rows(move.source.total_tokens, trailing, torch.float32)
        source, target = move.source, move.target
        if not known:
            source, target = without_host_facts(source), without_host_facts(target)
        with poisoned_memory():
            out = relayout(x, source, target)
        assert same_bits(out, expected_rows(x, move.source_rows, move.target_rows, 0))

    @hypothesis.given(move=moves())
    @hypothesis.settings(deadline=None)
    def test_there_and_back_is_what_clears_the_padding(self, move):
        x = torch.randn(move.source.total_tokens, 2)
        back = relayout(relayout(x, move.source, move.target), move.target, move.source)
        assert torch.equal(back, x * move.source.token_mask()[:, None])

    def test_the_fill(self):
        assert relayout(torch.ones(9), SOURCE, TARGET, fill=-2).tolist() == [1, 1, 1, 1, 1, -2]
        assert relayout(torch.ones(9).bool(), SOURCE, TARGET, fill=True).all()

    @pytest.mark.parametrize(
        ("fill", "dtype"),
        [
            (1j, torch.float32),
            (0.5, torch.int32),
            (float("nan"), torch.int8),
            ("0", torch.float32),
            (torch.tensor(1.0), torch.float32),
        ],
        ids=str,
    )
    def test_a_fill_that_the_dtype_cannot_hold_is_refused(self, fill, dtype):
        with pytest.raises(ArgumentTypeError, match=r"^fill is .*, expected a number that torch\.\w+ can hold$"):
            relayout(torch.zeros(9, dtype=dtype), SOURCE, TARGET, fill=fill)

    @pytest.mark.parametrize("kernel", ["reference", "cpu", TRITON])
    def test_a_kernel_of_ones_choice(self, kernel, monkeypatch):
        module = kernel_named(kernel)
        x = torch.randn(9, 2, requires_grad=True)
        expected = relayout(x, SOURCE, TARGET)
        monkeypatch.setattr("te_pkg.attention.kernels._load", lambda name: module)
        out = relayout(x, SOURCE, TARGET, kernel=kernel)
        assert torch.equal(out, expected)
        out.sum().backward()
        assert x.grad[:, 0].tolist() == [1, 1, 1, 0, 1, 1, 0, 0, 0]

    def test_a_kernel_that_does_not_exist(self):
        with pytest.raises(KernelUnavailableError, match="no such kernel"):
            relayout(torch.zeros(9), SOURCE, TARGET, kernel="cuda")

    def test_conjugated_lazily(self):
        x = torch.randn(9, dtype=torch.complex64)
        assert torch.equal(relayout(x.conj(), SOURCE, TARGET), relayout(x.conj().resolve_conj(), SOURCE, TARGET))

    def test_under_inference_mode(self):
        with torch.inference_mode():
            x = torch.randn(9, 2)
            out = relayout(x, SOURCE, TARGET)
            assert out.is_inference()
        assert torch.equal(relayout(x, SOURCE, TARGET), out)

    def test_on_meta_tensors(self):
        source, target = (
            PackedLayout.from_lengths(torch.ones(2, device="meta").int(), m, 4 * m, max_seqlen=4) for m in (1, 2)
        )
        out = relayout(torch.zeros(4, 3, device="meta"), source, target)
        assert (out.shape, out.device.type) == ((8, 3), "meta")


class TestWrongBuffers:
    def test_every_fault_is_named_with_both_numbers(self):
        with pytest.raises(LayoutError) as caught:
            relayout(
                torch.zeros(8, 2),
                SOURCE,
                PackedLayout.from_lengths([3, 2]),
                out=torch.zeros(5, 3, dtype=torch.float64, device="meta"),
            )
        assert caught.value.faults == (
            "x has 8 rows, expected 9 as source",
            "target has 2 sequences, expected 3 as source",
            "out has shape [5, 3], expected [5, 2]",
            "out is torch.float64, expected torch.float32 as x",
            "out is on meta, expected cpu as x",
        )
        assert isinstance(caught.value, ValueError)
        assert isinstance(caught.value, AttentionError)

    def test_layouts_of_other_lengths(self):
        with pytest.raises(LayoutError, match=r"^target: sequence 1 has 1 rows, expected 0 as in source$"):
            relayout(torch.zeros(9), SOURCE, PackedLayout.from_lengths([3, 1, 2]))

    def test_another_device(self):
        target = PackedLayout.from_lengths(torch.ones(3, device="meta").int(), total_tokens=3, max_seqlen=1)
        with pytest.raises(LayoutError, match=r"^target is on meta, expected cpu as x$"):
            relayout(torch.zeros(9), SOURCE, target)
        with pytest.raises(LayoutError, match=r"^x is on meta, expected cpu as source"):
            relayout(torch.zeros(9, device="meta"), SOURCE, TARGET)

    @pytest.mark.parametrize("function", [relayout, pack, unpack, pad_rows, unpad_rows])
    def test_no_tensor(self, function):
        arguments = {"layout": SOURCE, "source": SOURCE, "target": TARGET, "splits": [1], "align": 1, "x": [1.0]}
        names = [name for name in inspect.signature(function).parameters if name in arguments]
        with pytest.raises(ArgumentTypeError, match=r"^x must be a tensor, got \[1\.0\]$"):
            function(**{name: arguments[name] for name in names})

    def test_no_dimension(self):
        with pytest.raises(LayoutError, match=r"^x is 0-D, expected \[t, ...\]$"):
            relayout(torch.tensor(1.0), SOURCE, TARGET)
        with pytest.raises(LayoutError, match=r"^x is 1-D with shape \[9\], expected \[b, s, ...\]$"):
            pack(torch.zeros(9), SOURCE)

    @pytest.mark.parametrize(
        ("cu_seqlens", "slots", "fault"),
        [
            ([0, 5, 3], [0, 5, 9], "cu_seqlens decreases at entry 2"),
            ([1, 3, 5], [0, 5, 9], "cu_seqlens does not start at 0: entry 0 is 1"),
            ([0, 3, 5], [2, 5, 9], "cu_seqlens_padded does not start at 0: entry 0 is 2"),
            ([0, 3, 5], [0, 5, 10], "total_tokens 9 is less than 10"),
            ([0, 3, 5], [0, 2, 9], "slot 0 holds 2 rows, sequence 0 has 3"),
        ],
    )
    def test_offsets_that_nobody_checked_are_checked_where_they_are_read(self, cu_seqlens, slots, fault):
        with mark_capturing():
            wrong = PackedLayout.from_cu_seqlens(torch.tensor(cu_seqlens), torch.tensor(slots), 9, 5)
        with pytest.raises(LayoutError, match=fault):
            relayout(torch.zeros(9), wrong, wrong)


class TestOut:
    @hypothesis.given(move=moves(), known=st.booleans())
    @hypothesis.settings(deadline=None)
    def test_every_row_is_written(self, move, known):
        x = torch.randn(move.source.total_tokens, 3)
        source = move.source if known else without_host_facts(move.source)
        out = torch.full((move.target.total_tokens, 3), float("nan"))
        assert relayout(x, source, move.target, out=out) is out
        assert torch.equal(out, relayout(x, move.source, move.target))

    def test_the_change_is_counted(self):
        out = torch.empty(TARGET.total_tokens, 2)
        before = out._version
        relayout(torch.zeros(9, 2), SOURCE, TARGET, out=out)
        assert out._version > before

    def test_gradients_do_not_flow_through_it(self):
        out = torch.empty(TARGET.total_tokens)
        x = torch.zeros(9, requires_grad=True)
        with pytest.raises(GradientError, match=r"^x requires a gradient, which cannot flow through out; hint"):
            relayout(x, SOURCE, TARGET, out=out)
        with pytest.raises(GradientError, match=r"^out requires a gradient"):
            relayout(x.detach(), SOURCE, TARGET, out=out.clone().requires_grad_())
        with torch.no_grad():
            relayout(x, SOURCE, TARGET, out=out)
        assert issubclass(GradientError, RuntimeError)

    def test_the_memory_of_x_is_refused(self):
        whole = torch.zeros(20)
        with pytest.raises(LayoutError, match=r"^out lies in the memory of x, expected memory of its own$"):
            relayout(whole[:9], SOURCE, TARGET, out=whole[8:14])
        relayout(whole[:9], SOURCE, TARGET, out=whole[9:15])
        relayout(whole[14:14], *[PackedLayout.from_lengths([])] * 2, out=whole[14:14])

    def test_one_place_for_many_elements_is_refused(self):
        with pytest.raises(LayoutError, match=r"several elements in one place \(strides \[1, 0\]\)"):
            relayout(torch.zeros(9, 2), SOURCE, TARGET, out=torch.zeros(TARGET.total_tokens, 1).expand(-1, 2))

    def test_strided_views_of_one_buffer_may_be_source_and_target(self):
        for shift in (0, 1):  # beside each other, or partly in one place
            projection = torch.randn(9, 4)
            expected = relayout(projection[:, :2].clone(), SOURCE, SOURCE)
            relayout(projection[:, :2], SOURCE, SOURCE, out=projection[:, 2 - shift : 4 - shift])
            assert torch.equal(projection[:, 2 - shift : 4 - shift], expected)

    def test_conjugated_lazily(self):
        x = torch.randn(9, dtype=torch.complex64)
        out = torch.empty(TARGET.total_tokens, dtype=torch.complex64).conj()
        relayout(x, SOURCE, TARGET, out=out)
        assert torch.equal(out.resolve_conj(), relayout(x, SOURCE, TARGET))


class TestPackAndUnpack:
    @hypothesis.given(case=layouts(host=None), spare=st.integers(0, 3), trailing=st.sampled_from([(), (2,), (2, 0)]))
    @hypothesis.settings(deadline=None)
    def test_are_moves_from_and_to_the_padded_batch(self, case, spare, trailing):
        layout, rows = case
        longest = layout.max_seqlen + spare
        batch = torch.randn(layout.num_sequences, longest, *trailing)
        padded = PackedLayout.padded_batch(rows.lengths, longest)
        packed = pack(batch, layout)
        assert torch.equal(packed, relayout(batch.flatten(0, 1), padded, layout))
        again = unpack(packed, layout, longest)
        assert torch.equal(again, relayout(packed, layout, padded).view_as(batch))
        assert torch.equal(pack(again, layout), packed)

    def test_sequences_that_do_not_lie_one_behind_the_other(self):
        x = torch.randn(4, 3, 2)
        assert torch.equal(pack(x.transpose(0, 1), TARGET), pack(x.transpose(0, 1).contiguous(), TARGET))
        out = torch.empty(4, 3, 2)
        unpack(pack(x.transpose(0, 1), TARGET), TARGET, 4, out=out.transpose(0, 1))
        assert torch.equal(out.transpose(0, 1), unpack(pack(x.transpose(0, 1), TARGET), TARGET, 4))

    def test_into_given_memory(self):
        batch = torch.randn(3, 4, 2)
        rows, again = torch.empty(TARGET.total_tokens, 2), torch.empty(3, 4, 2)
        assert pack(batch, TARGET, out=rows) is rows
        assert unpack(rows, TARGET, 4, out=again) is again
        assert torch.equal(again, unpack(pack(batch, TARGET), TARGET, 4))

    def test_the_longest_sequence_of_the_layout_is_the_default(self):
        assert unpack(torch.ones(TARGET.total_tokens), TARGET).tolist() == [[1, 1, 1], [0, 0, 0], [1, 1, 0]]

    def test_a_batch_that_does_not_fit(self):
        with pytest.raises(LayoutError) as caught:
            pack(torch.zeros(2, 2), TARGET)
        assert caught.value.faults == (
            "x has 2 sequences, expected 3 as layout",
            "x has 2 rows for each sequence, expected at least 3, the longest sequence of layout",
        )
        with pytest.raises(
            LayoutError, match=r"^max_seqlen is 2, expected at least 3, the longest sequence of layout$"
        ):
            unpack(torch.zeros(TARGET.total_tokens), TARGET, 2)

    def test_an_upper_bound_that_the_layout_was_given_is_none_for_the_batch(self):
        layout = PackedLayout.from_lengths([2, 1], max_seqlen=100)
        assert pack(torch.ones(2, 2), layout).tolist() == [1, 1, 1]
        assert unpack(torch.ones(3), layout, 2).tolist() == [[1, 1], [1, 0]]


class TestRowsOfGroups:
    @hypothesis.given(splits=st.lists(st.integers(0, 9), max_size=5), align=st.integers(1, 8))
    @hypothesis.settings(deadline=None)
    def test_each_group_is_padded_to_a_multiple_and_back(self, splits, align):
        x = torch.randn(sum(splits), 3)
        padded, padded_splits = pad_rows(x, splits, align)
        assert padded_splits == [-(-split // align) * align for split in splits]
        for rows, group in zip(padded.split(padded_splits), x.split(splits), strict=True):
            assert torch.equal(rows[: len(group)], group)
            assert not rows[len(group) :].any()
        assert torch.equal(unpad_rows(padded, splits, align), x)

    @pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
    def test_a_tensor_for_a_tensor(self, dtype):
        splits = torch.tensor([3, 0, 1], dtype=dtype)
        padded, padded_splits = pad_rows(torch.ones(4), splits, 2)
        assert padded.tolist() == [1, 1, 1, 0, 1, 0]
        assert padded_splits.tolist() == [4, 0, 2]
        assert padded_splits.dtype == dtype
        assert unpad_rows(padded, splits, 2).tolist() == [1] * 4

    def test_nothing_to_pad_is_no_work(self):
        x = torch.ones(6)
        assert pad_rows(x, [4, 2], 2)[0] is x
        assert unpad_rows(x, [4, 2], 2) is x

    def test_the_sum_of_the_splits_is_the_number_of_rows(self):
        with pytest.raises(LayoutError, match=r"^x has 4 rows, expected 5 as the sum of splits$"):
            pad_rows(torch.ones(4), [3, 2], 2)
        with pytest.raises(LayoutError, match=r"^x has 4 rows, expected 6 as the sum of the padded splits$"):
            unpad_rows(torch.ones(4), [3, 2], 2)

    def test_splits_and_align_that_cannot_be_meant(self):
        with pytest.raises(LayoutError) as caught:
            pad_rows(torch.ones(4), torch.tensor([[1.0]]), 0)
        assert caught.value.faults[0] == "align is 0, expected at least 1"
        assert caught.value.faults[1].startswith("splits is 2-D")
        with pytest.raises(LayoutError, match="is -1, expected at least 0"):
            pad_rows(torch.ones(4), [5, -1], 2)

    def test_a_tensor_under_capture_says_what_to_do(self):
        with mark_capturing(), pytest.raises(HostReadError, match="hint: make two layouts before, and use relayout"):
            pad_rows(torch.ones(4), torch.tensor([3, 1]), 2)


class TestWithoutASync:
    """As under capture, where the offsets of a graph may be refilled, and nothing that the host knows may be used."""

    @hypothesis.given(move=moves())
    @hypothesis.settings(deadline=None)
    @pytest.mark.parametrize("mode", [True, False])
    def test_under_capture(self, mode, move):
        x = torch.randn(move.source.total_tokens, 3, requires_grad=True)
        batch = torch.randn(move.source.num_sequences, move.source.max_seqlen, 3)
        expected = relayout(x, move.source, move.target), pack(batch, move.target)
        out = torch.empty_like(expected[0])
        with mark_capturing(), forbid_sync(mode=mode, uploads=False):
            moved = relayout(x, move.source, move.target, fill=0)
            moved.backward(torch.ones_like(moved))
            relayout(x.detach(), move.source, move.target, out=out)
            packed = pack(batch, move.target)
            unpack(packed, move.target)
        assert torch.equal(moved, expected[0])
        assert torch.equal(out, expected[0])
        assert torch.equal(packed, expected[1])
        assert torch.equal(x.grad[:, 0], move.source.token_mask().float())

    @pytest.mark.parametrize("mode", [True, False])
    def test_with_lengths_on_the_host(self, mode):
        clear_caches()
        x = torch.randn(9, 2)
        with forbid_sync(mode=mode):
            rows = relayout(x, SOURCE, TARGET, fill=1.5)
            pack(unpack(rows, TARGET), TARGET)
            pad_rows(rows, [3, 3], 4)

    def test_a_graph_does_not_keep_what_the_host_knew(self):
        source, target = PackedLayout.from_lengths([3, 1], 4), PackedLayout.from_lengths([3, 1])
        source.cu_seqlens.copy_(torch.tensor([0, 1, 4]))
        target.cu_seqlens.copy_(torch.tensor([0, 1, 4]))
        with mark_capturing():
            assert relayout(torch.arange(8), source, target).tolist() == [0, 4, 5, 6]


def test_the_worked_examples_hold():
    assert doctest.testmod(sys.modules["te_pkg.attention.relayout"]).failed == 0
