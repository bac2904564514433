"""packed_attention under compilers, fake tensors, modes, and where nothing may be waited for."""

from __future__ import annotations

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils.flop_counter import FlopCounterMode

from te_pkg.attention import PackedLayout, packed_attention
from te_pkg.attention.capture import mark_capturing
from tests.attention.attention_problems import assert_close, poisoned
from tests.attention.layouts import without_host_facts
from tests.attention.no_sync import SyncError, forbid_sync

BANDS = [
    {"causal": True},
    {"causal": True, "align": "bottom_right", "window": (2, -1)},
    {"softcap": 1.5, "scale": 0.3},
    {"backend": "dense"},
]


def sides():
    layout = PackedLayout.from_lengths([3, 0, 5], pad_to_multiple=4, total_tokens=14)
    return layout, PackedLayout.from_lengths([4, 2, 6], total_tokens=13)


def tensors(layout, keys):
    return [poisoned(of, heads, 4, seed=heads).requires_grad_() for of, heads in ((layout, 4), (keys, 2), (keys, 2))]


def both_passes(attend, inputs, layout, keys):
    out, lse = attend(*inputs, layout, keys)
    d_out = poisoned(layout, 4, 4, seed=9)
    return (out, lse, *torch.autograd.grad((out, lse), inputs, (d_out, torch.ones_like(lse))))


class TestCompile:
    @pytest.mark.parametrize("band", BANDS, ids=str)
    @pytest.mark.parametrize("dynamic", [False, True])
    def test_it_is_one_node_and_gives_the_same(self, band, dynamic):
        torch._dynamo.reset()
        layout, keys = sides()

        def attend(q, k, v, layout, keys):
            return packed_attention(q, k, v, layout, keys, return_lse=True, **band)

        compiled = torch.compile(attend, fullgraph=True, backend="aot_eager", dynamic=dynamic)
        inputs = tensors(layout, keys)
        for found, expected in zip(
            both_passes(compiled, inputs, layout, keys), both_passes(attend, inputs, layout, keys), strict=True
        ):
            torch.testing.assert_close(found, expected)

    def test_other_lengths_of_the_same_sizes_are_no_other_program(self):
        torch._dynamo.reset()
        programs = []

        def count(graph, inputs):
            programs.append(graph)
            return graph.forward

        compiled = torch.compile(
            lambda x, of: packed_attention(x, x, x, of, causal=True), fullgraph=True, backend=count
        )
        for lengths in ([3, 5], [4, 4], [5, 3]):
            layout = PackedLayout.from_lengths(lengths, total_tokens=9, max_seqlen=5)
            x = poisoned(layout, 2, 4)
            torch.testing.assert_close(compiled(x, layout), packed_attention(x, x, x, layout, causal=True))
        assert len(programs) == 1

    def test_dropout_compiles(self):
        torch._dynamo.reset()
        layout, _ = sides()
        q = poisoned(layout, 2, 4).requires_grad_()
        compiled = torch.compile(
            lambda q, of: packed_attention(q, q, q, of, dropout_p=0.5), fullgraph=True, backend="aot_eager"
        )
        out = compiled(q, layout)
        assert out.isfinite().all()
        out.sum().backward()
        assert q.grad.isfinite().all()

    def test_a_refused_backend_is_refused_when_the_program_runs(self):
        torch._dynamo.reset()
        layout, _ = sides()
        q = poisoned(layout, 2, 4)
        compiled = torch.compile(
            lambda q, of: packed_attention(q, q, q, of, softcap=1.0, backend="sdpa"), backend="aot_eager"
        )
        with pytest.raises(Exception, match="no soft cap"):
            compiled(q, layout)


def test_an_exported_program_gives_the_same():
    class Module(torch.nn.Module):
        def forward(self, q, k, v, layout, keys):
            return packed_attention(q, k, v, layout, keys, causal=True)

    layout, keys = sides()
    inputs = [x.detach() for x in tensors(layout, keys)]
    program = torch.export.export(Module(), (*inputs, layout, keys))
    torch.testing.assert_close(program.module()(*inputs, layout, keys), Module()(*inputs, layout, keys))
    names = [str(node.target) for node in program.graph.nodes if node.op == "call_function"]
    assert "te_pkg.packed_attention.default" in names


def test_fake_tensors_have_the_right_shapes():
    with FakeTensorMode():
        layout = PackedLayout.from_cu_seqlens(torch.empty(4, dtype=torch.int32), None, 12, 5)
        q = torch.empty(12, 4, 8, dtype=torch.bfloat16, requires_grad=True)
        k = torch.empty(12, 2, 8, dtype=torch.bfloat16, requires_grad=True)
        v = torch.empty(12, 2, 6, dtype=torch.bfloat16, requires_grad=True)
        out, lse = packed_attention(q, k, v, layout, causal=True, return_lse=True)
        assert (out.shape, out.dtype) == ((12, 4, 6), torch.bfloat16)
        assert (lse.shape, lse.dtype) == ((4, 12), torch.float32)
        out.sum().backward()
        assert [x.grad.shape for x in (q, k, v)] == [x.shape for x in (q, k, v)]


@pytest.mark.parametrize("backend", ["sdpa", "dense"])
@pytest.mark.parametrize("tight", [False, True])
def test_the_operators_pass_the_checks_of_torch(backend, tight):
    from te_pkg.attention.backends.operators import _attend, _flat
    from te_pkg.attention.backends.problem import AttentionProblem

    layout, keys = (PackedLayout.from_lengths([5, 1]),) * 2 if tight else sides()
    problem = AttentionProblem.of(layout, keys, scale=0.5, causal=True)
    inputs = [x.detach().nan_to_num().requires_grad_() for x in tensors(layout, keys)]
    torch.library.opcheck(
        _attend,
        (*inputs, *_flat(problem), backend),
        test_utils=("test_schema", "test_faketensor", "test_autograd_registration"),
    )


def test_a_mode_that_watches_operations_sees_one():
    layout, _ = sides()
    q = poisoned(layout, 2, 4, dtype=torch.float32).requires_grad_()
    with FlopCounterMode(display=False):
        watched = packed_attention(q, q, q, layout, causal=True)
    torch.testing.assert_close(watched, packed_attention(q, q, q, layout, causal=True))


def test_under_a_mode_too_a_gradient_has_a_gradient():
    layout, keys = sides()
    inputs = tensors(layout, keys)

    def twice():
        out = packed_attention(*inputs, layout, keys, causal=True)
        first = torch.autograd.grad(out.square().sum(), inputs, create_graph=True)
        return torch.autograd.grad(sum(x.square().sum() for x in first), inputs)

    expected = twice()
    with FlopCounterMode(display=False):
        found = twice()
    for x, truth in zip(found, expected, strict=True):
        torch.testing.assert_close(x, truth)


def test_tensors_without_memory_have_shapes():
    layout = PackedLayout.from_lengths([3, 2]).to("meta")
    q = torch.empty(5, 2, 4, device="meta", requires_grad=True)
    out, lse = packed_attention(q, q, q, layout, return_lse=True)
    out.sum().backward()
    assert (out.shape, lse.shape, q.grad.shape) == ((5, 2, 4), (2, 5), (5, 2, 4))


class TestNoSync:
    @pytest.mark.parametrize("band", BANDS, ids=str)
    @pytest.mark.parametrize("mode", [True, False])
    def test_without_host_facts_nothing_is_waited_for(self, band, mode):
        layout, keys = (without_host_facts(of) for of in sides())
        inputs = tensors(layout, keys)
        gradients = poisoned(layout, 4, 4, seed=9), torch.ones(4, 14, dtype=torch.float64)
        with forbid_sync(mode=mode, uploads=False), mark_capturing():
            out, lse = packed_attention(*inputs, layout, keys, return_lse=True, **band)
            found = torch.autograd.grad((out, lse), inputs, gradients)
        expected = both_passes(lambda *given: packed_attention(*given, return_lse=True, **band), inputs, *sides())
        for x, truth in zip((out, lse, *found), expected, strict=True):
            torch.testing.assert_close(x, truth)

    def test_known_lengths_are_not_used_under_capture_and_sdpa_says_so(self):
        layout, _ = sides()
        q = poisoned(layout, 2, 4)
        with mark_capturing():
            with pytest.raises(RuntimeError, match="lengths of layout are not known"):
                packed_attention(q, q, q, layout, backend="sdpa")
            with forbid_sync(mode=False):
                out = packed_attention(q, q, q, layout)
        assert_close(out, packed_attention(q, q, q, layout), layout)

    def test_dropout_waits_for_nothing(self):
        layout = without_host_facts(sides()[0])
        q = poisoned(layout, 2, 4)
        with forbid_sync(uploads=False), mark_capturing():
            out = packed_attention(q, q, q, layout, dropout_p=0.5)
        assert out.isfinite().all()

    def test_the_loop_of_sdpa_is_what_the_proof_would_catch(self):
        layout = without_host_facts(sides()[0])
        q = poisoned(layout, 2, 4)
        with pytest.raises(SyncError), forbid_sync(mode=False):
            packed_attention(q, q, q, layout, backend="sdpa")
