"""Drop-ins for flash-attention's `bert_padding`: the same results for every mask, and gradients of both orders."""

from __future__ import annotations

import doctest
import inspect
import sys

import hypothesis
import pytest
import torch
from hypothesis import strategies as st
from torch._subclasses.fake_tensor import FakeTensorMode

from te_pkg.attention import PackedLayout, pack, pad_input, unpack, unpad_input
from te_pkg.attention.capture import mark_capturing
from te_pkg.attention.errors import ArgumentTypeError, HostReadError, LayoutError
from tests.attention.no_sync import forbid_sync
from tests.attention.row_moves import DTYPES, poisoned_memory, random_rows, same_bits

# Torch warns of itself where it loads forward derivatives.
pytestmark = pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")


@st.composite
def masks(draw: st.DrawFn) -> torch.Tensor:
    """Tokens anywhere: padding on the left, holes, whole rows without any."""
    batch, longest = draw(st.integers(0, 4)), draw(st.integers(0, 6))
    bits = draw(st.lists(st.booleans(), min_size=batch * longest, max_size=batch * longest))
    return torch.tensor(bits, dtype=torch.bool).view(batch, longest)


MASK = torch.tensor([[1, 1, 0, 1], [0, 0, 0, 0], [0, 1, 1, 0]]).bool()


def by_hand(x: torch.Tensor, kept: torch.Tensor) -> list[list[float]]:
    return [x[i, j].tolist() for i in range(kept.shape[0]) for j in range(kept.shape[1]) if kept[i, j]]


class TestUnpad:
    @hypothesis.given(mask=masks(), unused=st.booleans(), dtype=st.sampled_from([torch.bool, torch.int32, torch.int64]))
    @hypothesis.settings(deadline=None)
    def test_what_each_result_is(self, mask, unused, dtype):
        x = torch.randn(*mask.shape, 2)
        other = torch.rand(mask.shape) < 0.3
        kept = mask | other if unused else mask
        with poisoned_memory():
            rows, indices, cu_seqlens, longest, seqused = unpad_input(
                x, mask.to(dtype), other.to(dtype) if unused else None
            )
        assert rows.tolist() == by_hand(x, kept)
        assert indices.tolist() == [i for i, keep in enumerate(kept.flatten().tolist()) if keep]
        assert cu_seqlens.tolist() == [0, *kept.sum(1).cumsum(0).tolist()]
        assert (longest, type(longest)) == (max(kept.sum(1).tolist(), default=0), int)
        assert seqused.tolist() == mask.sum(1).tolist()
        assert (indices.dtype, cu_seqlens.dtype, seqused.dtype) == (torch.int64, torch.int32, torch.int32)

    def test_arguments_are_named_and_ordered_as_in_flash_attention(self):
        assert list(inspect.signature(unpad_input).parameters) == ["hidden_states", "attention_mask", "unused_mask"]
        assert list(inspect.signature(pad_input).parameters) == ["hidden_states", "indices", "batch", "seqlen"]

    def test_numbers_other_than_0_are_tokens(self):
        assert unpad_input(torch.ones(1, 3, 1), torch.tensor([[2, 0, -1]]))[2].tolist() == [0, 2]

    def test_is_what_pack_does_where_padding_is_on_the_right(self):
        lengths = torch.tensor([2, 0, 4])
        x = torch.randn(3, 4, 5)
        rows, _, cu_seqlens, longest, _ = unpad_input(x, torch.arange(4) < lengths[:, None])
        layout = PackedLayout.from_cu_seqlens(cu_seqlens)
        assert torch.equal(rows, pack(x, layout))
        assert longest == layout.max_seqlen

    def test_every_fault_is_named(self):
        with pytest.raises(LayoutError) as caught:
            unpad_input(torch.zeros(2, 3, 1), torch.zeros(3, 2), torch.zeros(2, 3, device="meta").bool())
        assert caught.value.faults == (
            "attention_mask has shape [3, 2], expected [2, 3] as hidden_states",
            "attention_mask is torch.float32, expected bool or integers",
            "unused_mask is on meta, expected cpu as hidden_states",
        )
        with pytest.raises(LayoutError, match=r"^hidden_states is 1-D, expected \[b, s, ...\]"):
            unpad_input(torch.zeros(2), torch.zeros(2).bool())
        with pytest.raises(ArgumentTypeError, match=r"^attention_mask must be a tensor"):
            unpad_input(torch.zeros(2, 3), [[1, 1, 1]])


class TestPad:
    @hypothesis.given(mask=masks())
    @hypothesis.settings(deadline=None)
    def test_is_the_inverse_with_zeros_elsewhere(self, mask):
        x = torch.randn(*mask.shape, 2)
        rows, indices, *_ = unpad_input(x, mask)
        with poisoned_memory():
            again = pad_input(rows, indices, *mask.shape)
        assert torch.equal(again, torch.where(mask[..., None], x, 0))

    @pytest.mark.parametrize("dtype", DTYPES, ids=str)
    @pytest.mark.parametrize("trailing", [(), (3,), (2, 8)])
    def test_every_dtype_and_shape(self, dtype, trailing):
        x = random_rows(12, trailing, dtype).view(3, 4, *trailing)
        rows, indices, *_ = unpad_input(x, MASK)
        assert same_bits(unpad_input(pad_input(rows, indices, 3, 4), MASK)[0], rows)
        bits = pad_input(rows, indices, 3, 4).unsqueeze(-1).view(torch.uint8)
        assert torch.equal(bits[MASK], x.unsqueeze(-1).view(torch.uint8)[MASK])
        assert not bits[~MASK].any()

    def test_strided_and_conjugated_rows(self):
        x = torch.randn(4, 3, 2, dtype=torch.complex64).transpose(0, 1)
        rows, indices, *_ = unpad_input(x.conj(), MASK)
        assert torch.equal(rows, x.conj()[MASK])
        assert torch.equal(pad_input(rows.mT.contiguous().mT.conj(), indices, 3, 4)[MASK], rows.conj())

    def test_int32_indices(self):
        assert pad_input(torch.ones(2), torch.tensor([1, 3], dtype=torch.int32), 2, 2).tolist() == [[0, 1], [0, 1]]

    def test_every_fault_is_named(self):
        with pytest.raises(LayoutError) as caught:
            pad_input(torch.zeros(3), torch.zeros(2), -1, -2)
        assert caught.value.faults == (
            "indices has shape [2], expected [3] as hidden_states",
            "indices is torch.float32, expected int64 or int32",
            "batch is -1, expected at least 0",
            "seqlen is -2, expected at least 0",
        )
        with pytest.raises(LayoutError, match="hidden_states is 0-D"):
            pad_input(torch.tensor(1.0), torch.tensor([0]), 1, 1)

    def test_more_tokens_than_places(self):
        for sizes in ((0, 3), (2, 0), (1, 2)):
            with pytest.raises(
                LayoutError, match=r"^hidden_states has 3 rows, expected at most \d as batch \* seqlen$"
            ):
                pad_input(torch.zeros(3), torch.tensor([0, 1, 2]), *sizes)
        with pytest.raises(LayoutError, match=r"^batch \* seqlen is 1000000000000000000000000000000, expected at most"):
            pad_input(torch.zeros(3), torch.tensor([0, 1, 2]), 10**30, 1)
        assert pad_input(torch.zeros(0, 2), torch.zeros(0, dtype=torch.int64), 0, 3).shape == (0, 3, 2)

    def test_an_index_of_no_place(self):
        with pytest.raises(LayoutError) as caught:
            pad_input(torch.zeros(3), torch.tensor([6, 1, -1]), 2, 3)
        assert caught.value.faults == (
            "indices holds 6, expected 0 to 5, the places of the batch",
            "indices holds -1, expected 0 to 5, the places of the batch",
        )


class TestGradients:
    def test_first_and_second(self):
        x = torch.randn(3, 4, 2, dtype=torch.float64, requires_grad=True)
        rows, indices, *_ = unpad_input(x.detach(), MASK)
        rows.requires_grad_()
        for function, argument in (
            (lambda x: unpad_input(x, MASK)[0], x),
            (lambda r: pad_input(r, indices, 3, 4), rows),
        ):
            assert torch.autograd.gradcheck(function, argument, check_forward_ad=True, check_batched_grad=True)
            assert torch.autograd.gradgradcheck(function, argument, check_batched_grad=True)

    def test_garbage_stays_out(self):
        x = torch.where(MASK[..., None], torch.randn(3, 4, 2), float("nan")).requires_grad_()
        rows, indices, *_ = unpad_input(x, MASK)
        again = pad_input(rows, indices, 3, 4)
        again.backward(torch.where(MASK[..., None], 1.0, float("nan")).expand_as(again))
        assert again.isfinite().all()
        assert torch.equal(x.grad[..., 0], MASK.float())


def test_what_a_teacher_made_under_inference_mode_serves_training():
    x = torch.randn(3, 4, 2)
    with torch.inference_mode():
        rows, indices, cu_seqlens, _, seqused = unpad_input(x, MASK, ~MASK)
    assert rows.is_inference()
    assert not any(tensor.is_inference() for tensor in (indices, cu_seqlens, seqused))
    student = rows.clone().requires_grad_()
    pad_input(student, indices, 3, 4).sum().backward()
    assert student.grad.all()


def test_the_number_of_tokens_is_not_read_where_nothing_may_be():
    with mark_capturing(), pytest.raises(HostReadError, match="a CUDA graph is being captured; hint: use pack"):
        unpad_input(torch.zeros(3, 4), MASK)
    with pytest.raises(HostReadError, match="the tensors have no values"):
        unpad_input(torch.zeros(3, 4, device="meta"), MASK.to("meta"))


@pytest.mark.parametrize("strict", [True, False])
def test_an_exported_program_takes_any_mask(strict):
    class Unpad(torch.nn.Module):
        def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
            return unpad_input(x, mask)[0]

    x = torch.randn(3, 4, 2)
    program = torch.export.export(Unpad(), (x, MASK), strict=strict).module()
    assert torch.equal(program(x, ~MASK), x[~MASK])


def test_padding_never_waits_for_the_device():
    rows, indices = torch.randn(5, 2), MASK.flatten().nonzero().flatten()
    for mode in (True, False):
        with mark_capturing(), forbid_sync(mode=mode, uploads=False):
            pad_input(rows, indices, 3, 4)


def test_fake_tensors():
    with FakeTensorMode():
        assert pad_input(torch.empty(5, 2), torch.empty(5, dtype=torch.int64), 3, 4).shape == (3, 4, 2)


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_padding_compiles_without_a_graph_break(backend):
    compiled = torch.compile(lambda r, i: pad_input(r * 1, i, 3, 4), fullgraph=True, backend=backend)
    rows, indices = torch.randn(5, 2, requires_grad=True), MASK.flatten().nonzero().flatten()
    out = compiled(rows, indices)
    assert torch.equal(out, pad_input(rows, indices, 3, 4))
    out.sum().backward()
    assert rows.grad.eq(1).all()
    torch._dynamo.reset()


def test_unpack_of_the_offsets_is_the_batch_where_padding_is_on_the_right():
    mask = torch.arange(4) < torch.tensor([2, 0, 4])[:, None]
    rows, indices, cu_seqlens, _, _ = unpad_input(torch.randn(3, 4, 2), mask)
    assert torch.equal(unpack(rows, PackedLayout.from_cu_seqlens(cu_seqlens), 4), pad_input(rows, indices, 3, 4))


def test_the_worked_examples_hold():
    assert doctest.testmod(sys.modules["te_pkg.attention.bert_padding"]).failed == 0
