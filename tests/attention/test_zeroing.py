"""Clearing of padding: every padding row and no other, whatever it holds, in forward and in backward."""

from __future__ import annotations

import doctest
import gc
import importlib.util
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import hypothesis
import pytest
import torch
from hypothesis import strategies as st
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

from te_pkg.attention import PackedLayout, relayout, zero_padding, zero_padding_
from te_pkg.attention.capture import mark_capturing
from te_pkg.attention.errors import ArgumentTypeError, GradientError, KernelUnavailableError, LayoutError
from tests.attention.layouts import LayoutCase, layouts, without_host_facts
from tests.attention.no_sync import forbid_sync
from tests.attention.operations import Operations
from tests.attention.row_moves import DTYPES, kernel_named, random_rows, same_bits

TRITON = pytest.param(
    "triton", marks=pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton is not installed")
)
# Torch warns of itself where it loads forward derivatives and inductor.
pytestmark = pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")

LAYOUT = PackedLayout.from_lengths([3, 0, 2], pad_to_multiple=4, total_tokens=11)
REAL = [0, 1, 2, 4, 5]
PADDING = [3, 6, 7, 8, 9, 10]
FULL = PackedLayout.from_lengths([3, 0, 2])

both = pytest.mark.parametrize("function", [zero_padding, zero_padding_])


@pytest.fixture(autouse=True)
def _no_program_is_left() -> Iterator[None]:
    yield
    torch._dynamo.reset()


@both
class TestValues:
    @hypothesis.given(case=layouts(host=None), trailing=st.sampled_from([(), (3,), (2, 8), (0,)]))
    @hypothesis.settings(deadline=None)
    def test_padding_rows_are_0_and_real_rows_are_what_they_were(self, function, case: LayoutCase, trailing):
        layout, rows = case
        x = random_rows(rows.total, trailing, torch.float32)
        before = x.clone()
        out = function(x, layout)
        assert torch.equal(_bits(out)[rows.real_rows], _bits(before)[rows.real_rows])
        assert not _bits(out)[rows.padding_rows].any()
        assert (out is x) == (function is zero_padding_ or not rows.padding_rows)
        assert same_bits(x, before) or function is zero_padding_

    @pytest.mark.parametrize("dtype", DTYPES, ids=str)
    @pytest.mark.parametrize("known", [True, False])
    def test_every_dtype(self, function, dtype, known):
        x = random_rows(11, (3,), dtype)
        before = x.clone()
        out = function(x, LAYOUT if known else without_host_facts(LAYOUT))
        assert torch.equal(_bits(out)[REAL], _bits(before)[REAL])
        assert not _bits(out)[PADDING].any()

    @pytest.mark.parametrize("garbage", [float("nan"), float("inf"), float("-inf")])
    def test_garbage_vanishes(self, function, garbage):
        for layout in (LAYOUT, without_host_facts(LAYOUT)):
            assert function(torch.full((11, 2), garbage), layout)[PADDING].tolist() == [[0, 0]] * 6

    def test_strided_rows(self, function):
        whole = torch.randn(2, 11, 3).transpose(0, 1)
        before = whole.clone()
        out = function(whole[:, 1], LAYOUT)
        assert torch.equal(out[REAL], before[REAL, 1])
        assert not out[PADDING].any()
        assert torch.equal(whole[:, 0], before[:, 0])

    def test_conjugated_and_negated_lazily(self, function):
        x = torch.randn(11, dtype=torch.complex64)
        assert torch.equal(function(x.clone().conj(), LAYOUT), zero_padding(x, LAYOUT).conj())
        assert torch.equal(function(x.clone().conj().imag, LAYOUT), -zero_padding(x.imag, LAYOUT))

    @pytest.mark.parametrize("kernel", ["reference", "cpu", TRITON])
    def test_a_kernel_of_ones_choice(self, function, kernel, monkeypatch):
        module = kernel_named(kernel)
        x = torch.randn(11, 2)
        expected = function(x.clone(), LAYOUT)
        monkeypatch.setattr("te_pkg.attention.kernels._load", lambda name: module)
        assert torch.equal(function(x, LAYOUT, kernel=kernel), expected)

    def test_wrong_buffers(self, function):
        with pytest.raises(LayoutError, match=r"^x has 10 rows, expected 11 as layout$"):
            function(torch.zeros(10), LAYOUT)
        with pytest.raises(LayoutError, match=r"^x is on meta, expected cpu as layout$"):
            function(torch.zeros(11, device="meta"), LAYOUT)
        with pytest.raises(ArgumentTypeError, match=r"^x must be a tensor, got None$"):
            function(None, LAYOUT)
        with pytest.raises(KernelUnavailableError, match="no such kernel"):
            function(torch.zeros(11), LAYOUT, kernel="cuda")


def _bits(x: torch.Tensor) -> torch.Tensor:
    return x.contiguous().unsqueeze(-1).view(torch.uint8)


class TestNoWork:
    @both
    def test_nothing_to_clear_is_no_operation_at_all(self, function):
        x = torch.randn(5, 2, requires_grad=True)
        with Operations() as seen:
            assert function(x, FULL) is x
        assert seen.names == []
        assert x._version == 0

    @hypothesis.given(case=layouts(max_sequences=4))
    @hypothesis.settings(deadline=None)
    def test_only_padding_rows_are_written(self, case):
        written: set[int] = set()

        class Writes(TorchDispatchMode):
            def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
                if func.name() == "aten::_foreach_zero_":
                    for gap in args[0]:
                        first = gap.storage_offset() * gap.itemsize // row
                        written.update(range(first, first + gap.nbytes // row))
                elif func.name() == "aten::index_fill_.int_Scalar":
                    written.update(args[2].tolist())
                else:
                    assert not func.name().endswith("_"), func
                return func(*args, **(kwargs or {}))

        layout, rows = case
        x = torch.randn(rows.total, 8)
        row = 8 * x.itemsize
        with Writes():
            zero_padding_(x, layout)
        assert sorted(written) == rows.padding_rows


class TestGradients:
    @pytest.mark.parametrize("known", [True, False])
    def test_first_and_second(self, known):
        layout = LAYOUT if known else without_host_facts(LAYOUT)
        x = torch.randn(11, 2, dtype=torch.float64, requires_grad=True)
        for function in (lambda x: zero_padding(x, layout), lambda x: zero_padding_(x * 1, layout).square()):
            assert torch.autograd.gradcheck(function, x, check_forward_ad=True)
            assert torch.autograd.gradgradcheck(function, x)

    @both
    @hypothesis.given(case=layouts(host=None))
    @hypothesis.settings(deadline=None)
    def test_the_gradient_is_0_on_padding_whatever_comes_in(self, function, case):
        layout, rows = case
        x = torch.randn(rows.total, 2, requires_grad=True)
        incoming = torch.full((rows.total, 2), float("nan"))
        incoming[rows.real_rows] = 3
        function(x * 1, layout).backward(incoming)
        assert torch.equal(x.grad[:, 0], 3.0 * torch.tensor(rows.token_mask, dtype=torch.bool))

    @both
    def test_nothing_of_x_is_kept(self, function):
        saved = []
        x = torch.randn(11, 2, requires_grad=True)
        y = x.exp()
        with torch.autograd.graph.saved_tensors_hooks(lambda t: saved.append(t) or t, lambda t: t):
            function(y, LAYOUT)
        assert all(tensor.dtype == torch.int32 for tensor in saved)

    def test_in_place_is_one_node(self):
        y = zero_padding_(torch.randn(11, 2, requires_grad=True) * 1, LAYOUT)
        assert y.grad_fn.name().startswith("_ZeroPadding")
        assert y.grad_fn.next_functions[0][0].name() == "MulBackward0"

    def test_what_was_saved_before_is_noticed(self):
        x = torch.randn(11, 2, requires_grad=True)
        y = x.exp()
        zero_padding_(y, LAYOUT)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            y.sum().backward()

    def test_a_view_takes_its_base_along(self):
        x = torch.randn(11, 3, 2, requires_grad=True)
        y = x * 1
        zero_padding_(y[:, 1], LAYOUT)
        y.sum().backward()
        assert torch.equal(x.grad[:, 1, 0], LAYOUT.token_mask().float())
        assert x.grad[:, 0].all()

    def test_a_leaf_is_refused_before_anything_is_written(self):
        x = torch.ones(11, 2, requires_grad=True)
        for layout in (LAYOUT, without_host_facts(LAYOUT)):
            with pytest.raises(GradientError, match=r"^x cannot be .*: a leaf Variable .*; hint: use zero_padding$"):
                zero_padding_(x, layout)
            with pytest.raises(GradientError, match=r"^x cannot be changed in place: a view of a leaf Variable"):
                zero_padding_(x[:, 0], layout)
        assert x.all()
        assert x.grad_fn is None
        with torch.no_grad():
            zero_padding_(x, LAYOUT)
        assert not x[PADDING].any()

    @pytest.mark.parametrize("part", [lambda x: x.unbind(1)[0], lambda x: x.split(1, dim=1)[1]])
    def test_a_view_that_torch_does_not_let_change_is_as_it_was(self, part):
        x = torch.ones(11, 2, requires_grad=True) * 1
        for layout in (LAYOUT, without_host_facts(LAYOUT)):
            with pytest.raises(
                GradientError, match=r"^x cannot be changed in place: Output \d of .*hint: use zero_pad"
            ):
                zero_padding_(part(x), layout)
        assert x.all()

    def test_a_kernel_that_cannot_run_leaves_no_node_in_the_graph(self):
        y = torch.ones(11, 2, requires_grad=True) * 1
        with mark_capturing(), pytest.raises(KernelUnavailableError, match="capture under way forbids"):
            zero_padding_(y, LAYOUT, kernel="reference")
        assert y.all()
        assert y.grad_fn.name() == "MulBackward0"

    @both
    @pytest.mark.parametrize("known", [True, False])
    def test_offsets_that_somebody_changes_before_the_way_back_are_noticed(self, function, known):
        layout = PackedLayout.from_lengths([3, 0, 2], pad_to_multiple=4)
        if not known:
            layout = without_host_facts(layout)
        y = function(torch.randn(8, requires_grad=True) * 1, layout)
        layout.cu_seqlens.add_(0)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            y.sum().backward()

    @both
    def test_a_graph_that_is_kept_gives_the_same_again(self, function):
        x = torch.randn(11, 2, requires_grad=True)
        y = function(x * 1, LAYOUT).square().sum()
        first, second = (torch.autograd.grad(y, x, retain_graph=True)[0] for _ in range(2))
        assert torch.equal(first, second)

    def test_under_torch_func(self):
        x = torch.randn(11, 2)
        for function in (zero_padding, lambda x, layout: zero_padding_(x * 1, layout)):
            gradient = torch.func.grad(lambda x, f=function: f(x, LAYOUT).square().sum())(x)
            assert torch.equal(gradient, 2 * zero_padding(x, LAYOUT))


class TestWithoutASync:
    @both
    @hypothesis.given(case=layouts())
    @hypothesis.settings(deadline=None)
    @pytest.mark.parametrize("mode", [True, False])
    def test_under_capture(self, function, mode, case):
        layout, rows = case
        x = torch.full((rows.total, 2), 2.0, requires_grad=True)
        with mark_capturing(), forbid_sync(mode=mode, uploads=False):
            out = function(x * 1, layout)
            out.backward(torch.ones_like(out))
        mask = torch.tensor(rows.token_mask, dtype=torch.bool)
        assert torch.equal(out[:, 0], 2.0 * mask)
        assert torch.equal(x.grad[:, 0], 1.0 * mask)

    @both
    @pytest.mark.parametrize("mode", [True, False])
    def test_with_lengths_on_the_host(self, function, mode):
        with forbid_sync(mode=mode):
            function(torch.randn(11, 2), LAYOUT)

    @both
    def test_a_mode_that_watches_is_a_reason_not_to_read(self, function):
        with forbid_sync():
            function(torch.randn(11, 2), without_host_facts(LAYOUT))

    @both
    def test_a_graph_clears_what_is_padding_when_it_is_replayed(self, function):
        layout = PackedLayout.from_lengths([3, 1], pad_to_multiple=4)
        layout.cu_seqlens.copy_(torch.tensor([0, 1, 4]))
        with mark_capturing():
            assert function(torch.ones(8), layout).tolist() == [1, 0, 0, 0, 1, 1, 1, 0]

    @both
    def test_a_capture_does_not_trust_that_there_is_nothing_to_clear(self, function):
        layout = PackedLayout.from_cu_seqlens(torch.tensor([0, 3, 5]), torch.tensor([0, 3, 5]).clone())
        layout.cu_seqlens.copy_(torch.tensor([0, 2, 4]))
        with mark_capturing():
            out = function(torch.ones(5), layout)
        assert out.tolist() == (
            [1, 1, 0, 1, 1] if layout.cu_seqlens_padded is not layout.cu_seqlens else [1, 1, 1, 1, 0]
        )


def _tensors() -> int:
    return sum(issubclass(type(thing), torch.Tensor) for thing in gc.get_objects())


class TestMemory:
    @pytest.mark.parametrize(
        "x",
        [torch.ones(1, 2).expand(11, 2), torch.ones(11, 1).expand(11, 2), torch.ones(12).as_strided((11, 2), (1, 1))],
    )
    @pytest.mark.parametrize("known", [True, False])
    def test_where_elements_share_a_place_nothing_is_written(self, x, known):
        with pytest.raises(
            LayoutError, match=r"^x has several elements in one place \(strides \[.*\]\), expected one$"
        ):
            zero_padding_(x, LAYOUT if known else without_host_facts(LAYOUT))
        assert x.all()

    @pytest.mark.parametrize("kernel", ["reference", "cpu"])
    @pytest.mark.parametrize("known", [True, False])
    def test_a_write_under_inference_mode_is_counted(self, kernel, known):
        layout = LAYOUT if known else without_host_facts(LAYOUT)
        x, out = torch.ones(11, 4), torch.ones(11, 4)
        with torch.inference_mode():
            zero_padding_(x, layout, kernel=kernel)
            relayout(x, layout, layout, out=out, kernel=kernel)
        assert x._version > 0
        assert out._version > 0

    @both
    def test_nothing_is_left_for_the_collector_of_garbage(self, function):
        def step() -> None:
            function(x * 1, LAYOUT).square().sum().backward()

        x = torch.randn(11, 2, requires_grad=True)
        step()
        gc.collect()
        gc.disable()
        try:
            before = _tensors()
            for _ in range(5):
                step()
            assert _tensors() == before
        finally:
            gc.enable()

    def test_threads_do_not_get_in_each_others_way(self):
        def clear(seed: int) -> bool:
            for length in range(seed, seed + 40):
                layout = PackedLayout.from_lengths([length % 7, length % 5], pad_to_multiple=4)
                x = torch.ones(layout.total_tokens, 3)
                if not torch.equal(zero_padding_(x, layout)[:, 0], layout.token_mask().float()):
                    return False
            return True

        with ThreadPoolExecutor(8) as threads:
            assert all(threads.map(clear, [*range(4)] * 4))


@both
class TestTracing:
    @pytest.mark.parametrize("backend", ["eager", "aot_eager"])
    @pytest.mark.parametrize("dtype", [torch.float32, torch.float8_e5m2, torch.uint16])
    def test_compiles_without_a_graph_break(self, function, backend, dtype):
        compiled = torch.compile(lambda x, layout: function(x.clone(), layout), fullgraph=True, backend=backend)
        for layout in (LAYOUT, PackedLayout.from_lengths([1, 5, 1], pad_to_multiple=3, total_tokens=13)):
            x = random_rows(layout.total_tokens, (3,), dtype)
            assert same_bits(compiled(x, layout), zero_padding(x, layout))

    def test_gradients_of_compiled_code(self, function):
        compiled = torch.compile(lambda x: function(x * 1, LAYOUT), fullgraph=True, backend="aot_eager")
        x = torch.randn(11, 2, requires_grad=True)
        incoming = torch.full((11, 2), float("nan"))
        incoming[REAL] = 1
        compiled(x).backward(incoming)
        assert torch.equal(x.grad[:, 0], LAYOUT.token_mask().float())

    def test_fake_tensors(self, function):
        with FakeTensorMode() as mode:
            layout = PackedLayout.from_cu_seqlens(
                mode.from_tensor(LAYOUT.cu_seqlens), mode.from_tensor(LAYOUT.cu_seqlens_padded), 11, 3
            )
            assert function(torch.empty(11, 2), layout).shape == (11, 2)


def test_under_inference_mode():
    with torch.inference_mode():
        x = torch.ones(11, 2)
        assert zero_padding_(x, LAYOUT) is x
        assert zero_padding(torch.ones(11, 2), LAYOUT).tolist() == x.tolist()


def test_the_worked_examples_hold():
    assert doctest.testmod(sys.modules["te_pkg.attention.zeroing"]).failed == 0
