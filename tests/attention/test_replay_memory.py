"""A replay check follows its buffers: tensors that stay the same objects, but are given other memory."""

from __future__ import annotations

import pytest
import torch

from te_pkg.attention import StalePaddingDecision
from tests.attention.questions import capture, offsets


def _set(tensor: torch.Tensor, *values: int) -> None:
    tensor.set_(offsets(*values))


def _data(tensor: torch.Tensor, *values: int) -> None:
    tensor.data = offsets(*values)


def _wider(tensor: torch.Tensor, *values: int) -> None:
    tensor.data = offsets(*values, dtype=torch.int64)


def _resize(tensor: torch.Tensor, *values: int) -> None:
    tensor.resize_(len(values)).copy_(offsets(*values))


class TestOtherMemory:
    """Between two captures a tensor stays the same object, but not where it was."""

    @pytest.mark.parametrize(
        ("move", "values", "refill"),
        [
            (_set, (0, 4, 8), (0, 5, 9)),
            (_data, (0, 4, 8), (0, 5, 9)),
            (_wider, (0, 4, 8), (0, 5, 9)),
            (_resize, (0, 1, 2, 3, 4), (0, 1, 2, 4, 9)),
            (_resize, (0, 4), (1, 4)),
        ],
    )
    def test_a_graph_that_is_captured_afterwards_checks_the_new_memory(self, memory, move, values, refill):
        cu, padded = offsets(0, 3, 8), offsets(0, 3, 8)
        capture(memory, cu, cu, padded, padded)
        move(cu, *values)
        move(padded, *values)
        graph, answer = capture(memory, cu, cu, padded, padded)
        assert answer is False
        padded.copy_(offsets(*refill))
        graph.replay()
        with pytest.raises(StalePaddingDecision):
            memory.verify_replay()

    @pytest.mark.parametrize("move", [_set, _data])
    def test_a_graph_that_was_captured_before_still_checks_the_old_memory(self, memory, move):
        cu, padded = offsets(0, 3, 8), offsets(0, 3, 8)
        old = padded.detach()
        first, _ = capture(memory, cu, cu, padded, padded)
        move(cu, 0, 4, 8)
        move(padded, 0, 4, 8)
        capture(memory, cu, cu, padded, padded)
        old.copy_(offsets(0, 5, 9))
        first.replay()
        with pytest.raises(StalePaddingDecision):
            memory.verify_replay()

    def test_a_refill_in_place_shares_one_check_between_graphs(self, memory):
        cu, padded = offsets(0, 3, 8), offsets(0, 3, 8)
        capture(memory, cu, cu, padded, padded)
        noted = memory.info().bytes
        for tensor in (cu, padded):
            tensor.copy_(offsets(0, 4, 8))
        capture(memory, cu, cu, padded, padded)
        assert memory.info().bytes == noted
