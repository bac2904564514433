"""Offsets of full sequences: right numbers, right errors, in every mode that torch can be in."""

from __future__ import annotations

import contextlib
import doctest
import enum
import inspect
import json
from collections.abc import Iterator
from pathlib import Path

import hypothesis
import numpy as np
import pytest
import torch
from hypothesis import strategies as st
from torch._dynamo.testing import CompileCounterWithBackend
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.export import Dim
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._python_dispatch import TorchDispatchMode

from te_pkg.attention import (
    cache_info,
    clear_caches,
    cu_seqlens,
    cu_seqlens_from_lengths,
    cu_seqlens_from_position_ids,
    cu_seqlens_from_token_mask,
    get_cu_seqlens,
    get_full_cu_seqlens,
)
from te_pkg.attention.capture import mark_capturing
from te_pkg.attention.errors import (
    ArgumentTypeError,
    AttentionError,
    CaptureError,
    HostReadError,
    LayoutError,
    OffsetOverflowError,
    SizeError,
)
from tests.attention.no_sync import forbid_sync

DATA = Path(__file__).parents[1] / "data/attention"
CASES = json.loads((DATA / "full_cu_seqlens.json").read_text())
INT32_MAX = 2**31 - 1


def kept() -> int:
    return cache_info()["full_cu_seqlens"].entries


@pytest.fixture(autouse=True)
def _no_tensor_is_left_by_another_test() -> Iterator[None]:
    clear_caches()
    yield
    torch._dynamo.reset()


class TestValues:
    @pytest.mark.parametrize("case", [case for case in CASES if "expected" in case], ids=str)
    def test_case(self, case):
        offsets = get_full_cu_seqlens(case["batch_size"], case["max_seqlen"])
        assert offsets.tolist() == case["expected"]
        assert offsets.dtype == torch.int32

    @hypothesis.given(batch_size=st.integers(0, 60), max_seqlen=st.integers(0, INT32_MAX // 60))
    def test_entry_i_is_i_times_the_length(self, batch_size, max_seqlen):
        offsets = get_full_cu_seqlens(batch_size, max_seqlen)
        assert offsets.tolist() == [i * max_seqlen for i in range(batch_size + 1)]

    def test_the_last_offset_that_fits(self):
        assert get_full_cu_seqlens(1, INT32_MAX).tolist() == [0, INT32_MAX]

    def test_a_length_beyond_int32_that_no_sequence_has(self):
        assert get_full_cu_seqlens(0, 2**40).tolist() == [0]

    def test_arguments_are_named_and_ordered_as_in_transformer_engine(self):
        assert list(inspect.signature(get_full_cu_seqlens).parameters) == ["batch_size", "max_seqlen", "device"]
        assert get_full_cu_seqlens(batch_size=2, max_seqlen=8, device=torch.device("cpu")).tolist() == [0, 8, 16]

    def test_another_device(self):
        assert get_full_cu_seqlens(2, 8, "meta").device.type == "meta"
        assert get_full_cu_seqlens(2, 8, "cpu").tolist() == [0, 8, 16]

    def test_the_worked_examples_hold(self):
        assert doctest.testmod(cu_seqlens).failed == 0


class TestErrors:
    @pytest.mark.parametrize("case", [case for case in CASES if "error" in case], ids=str)
    def test_case(self, case):
        kind, _, message = case["error"].partition(": ")
        builtin = {"ValueError": ValueError, "OverflowError": OverflowError}[kind]
        with pytest.raises(builtin) as caught:
            get_full_cu_seqlens(case["batch_size"], case["max_seqlen"])
        assert str(caught.value).startswith(message)
        assert isinstance(caught.value, AttentionError)

    def test_negative_names_the_argument_and_the_number(self):
        with pytest.raises(SizeError, match=r"^batch_size must not be negative, got -1$"):
            get_full_cu_seqlens(-1, 8)

    def test_every_negative_argument_is_named(self):
        with pytest.raises(SizeError, match=r"batch_size .* -1\nmax_seqlen .* -8"):
            get_full_cu_seqlens(-1, -8)

    @pytest.mark.parametrize(("batch_size", "max_seqlen"), [(1, 2**31), (2**31, 1), (46341, 46341), (10**20, 10**20)])
    def test_overflow_names_the_numbers(self, batch_size, max_seqlen):
        with pytest.raises(OffsetOverflowError) as caught:
            get_full_cu_seqlens(batch_size, max_seqlen)
        assert str(caught.value).startswith(f"{batch_size * max_seqlen} is beyond int32")
        assert f"batch_size {batch_size}" in str(caught.value)
        assert f"max_seqlen {max_seqlen}" in str(caught.value)
        assert caught.value.offset == batch_size * max_seqlen

    @pytest.mark.parametrize(
        "value", [True, 2.0, "2", None, [2], np.bool_(True), torch.tensor(True), torch.tensor(2.0)]
    )
    @pytest.mark.parametrize("name", ["batch_size", "max_seqlen"])
    def test_no_integer_is_a_type_error_that_names_the_argument(self, name, value):
        get_full_cu_seqlens(2, 2)  # a kept tensor must not answer for an equal key: True == 1 and 2.0 == 2
        get_full_cu_seqlens(1, 2)
        get_full_cu_seqlens(2, 1)
        sizes = {"batch_size": 2, "max_seqlen": 2, name: value}
        with pytest.raises(ArgumentTypeError, match=f"^{name} must be an integer, got "):
            get_full_cu_seqlens(**sizes)

    def test_every_argument_of_a_wrong_type_is_named(self):
        with pytest.raises(TypeError, match=r"batch_size .*\nmax_seqlen "):
            get_full_cu_seqlens("2", 8.0)

    def test_an_error_keeps_nothing(self):
        with pytest.raises(ValueError, match="negative"):
            get_full_cu_seqlens(-1, 8)
        assert kept() == 0


class Sizes(enum.IntEnum):
    BATCH = 2


class Index:
    def __index__(self) -> int:
        return 2


class TestIntegersOfAnyKind:
    @pytest.mark.parametrize(
        "two", [np.int64(2), np.uint8(2), torch.tensor(2), torch.tensor([2]), Sizes.BATCH, Index()]
    )
    def test_share_one_tensor(self, two):
        assert get_full_cu_seqlens(two, two) is get_full_cu_seqlens(2, 2)


class TestKept:
    def test_second_call_returns_the_same_tensor(self):
        assert get_full_cu_seqlens(2, 8) is get_full_cu_seqlens(2, 8, torch.device("cpu"))

    def test_swapped_sizes_are_another_tensor(self):
        assert get_full_cu_seqlens(2, 8).tolist() != get_full_cu_seqlens(8, 2).tolist()

    def test_a_teacher_under_inference_mode_does_not_poison_a_student(self):
        table = torch.randn(17, requires_grad=True)
        with torch.inference_mode():
            teacher = table[get_full_cu_seqlens(2, 8)].sum()
        student = table[get_full_cu_seqlens(2, 8)].sum()
        student.backward()
        assert teacher == student
        assert table.grad.nonzero().flatten().tolist() == [0, 8, 16]

    def test_a_callers_edit_does_not_reach_the_next_caller(self):
        get_full_cu_seqlens(2, 8)[1] = 3
        assert get_full_cu_seqlens(2, 8).tolist() == [0, 8, 16]

    def test_sizes_without_end_do_not_fill_the_memory(self):
        for max_seqlen in range(600):
            get_full_cu_seqlens(2, max_seqlen)
        assert kept() == cache_info()["full_cu_seqlens"].max_entries == 256


def offsets_of(x: torch.Tensor) -> torch.Tensor:
    return get_full_cu_seqlens(x.shape[0], x.shape[1], x.device)


class Offsets(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return offsets_of(x)


class OffsetsOfRows(torch.nn.Module):
    def __init__(self, max_seqlen: int) -> None:
        super().__init__()
        self.max_seqlen = max_seqlen

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + get_full_cu_seqlens(x.shape[0], self.max_seqlen)[1:]


class OffsetsOfData(torch.nn.Module):
    def forward(self, batch_size: torch.Tensor) -> torch.Tensor:
        return get_full_cu_seqlens(batch_size.item(), 8)


HUGE = torch.empty(1, 1).expand(65536, 65536)  # one element of memory


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
class TestCompile:
    def test_symbolic_sizes_compile_once_without_a_graph_break(self, backend):
        counter = CompileCounterWithBackend(backend)
        compiled = torch.compile(lambda x: offsets_of(x) + 0, fullgraph=True, dynamic=True, backend=counter)
        for shape in ((2, 8), (3, 5), (70, 4)):
            x = torch.ones(shape)
            assert compiled(x).tolist() == offsets_of(x).tolist()
        assert counter.frame_count == 1

    @pytest.mark.parametrize("shape", [(0, 4), (1, 1), (3, 0)])
    def test_sizes_that_torch_specialises_itself_are_right(self, backend, shape):
        compiled = torch.compile(lambda x: offsets_of(x) + 0, fullgraph=True, dynamic=True, backend=backend)
        assert compiled(torch.ones(shape)).tolist() == offsets_of(torch.ones(shape)).tolist()

    def test_constant_sizes_compile(self, backend):
        compiled = torch.compile(lambda x: x + get_full_cu_seqlens(2, 8), fullgraph=True, backend=backend)
        assert compiled(torch.zeros(3)).tolist() == [0, 8, 16]

    def test_nothing_is_kept(self, backend):
        torch.compile(lambda x: x + get_full_cu_seqlens(2, 8), fullgraph=True, backend=backend)(torch.zeros(3))
        assert kept() == 0

    def test_beyond_int32_does_not_wrap(self, backend):
        compiled = torch.compile(lambda x: offsets_of(x) + 0, fullgraph=True, dynamic=True, backend=backend)
        compiled(torch.ones(2, 8))
        with pytest.raises(RuntimeError):
            compiled(HUGE)

    def test_a_gradient_flows_through_compiled_indexing(self, backend):
        compiled = torch.compile(lambda table: table[get_full_cu_seqlens(2, 8)].sum(), fullgraph=True, backend=backend)
        table = torch.randn(17, requires_grad=True)
        compiled(table).backward()
        assert table.grad.nonzero().flatten().tolist() == [0, 8, 16]


@pytest.mark.parametrize("strict", [True, False])
class TestExport:
    def export(self, strict: bool) -> torch.nn.Module:
        dynamic = ({0: Dim.AUTO, 1: Dim.AUTO},)
        return torch.export.export(Offsets(), (torch.ones(2, 8),), dynamic_shapes=dynamic, strict=strict).module()

    def test_sizes_stay_symbolic(self, strict):
        program = self.export(strict)
        for shape in ((2, 8), (5, 3), (100, 2)):
            assert program(torch.ones(shape)).tolist() == offsets_of(torch.ones(shape)).tolist()

    @pytest.mark.parametrize("max_seqlen", [1, 4, 512])
    def test_a_dimension_with_a_name_and_a_bound_is_one_that_a_fixed_length_allows(self, strict, max_seqlen):
        batch = Dim("batch", max=INT32_MAX // 512)
        program = torch.export.export(
            OffsetsOfRows(max_seqlen), (torch.ones(3),), dynamic_shapes=({0: batch},), strict=strict
        ).module()
        for rows in (2, 7):
            assert program(torch.zeros(rows)).tolist() == [i * max_seqlen for i in range(1, rows + 1)]

    def test_nothing_is_kept_and_nothing_kept_is_baked_in(self, strict):
        get_full_cu_seqlens(2, 8)
        program = torch.export.export(Offsets(), (torch.ones(2, 8),), strict=strict)
        assert kept() == 1
        assert not program.constants
        assert "arange" in str(program.graph)

    def test_the_program_refuses_sizes_beyond_int32(self, strict):
        with pytest.raises((RuntimeError, AssertionError)):
            self.export(strict)(HUGE)

    def test_a_size_read_from_data_is_checked_when_the_program_runs(self, strict):
        program = torch.export.export(OffsetsOfData(), (torch.tensor(3),), strict=strict).module()
        assert program(torch.tensor(5)).tolist() == [0, 8, 16, 24, 32, 40]
        assert program(torch.tensor(0)).tolist() == [0]
        for wrong in (-1, 2**30):
            with pytest.raises(RuntimeError, match="Runtime assertion failed"):
                program(torch.tensor(wrong))


class TestOtherTracers:
    def test_make_fx_keeps_the_sizes_symbolic(self):
        graph = make_fx(offsets_of, tracing_mode="symbolic")(torch.ones(2, 8))
        assert graph(torch.ones(5, 3)).tolist() == [0, 3, 6, 9, 12, 15]
        assert kept() == 0

    @pytest.mark.filterwarnings("ignore:.*torch.jit.trace.*is deprecated:DeprecationWarning")
    def test_jit_trace_records_the_sizes(self):
        get_full_cu_seqlens(2, 8)
        traced = torch.jit.trace(offsets_of, (torch.ones(2, 8),))
        assert traced(torch.ones(5, 3)).tolist() == [0, 3, 6, 9, 12, 15]
        assert kept() == 1

    def test_fake_sizes_may_be_plain(self):
        with FakeTensorMode():
            assert get_full_cu_seqlens(4, 512).shape == (5,)
        assert kept() == 0

    def test_errors_are_the_same_with_fake_tensors(self):
        with FakeTensorMode(), pytest.raises(OffsetOverflowError):
            get_full_cu_seqlens(2**20, 4096)

    def test_vmap(self):
        out = torch.vmap(lambda x: x + get_full_cu_seqlens(2, 8))(torch.zeros(4, 3))
        assert out.tolist() == [[0, 8, 16]] * 4
        assert kept() == 0

    def test_grad(self):
        gradient = torch.func.grad(lambda x: (x * get_full_cu_seqlens(2, 8)).sum())(torch.ones(3))
        assert gradient.tolist() == [0, 8, 16]
        assert kept() == 0


class Operations(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.names.append(str(func))
        return func(*args, **(kwargs or {}))


class TestCapture:
    def test_nothing_is_kept(self):
        with mark_capturing():
            assert get_full_cu_seqlens(2, 8).tolist() == [0, 8, 16]
        assert kept() == 0

    def test_what_was_kept_before_is_not_handed_out(self):
        before = get_full_cu_seqlens(2, 8)
        with mark_capturing():
            assert get_full_cu_seqlens(2, 8) is not before
        assert get_full_cu_seqlens(2, 8) is before

    def test_only_operations_on_the_device_no_copy_from_the_host(self):
        with mark_capturing(), Operations() as seen:
            get_full_cu_seqlens(2, 8)
        assert seen.names == ["aten.arange.default", "aten.mul.Tensor"]

    @pytest.mark.gpu
    @pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")
    def test_a_real_graph_replays_the_offsets(self):
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            offsets = get_full_cu_seqlens(2, 8, "cuda")
        graph.replay()
        assert offsets.tolist() == [0, 8, 16]
        assert kept() == 0


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
