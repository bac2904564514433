"""Offsets of lengths, masks and positions: right numbers, and no sync that is not needed."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path

import hypothesis
import pytest
import torch
from hypothesis import strategies as st
from torch._dynamo.testing import CompileCounterWithBackend
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.export import Dim
from torch.fx.experimental.proxy_tensor import make_fx

from te_pkg.attention import (
    cu_seqlens_from_lengths,
    cu_seqlens_from_position_ids,
    cu_seqlens_from_token_mask,
    get_cu_seqlens,
)
from te_pkg.attention.capture import mark_capturing
from te_pkg.attention.errors import (
    ArgumentTypeError,
    CaptureError,
    HostReadError,
    LayoutError,
    OffsetOverflowError,
)
from tests.attention.no_sync import forbid_sync

DATA = Path(__file__).parents[1] / "data/attention"
INT32_MAX = 2**31 - 1


@pytest.fixture(autouse=True)
def _no_program_is_left_by_another_test() -> Iterator[None]:
    yield
    torch._dynamo.reset()


class TestFromLengths:
    @hypothesis.given(st.lists(st.integers(0, 99), max_size=40))
    def test_entry_i_is_the_sum_of_the_lengths_before(self, lengths):
        expected = [sum(lengths[:i]) for i in range(len(lengths) + 1)]
        for given in (lengths, torch.tensor(lengths, dtype=torch.int64), torch.tensor(lengths, dtype=torch.int32)):
            offsets = cu_seqlens_from_lengths(given)
            assert offsets.tolist() == expected
            assert offsets.dtype == torch.int32
        with mark_capturing():
            assert cu_seqlens_from_lengths(torch.tensor(lengths, dtype=torch.int64)).tolist() == expected

    def test_the_device_is_that_of_a_tensor_unless_another_is_named(self):
        assert cu_seqlens_from_lengths(torch.empty(2, dtype=torch.int32, device="meta")).device.type == "meta"
        assert cu_seqlens_from_lengths(torch.tensor([3, 2]), "meta").device.type == "meta"
        assert cu_seqlens_from_lengths([3, 2], "meta").shape == (3,)
        with torch.device("meta"):
            assert cu_seqlens_from_lengths([3, 2]).device.type == "meta"

    def test_strides_do_not_matter(self):
        assert cu_seqlens_from_lengths(torch.tensor([3, 9, 2, 9])[::2]).tolist() == [0, 3, 5]

    @pytest.mark.parametrize("lengths", [[3, -1], torch.tensor([3, -1])])
    def test_negative(self, lengths):
        with pytest.raises(LayoutError, match=r"^lengths\[1\] is -1, expected at least 0$"):
            cu_seqlens_from_lengths(lengths)

    @pytest.mark.parametrize("lengths", [[2**30, 2**30], torch.tensor([2**30, 2**30])])
    def test_beyond_int32(self, lengths):
        with pytest.raises(OffsetOverflowError, match=r"^2147483648 is beyond int32: the sum of 2 lengths") as caught:
            cu_seqlens_from_lengths(lengths)
        assert caught.value.offset == 2**31
        assert cu_seqlens_from_lengths([2**30, 2**30 - 1]).tolist() == [0, 2**30, INT32_MAX]

    @pytest.mark.parametrize("lengths", [[2.0], [True], ["3"], [None]])
    def test_no_integers(self, lengths):
        with pytest.raises(ArgumentTypeError, match=r"lengths\[0\] must be an integer"):
            cu_seqlens_from_lengths(lengths)

    @pytest.mark.parametrize("lengths", [torch.ones(2), torch.ones(1, 2, dtype=torch.int64), torch.tensor(2)])
    def test_tensors_of_another_kind(self, lengths):
        with pytest.raises(LayoutError, match=r"lengths is (floating point|2-D|0-D)"):
            cu_seqlens_from_lengths(lengths)

    def test_under_capture_the_host_stays_out(self):
        with mark_capturing(), pytest.raises(CaptureError, match="cannot be copied to cuda:0"):
            cu_seqlens_from_lengths([3, 2], "cuda:0")
        with mark_capturing(), pytest.raises(CaptureError, match="cannot be copied to cuda:0"):
            cu_seqlens_from_lengths(torch.tensor([3, 2]), "cuda:0")


class TestFromTokenMask:
    @pytest.mark.parametrize("case", json.loads((DATA / "from_token_mask.json").read_text()), ids=str)
    @pytest.mark.parametrize("dtype", [torch.bool, torch.int64, torch.int32, torch.uint8])
    def test_case(self, case, dtype):
        token_mask = torch.tensor(case["token_mask"], dtype=dtype)
        assert cu_seqlens_from_token_mask(token_mask).tolist() == case["expected"]
        assert get_cu_seqlens((token_mask == 0)[:, None, None]).tolist() == case["expected"]

    @hypothesis.given(st.data(), st.integers(0, 5), st.integers(0, 7))
    def test_real_tokens_may_stand_anywhere(self, data, b, s):
        rows = [data.draw(st.lists(st.booleans(), min_size=s, max_size=s)) for _ in range(b)]
        token_mask = torch.tensor(rows, dtype=torch.bool).view(b, s)
        offsets = cu_seqlens_from_token_mask(token_mask)
        assert offsets.tolist() == [sum(map(sum, rows[:i])) for i in range(b + 1)]
        assert offsets.dtype == torch.int32
        assert get_cu_seqlens(~token_mask.view(b, 1, 1, s)).tolist() == offsets.tolist()

    def test_transformer_engines_mask_may_be_two_dimensional_too(self):
        padding_mask = torch.tensor([[0, 0, 1], [0, 1, 1]])
        assert get_cu_seqlens(padding_mask).tolist() == get_cu_seqlens(padding_mask.bool()).tolist() == [0, 2, 3]

    @pytest.mark.parametrize("shape", [(2, 1, 3, 3), (2, 4, 1, 3), (2, 1, 3), (3,)])
    def test_other_masks_of_transformer_engine_are_none_of_padding(self, shape):
        with pytest.raises(LayoutError, match=r"padding_mask has shape \[.*\], expected \[b, 1, 1, s\]"):
            get_cu_seqlens(torch.zeros(shape, dtype=torch.bool))

    @pytest.mark.parametrize("of", [cu_seqlens_from_token_mask, get_cu_seqlens])
    def test_no_masks(self, of):
        with pytest.raises(LayoutError, match="mask is floating point"):
            of(torch.zeros(2, 3))
        with pytest.raises(ArgumentTypeError, match=r"mask must be a tensor, got \[\[True\]\]"):
            of([[True]])

    def test_more_tokens_than_int32_counts(self, monkeypatch):
        monkeypatch.setattr("te_pkg.attention.offsets.INT32_MAX", 5)
        assert cu_seqlens_from_token_mask(torch.tensor([[1, 1, 1, 0], [1, 1, 0, 0]])).tolist() == [0, 3, 5]
        with pytest.raises(OffsetOverflowError, match=r"^6 is beyond int32: tokens of token_mask, expected at most 5$"):
            cu_seqlens_from_token_mask(torch.tensor([[1, 1, 1, 1], [1, 1, 0, 0]]))
        with mark_capturing(), forbid_sync():
            cu_seqlens_from_token_mask(torch.tensor([[1, 1, 1, 1], [1, 1, 0, 0]]))


class TestFromPositionIds:
    @pytest.mark.parametrize("case", json.loads((DATA / "from_position_ids.json").read_text()), ids=str)
    @pytest.mark.parametrize("dtype", [torch.int64, torch.int32])
    def test_case(self, case, dtype):
        offsets = cu_seqlens_from_position_ids(torch.tensor(case["position_ids"], dtype=dtype))
        assert offsets.tolist() == case["expected"]
        assert offsets.dtype == torch.int32

    @hypothesis.given(st.lists(st.integers(0, 3), max_size=20), st.integers(1, 4))
    def test_a_sequence_starts_where_a_position_is_not_greater_and_in_each_row(self, ids, rows):
        ids = ids[: len(ids) // rows * rows]
        width = len(ids) // rows
        starts = [i for i in range(len(ids)) if i % width == 0 or ids[i] <= ids[i - 1]]
        offsets = cu_seqlens_from_position_ids(torch.tensor(ids, dtype=torch.int64).view(rows, width))
        assert offsets.tolist() == [*starts, len(ids)] if ids else offsets.tolist() == [0]

    @pytest.mark.parametrize("ids", [torch.zeros(2), torch.zeros(1, 1, 2, dtype=torch.int64), torch.tensor(0)])
    def test_tensors_of_another_kind(self, ids):
        with pytest.raises(LayoutError, match=r"position_ids is (floating point|3-D|0-D)"):
            cu_seqlens_from_position_ids(ids)

    def test_values_are_needed(self):
        with mark_capturing(), pytest.raises(HostReadError, match="a CUDA graph is being captured"):
            cu_seqlens_from_position_ids(torch.tensor([0, 1]))
        with pytest.raises(HostReadError, match="have no values"):
            cu_seqlens_from_position_ids(torch.zeros(2, dtype=torch.int64, device="meta"))

    def test_beyond_int32(self):
        with pytest.raises(OffsetOverflowError, match=r"^2147483648 is beyond int32: rows of position_ids"):
            cu_seqlens_from_position_ids(torch.zeros(1, dtype=torch.int64).expand(2**31))

    @pytest.mark.parametrize("strict", [True, False])
    def test_exported_the_number_of_sequences_is_symbolic(self, strict):
        class Starts(torch.nn.Module):
            def forward(self, ids: torch.Tensor) -> torch.Tensor:
                return cu_seqlens_from_position_ids(ids)

        ids = torch.tensor([0, 1, 0, 1, 2])
        program = torch.export.export(Starts(), (ids,), dynamic_shapes=({0: Dim.AUTO},), strict=strict).module()
        assert program(torch.tensor([0, 1, 2, 0, 0, 1, 2])).tolist() == [0, 3, 4, 7]


LENGTHS = torch.tensor([3, 2])
TOKEN_MASK = torch.tensor([[True, True, True, False], [True, True, False, False]])


@pytest.mark.parametrize(
    ("make", "given"),
    [
        (cu_seqlens_from_lengths, LENGTHS),
        (cu_seqlens_from_token_mask, TOKEN_MASK),
        (get_cu_seqlens, ~TOKEN_MASK[:, None, None]),
    ],
)
class TestByOperationsOnTheDevice:
    def test_nothing_syncs_under_capture(self, make, given):
        for mode in (True, False):
            with mark_capturing(), forbid_sync(uploads=False, mode=mode):
                made = make(given)
            assert made.tolist() == [0, 3, 5]

    @pytest.mark.parametrize("captured", [True, False])
    def test_tensors_are_ordinary(self, make, given, captured):
        with torch.inference_mode(), mark_capturing() if captured else contextlib.nullcontext():
            assert not make(given).is_inference()

    @pytest.mark.parametrize("backend", ["eager", "aot_eager"])
    def test_it_compiles_without_a_graph_break(self, make, given, backend):
        assert torch.compile(make, fullgraph=True, backend=backend)(given).tolist() == [0, 3, 5]

    @pytest.mark.parametrize("mode", ["fake", "symbolic", "real"])
    def test_it_is_traced(self, make, given, mode):
        assert make_fx(lambda given: make(given), tracing_mode=mode)(given)(given).tolist() == [0, 3, 5]


class TestShapesAreEnough:
    def test_fake(self):
        with FakeTensorMode():
            mask = torch.empty(4, 7, dtype=torch.bool)
            assert cu_seqlens_from_token_mask(mask).shape == get_cu_seqlens(mask).shape == (5,)
            assert cu_seqlens_from_lengths(torch.empty(4, dtype=torch.int64)).shape == (5,)
            assert cu_seqlens_from_lengths([3, 2]).shape == (3,)

    def test_meta(self):
        mask = torch.empty(2**20, 2**20, dtype=torch.bool, device="meta")
        assert cu_seqlens_from_token_mask(mask).shape == get_cu_seqlens(mask[:, None, None]).shape == (2**20 + 1,)

    def test_vmap(self):
        lengths = torch.tensor([[3, 2], [1, 4]])
        assert torch.vmap(cu_seqlens_from_lengths)(lengths).tolist() == [[0, 3, 5], [0, 1, 5]]

    def test_symbolic_sizes_compile_once(self):
        counter = CompileCounterWithBackend("aot_eager")
        compiled = torch.compile(cu_seqlens_from_token_mask, fullgraph=True, dynamic=True, backend=counter)
        for shape in ((2, 8), (3, 5), (70, 4)):
            mask = torch.rand(shape) > 0.5
            assert compiled(mask).tolist() == cu_seqlens_from_token_mask(mask).tolist()
        assert counter.frame_count == 1
