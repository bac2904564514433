"""Layouts on their way: to devices, through copies and files, out of inference mode; all that is known goes along."""

from __future__ import annotations

import copy
import dataclasses
import io
import pickle
from collections.abc import Callable

import hypothesis
import pytest
import torch

from te_pkg.attention import PackedLayout
from te_pkg.attention.capture import mark_capturing
from tests.attention.layouts import LayoutCase, assert_same, facts, layouts
from tests.attention.questions import offsets

TWINS: dict[str, Callable[[PackedLayout], PackedLayout]] = {
    "copy": copy.copy,
    "deep copy": copy.deepcopy,
    "pickle": lambda made: pickle.loads(pickle.dumps(made)),
}


class TestTravel:
    def test_to_where_it_is_is_itself(self):
        made = PackedLayout.from_lengths([3, 2], 4)
        assert made.to("cpu") is made
        assert made.to(torch.device("cpu", 0)) is made

    @hypothesis.given(layouts(host=None))
    def test_host_facts_go_along(self, case):
        moved = case.layout.to("meta")
        assert moved.device.type == moved.cu_seqlens_padded.device.type == "meta"
        assert facts(moved) == facts(case.layout)
        if case.layout.lengths is not None:
            assert moved.padding() == case.rows.kinds
        assert (moved.cu_seqlens is moved.cu_seqlens_padded) == (
            case.layout.cu_seqlens is case.layout.cu_seqlens_padded
        )

    @hypothesis.given(layouts(host=None))
    @pytest.mark.parametrize("twin", TWINS.values(), ids=TWINS)
    def test_twins_are_alike(self, twin: Callable[[PackedLayout], PackedLayout], case: LayoutCase):
        made = twin(case.layout)
        assert_same(made, case.layout)
        assert made.padding() == case.rows.kinds
        assert (made.cu_seqlens is made.cu_seqlens_padded) == (case.layout.cu_seqlens is case.layout.cu_seqlens_padded)

    @pytest.mark.parametrize("made", [PackedLayout.from_lengths([3, 2], 4), PackedLayout.from_lengths([3, 2])])
    @pytest.mark.parametrize("twin", TWINS.values(), ids=TWINS)
    def test_twins_made_under_inference_mode_are_ordinary_and_train(self, twin, made):
        with torch.inference_mode():
            other = twin(made)
        assert_same(other, made)
        assert not other.cu_seqlens.is_inference()
        assert not other.cu_seqlens_padded.is_inference()
        assert (other.cu_seqlens is other.cu_seqlens_padded) == (made.cu_seqlens is made.cu_seqlens_padded)
        weight = torch.ones(9, 1, requires_grad=True)
        torch.index_select(weight, 0, other.cu_seqlens_padded).sum().backward()
        assert weight.grad.sum() == 3

    def test_a_deep_copy_shares_no_memory(self):
        made = PackedLayout.from_lengths([3, 2], 4)
        copy.deepcopy(made).cu_seqlens.zero_()
        assert made.cu_seqlens.tolist() == [0, 3, 5]

    def test_torch_saves_it(self):
        buffer = io.BytesIO()
        torch.save(PackedLayout.from_lengths([3, 2], 4), buffer)
        buffer.seek(0)
        assert_same(torch.load(buffer, weights_only=False), PackedLayout.from_lengths([3, 2], 4))

    def test_it_is_frozen(self):
        made = PackedLayout.from_lengths([3])
        with pytest.raises(dataclasses.FrozenInstanceError):
            made.total_tokens = 4

    def test_equal_is_identical_and_hashes(self):
        made = PackedLayout.from_lengths([3])
        assert made == made
        assert made != PackedLayout.from_lengths([3])
        assert len({made, copy.copy(made)}) == 2


MAKERS = {
    "from_lengths": lambda: PackedLayout.from_lengths([3, 2], 4),
    "from_lengths of a tensor": lambda: PackedLayout.from_lengths(torch.tensor([3, 2]), 4),
    "from_cu_seqlens": lambda: PackedLayout.from_cu_seqlens(offsets(0, 3, 5), offsets(0, 4, 8)),
    "from_cu_seqlens int64": lambda: PackedLayout.from_cu_seqlens(offsets(0, 3, 5, dtype=torch.int64)),
    "from_token_mask": lambda: PackedLayout.from_token_mask(torch.ones(2, 3, dtype=torch.bool)),
    "from_position_ids": lambda: PackedLayout.from_position_ids(torch.tensor([0, 1, 0])),
    "padded_batch": lambda: PackedLayout.padded_batch([3, 1], 4),
    "padded_batch of a tensor": lambda: PackedLayout.padded_batch(torch.tensor([3, 1]), 4),
    "padded_to": lambda: PackedLayout.from_lengths([3, 2]).padded_to(4),
    "to": lambda: PackedLayout.from_lengths([3, 2]).to("meta"),
    "empty": lambda: PackedLayout.from_lengths([]),
}


@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
class TestInferenceMode:
    def test_tensors_are_ordinary(self, make):
        with torch.inference_mode():
            made = make()
            derived = [made.token_mask(), made.position_ids(), made.sequence_ids(), made.padding_rows()]
        assert not made.cu_seqlens.is_inference()
        assert not made.cu_seqlens_padded.is_inference()
        assert not any(tensor.is_inference() for tensor in derived)


@pytest.mark.parametrize("tensor", [offsets(0, 3, 5), offsets(0, 3, 5, dtype=torch.int64)])
def test_offsets_from_a_teacher_become_ordinary(tensor):
    with torch.inference_mode():
        cu = tensor.clone()
        made = PackedLayout.from_cu_seqlens(cu)
        with mark_capturing():
            captured = PackedLayout.from_cu_seqlens(cu, None, 5, 3)
    for one in (made, captured, PackedLayout.from_cu_seqlens(cu)):
        assert not one.cu_seqlens.is_inference()
        assert one.cu_seqlens.tolist() == [0, 3, 5]
