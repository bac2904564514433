"""Moves as nodes of a graph: derivatives, the operator's registrations, compilers, exporters and transforms."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from typing import Any

import hypothesis
import pytest
import torch
from torch._dynamo.testing import CompileCounterWithBackend
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._python_dispatch import TorchDispatchMode

from te_pkg.attention import PackedLayout, pack, pad_rows, relayout, unpack, unpad_rows, zero_padding_
from te_pkg.attention.errors import ArgumentTypeError
from tests.attention.layouts import without_host_facts
from tests.attention.row_moves import moves

# Torch warns of itself where it loads forward derivatives and inductor.
pytestmark = pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")

SOURCE = PackedLayout.from_lengths([3, 0, 2], pad_to_multiple=4, total_tokens=9)
TARGET = PackedLayout.from_lengths([3, 0, 2], pad_to_multiple=3)
EMPTY = PackedLayout.from_lengths([0, 0], total_tokens=2)

WAYS: dict[str, tuple[Callable[[torch.Tensor], torch.Tensor], tuple[int, ...]]] = {
    "relayout": (lambda x: relayout(x, SOURCE, TARGET, fill=3), (9, 2)),
    "relayout, unknown": (lambda x: relayout(x, without_host_facts(SOURCE), without_host_facts(TARGET)), (9, 2)),
    "relayout, complex": (lambda x: relayout(torch.view_as_complex(x), SOURCE, TARGET), (9, 2)),
    "relayout, nothing real": (lambda x: relayout(x, EMPTY, EMPTY), (2, 2)),
    "pack": (lambda x: pack(x, TARGET), (3, 4, 2)),
    "pack, strided": (lambda x: pack(x.transpose(0, 1), TARGET), (4, 3, 2)),
    "unpack": (lambda x: unpack(x, TARGET, 4), (6, 2)),
    "pad_rows": (lambda x: pad_rows(x, [1, 0, 4], 4)[0], (5, 2)),
    "unpad_rows": (lambda x: unpad_rows(x, [1, 0, 4], 4), (8, 2)),
}


@pytest.fixture(autouse=True)
def _no_program_is_left() -> Iterator[None]:
    yield
    torch._dynamo.reset()


class TestDerivatives:
    @pytest.mark.parametrize("way", WAYS)
    def test_first_and_second(self, way):
        function, shape = WAYS[way]
        x = torch.randn(shape, dtype=torch.float64, requires_grad=True)
        assert torch.autograd.gradcheck(function, x, check_forward_ad=True, check_batched_grad=True)
        assert torch.autograd.gradgradcheck(function, x, check_batched_grad=True)

    @hypothesis.given(move=moves())
    @hypothesis.settings(deadline=None)
    def test_the_gradient_is_the_move_backwards(self, move):
        x = torch.randn(move.source.total_tokens, 2, requires_grad=True)
        incoming = torch.randn(move.target.total_tokens, 2)
        relayout(x, move.source, move.target).backward(incoming)
        assert torch.equal(x.grad, relayout(incoming, move.target, move.source))

    def test_garbage_in_padding_rows_reaches_neither_the_result_nor_the_gradient(self):
        x = torch.full((9, 2), float("nan"))
        x[SOURCE.token_mask()] = 1
        x.requires_grad_()
        out = relayout(x, SOURCE, TARGET)
        incoming = torch.full_like(out, float("inf"))
        incoming[TARGET.token_mask()] = 2
        out.backward(incoming)
        assert out.isfinite().all()
        assert torch.equal(x.grad[:, 0], 2.0 * SOURCE.token_mask())

    def test_nothing_of_x_is_kept(self):
        saved = []
        x = torch.randn(9, 2, requires_grad=True)
        with torch.autograd.graph.saved_tensors_hooks(lambda t: saved.append(t) or t, lambda t: t):
            relayout(x, SOURCE, TARGET)
        assert all(tensor.dtype == torch.int32 and tensor.numel() == 4 for tensor in saved)

    def test_offsets_that_somebody_changes_before_the_way_back_are_noticed(self):
        source = PackedLayout.from_lengths([3, 0, 2], pad_to_multiple=4)
        x = torch.randn(8, 2, requires_grad=True)
        out = relayout(x, source, TARGET)
        source.cu_seqlens_padded.add_(0)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            out.sum().backward()

    def test_an_expanded_gradient(self):
        x = torch.randn(9, 2, requires_grad=True)
        relayout(x, SOURCE, TARGET).sum().backward()
        assert torch.equal(x.grad[:, 0], SOURCE.token_mask().float())

    def test_checkpointed(self):
        x = torch.randn(9, 2, requires_grad=True)
        torch.utils.checkpoint.checkpoint(
            lambda x: relayout(x, SOURCE, TARGET).exp(), x, use_reentrant=False
        ).sum().backward()
        assert torch.equal(x.grad, x.exp() * SOURCE.token_mask()[:, None])

    def test_under_torch_func(self):
        x = torch.randn(9, 2)
        loss = lambda x: relayout(x, SOURCE, TARGET).square().sum()  # noqa: E731
        assert torch.equal(torch.func.grad(loss)(x), 2 * x * SOURCE.token_mask()[:, None])
        batch = torch.randn(9, 5, 2)
        gradients = torch.vmap(torch.func.grad(loss), in_dims=1, out_dims=1)(batch)
        assert torch.equal(gradients, 2 * batch * SOURCE.token_mask()[:, None, None])
        tangent = torch.func.jvp(lambda x: relayout(x, SOURCE, TARGET, fill=3), (x,), (x,))[1]
        assert torch.equal(tangent, relayout(x, SOURCE, TARGET))
        moved = torch.vmap(lambda x: relayout(x, SOURCE, TARGET), in_dims=1, out_dims=1)(batch)
        assert torch.equal(moved, relayout(batch, SOURCE, TARGET))
        moved = torch.func.functionalize(lambda x: relayout(x, SOURCE, TARGET))(x)
        assert torch.equal(moved, relayout(x, SOURCE, TARGET))

    @pytest.mark.parametrize(
        "function", [lambda x: relayout(x, SOURCE, TARGET), lambda x: zero_padding_(x * 1, SOURCE)]
    )
    def test_a_whole_jacobian_at_once(self, function):
        x = torch.randn(9, 2)
        one_by_one = torch.autograd.functional.jacobian(function, x)
        assert torch.equal(torch.autograd.functional.jacobian(function, x, vectorize=True), one_by_one)


class TestOperator:
    @pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.complex64])
    @pytest.mark.parametrize("fill", [0, 2.0])
    def test_its_registrations_agree(self, dtype, fill):
        x = torch.randn(9, 2).to(dtype)
        if dtype.is_floating_point:
            x.requires_grad_()
        offsets = (SOURCE.cu_seqlens, SOURCE.cu_seqlens_padded, TARGET.cu_seqlens_padded)
        torch.library.opcheck(torch.ops.te_pkg.relayout.default, (x, *offsets, TARGET.total_tokens, fill, ""))
        out = torch.empty(TARGET.total_tokens, 2, dtype=dtype)
        torch.library.opcheck(torch.ops.te_pkg.relayout_out.default, (x.detach(), *offsets, fill, "", out))

    def test_its_derivatives(self):
        offsets = (SOURCE.cu_seqlens, SOURCE.cu_seqlens_padded, TARGET.cu_seqlens_padded)
        function = lambda x: torch.ops.te_pkg.relayout(x, *offsets, TARGET.total_tokens, 0, "")  # noqa: E731
        x = torch.randn(9, 2, dtype=torch.float64, requires_grad=True)
        assert torch.autograd.gradcheck(function, x)
        assert torch.autograd.gradgradcheck(function, x)

    def test_whoever_watches_operations_sees_one(self):
        class Operations(TorchDispatchMode):
            def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
                seen.append(func.name())
                return func(*args, **(kwargs or {}))

        seen: list[str] = []
        x = torch.zeros(9)
        with Operations():
            relayout(x, SOURCE, TARGET)
        assert seen == ["te_pkg::relayout"]

    def test_fake_tensors(self):
        with FakeTensorMode() as mode:
            source, target = (
                PackedLayout.from_cu_seqlens(
                    mode.from_tensor(layout.cu_seqlens),
                    mode.from_tensor(layout.cu_seqlens_padded),
                    layout.total_tokens,
                    3,
                )
                for layout in (SOURCE, TARGET)
            )
            x = torch.empty(9, 2, requires_grad=True)
            out = relayout(x, source, target)
            out.sum().backward()
            assert (out.shape, x.grad.shape) == ((6, 2), (9, 2))
            assert unpack(out, target).shape == (3, 3, 2)

    def test_make_fx(self):
        graph = make_fx(lambda x: relayout(x, SOURCE, TARGET))(torch.zeros(9))
        assert "te_pkg.relayout" in graph.code
        x = torch.randn(9)
        assert torch.equal(graph(x), relayout(x, SOURCE, TARGET))


def _layout(lengths: list[int]) -> PackedLayout:
    return PackedLayout.from_lengths(lengths, pad_to_multiple=2)


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
class TestCompile:
    @pytest.mark.parametrize("way", [way for way in WAYS if "unknown" not in way])
    def test_without_a_graph_break(self, backend, way):
        function, shape = WAYS[way]
        x = torch.randn(shape, requires_grad=True)
        compiled = torch.compile(lambda x: function(x * 1), fullgraph=True, backend=backend)
        incoming = torch.randn_like(function(x))
        expected, actual = function(x), compiled(x)
        assert torch.equal(actual, expected)
        assert torch.equal(*(torch.autograd.grad(out, x, incoming)[0] for out in (actual, expected)))

    def test_other_lengths_need_no_other_program(self, backend):
        counter = CompileCounterWithBackend(backend)
        compiled = torch.compile(
            lambda x, layout: unpack(pack(x * 2, layout), layout, x.shape[1]),
            fullgraph=True,
            backend=counter,
            dynamic=True,
        )
        for lengths in ([3, 1, 4], [2, 2, 2], [4, 4, 3]):
            x, layout = torch.randn(3, 5, 2), _layout(lengths)
            assert torch.equal(compiled(x, layout), unpack(pack(x * 2, layout), layout, 5))
        assert counter.frame_count <= 2

    def test_any_fill_is_a_symbol_and_looked_at_when_the_program_runs(self, backend):
        compiled = torch.compile(
            lambda x, fill: relayout(x, SOURCE, TARGET, fill=fill), fullgraph=True, backend=backend, dynamic=True
        )
        x = torch.randn(9, 2)
        for fill in (0, 1, 1.5, -2.5, float("inf")):
            assert torch.equal(compiled(x, fill), relayout(x, SOURCE, TARGET, fill=fill))
        with pytest.raises(ArgumentTypeError, match=r"^fill is 300, expected a number that torch.int8 can hold$"):
            compiled(x.to(torch.int8), 300)

    def test_into_given_memory(self, backend):
        compiled = torch.compile(lambda x, out: pack(x * 2, TARGET, out=out), fullgraph=True, backend=backend)
        x, out = torch.randn(3, 4, 2), torch.full((6, 2), float("nan"))
        assert compiled(x, out) is out
        assert torch.equal(out, pack(x * 2, TARGET))

    def test_a_wrong_buffer_is_refused(self, backend):
        compiled = torch.compile(lambda x: relayout(x, SOURCE, TARGET), backend=backend)
        with pytest.raises(ValueError, match="x has 8 rows, expected 9 as source"):
            compiled(torch.zeros(8))


@pytest.mark.skipif(shutil.which("g++") is None, reason="needs a C++ compiler")
def test_inductor():
    function = lambda x, layout: (unpack(pack(x * 2, layout), layout, 4) + 1).square()  # noqa: E731
    compiled = torch.compile(function, fullgraph=True)
    x = torch.randn(3, 4, 2, requires_grad=True)
    layout = _layout([3, 0, 2])
    actual, expected = compiled(x, layout), function(x, layout)
    assert torch.equal(actual, expected)
    assert torch.allclose(*(torch.autograd.grad(out.sum(), x)[0] for out in (actual, expected)))


class _Model(torch.nn.Module):
    def forward(self, x: torch.Tensor, layout: PackedLayout) -> torch.Tensor:
        return unpack(pack(x, layout), layout, x.shape[1])


@pytest.mark.parametrize("strict", [True, False])
def test_export(strict):
    x, layout = torch.randn(3, 4, 2), _layout([3, 1, 2])
    program = torch.export.export(_Model(), (x, layout), strict=strict)
    other = _layout([1, 3, 2])
    assert torch.equal(program.module()(x, other), _Model()(x, other))
    assert str(program.graph).count("te_pkg.relayout") == 2
