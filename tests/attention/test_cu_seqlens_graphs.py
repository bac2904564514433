"""Offsets of full sequences in programs: compiled, exported, traced and transformed, and nothing is kept."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch._dynamo.testing import CompileCounterWithBackend
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.export import Dim
from torch.fx.experimental.proxy_tensor import make_fx

from te_pkg.attention import (
    cache_info,
    clear_caches,
    get_full_cu_seqlens,
)
from te_pkg.attention.errors import (
    OffsetOverflowError,
)

INT32_MAX = 2**31 - 1


def kept() -> int:
    return cache_info()["full_cu_seqlens"].entries


@pytest.fixture(autouse=True)
def _no_tensor_is_left_by_another_test() -> Iterator[None]:
    clear_caches()
    yield
    torch._dynamo.reset()


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
