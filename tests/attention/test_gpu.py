"""What only a GPU can show: real capture and replay, Triton kernels as the device runs them, real waiting.

Imported without hypothesis, because ``scripts/gpu_check.py`` runs it where pytest is and none of its plugins.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from te_pkg.attention import (
    PackedLayout,
    PaddingDecisions,
    StalePaddingDecision,
    cache_info,
    clear_caches,
    get_full_cu_seqlens,
    pack,
    pad_rows,
    relayout,
    resolve_pad_between_seqs,
    unpack,
    unpad_rows,
    zero_padding,
    zero_padding_,
)
from te_pkg.attention.errors import HostReadError
from te_pkg.attention.kernels import PaddingRows, RowMove, Slots, choose, reference
from tests.attention.gpu_tools import (
    Buffers,
    assert_same_bits,
    capture,
    moved,
    no_waiting,
    padding_mask,
    random_layout,
    random_rows,
)

DEVICE = "cuda:0"

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU"),
]

DTYPES = [
    *(torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2),
    *(torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool, torch.complex64, torch.complex128),
]
ROWS = [(), (1,), (3,), (7, 5), (129,), (16, 64), (3, 1031), (0,)]


@pytest.fixture(autouse=True)
def _nothing_is_left_by_another_test() -> Iterator[None]:
    clear_caches()
    yield
    torch.cuda.synchronize()


class TestKernel:
    """The kernel itself, on tensors that no layout would hold, against the reference."""

    def test_a_gpu_gets_the_one_in_triton(self, monkeypatch):
        monkeypatch.delenv("TE_PKG_KERNELS", raising=False)
        assert choose(torch.device(DEVICE)) is choose(torch.device(DEVICE), "triton")

    @pytest.mark.parametrize("dtypes", ["iii", "lll", "ili", "lil"])
    def test_offsets_of_both_widths(self, dtypes):
        kinds = {"i": torch.int32, "l": torch.int64}
        source, target = random_layout(20), random_layout(21, list(random_layout(20).lengths or ()))
        x = random_rows(source.total_tokens, (5,), torch.float32)

        def move_on(device: str) -> RowMove:
            offsets = source.cu_seqlens, source.cu_seqlens_padded, target.cu_seqlens_padded
            cu, here, there = (o.to(device, kinds[kind]) for o, kind in zip(offsets, dtypes, strict=True))
            return RowMove(cu, Slots(here, source.total_tokens), Slots(there, target.total_tokens))

        kernel = choose(torch.device(DEVICE), "triton")
        there = move_on(DEVICE)
        assert_same_bits(kernel.move_rows(x.to(DEVICE), there, 3), reference.move_rows(x, move_on("cpu"), 3))
        dirty = x.to(DEVICE)
        kernel.fill_padding_(dirty, PaddingRows(there.cu_seqlens, there.source), 3)
        reference.fill_padding_(x, PaddingRows(source.cu_seqlens, Slots(source.cu_seqlens_padded, len(x))), 3)
        assert_same_bits(dirty, x)

    @pytest.mark.parametrize("shift", [1, 2, 3])
    def test_memory_that_is_not_aligned(self, shift):
        layout = random_layout(22)
        for dtype in (torch.uint8, torch.bfloat16, torch.float32):
            x = random_rows(layout.total_tokens * 16 + shift, (), dtype)
            here, there = (t[shift:].view(-1, 16) for t in (x, x.to(DEVICE)))
            assert_same_bits(relayout(there, layout.to(DEVICE), layout.to(DEVICE)), moved(here, layout, layout))
            assert_same_bits(zero_padding_(there, layout.to(DEVICE)), moved(here, layout, layout))

    def test_more_words_than_int32_can_count(self):
        words = 2**30 + 1  # odd, so that a word is one byte
        if torch.cuda.mem_get_info(DEVICE)[0] < 12 * words:
            pytest.skip("needs 12 GB of free memory")
        source = PackedLayout.from_lengths([1, 2], device=DEVICE)
        target = PackedLayout.from_lengths([1, 2], pad_to_multiple=2, device=DEVICE)
        x = torch.randint(1, 256, (3, words), dtype=torch.uint8, device=DEVICE)
        out = relayout(x, source, target)
        assert not out[1].any()
        assert all(torch.equal(out[there], x[here]) for here, there in enumerate((0, 2, 3)))
        out[1] = 1
        zero_padding_(out, target)
        assert not out[1].any()
        assert torch.equal(out[3], x[2])


class TestRelayout:
    @pytest.mark.parametrize("dtype", DTYPES, ids=str)
    def test_every_dtype(self, dtype):
        lengths = [5, 0, 33, 1, 64, 7]
        source, target = random_layout(1, lengths), random_layout(2, lengths, gap=9, capacity=0)
        for shape in ((), (3,), (16, 64)):
            x = random_rows(source.total_tokens, shape, dtype)
            out = relayout(x.to(DEVICE), source.to(DEVICE), target.to(DEVICE))
            assert_same_bits(out, moved(x, source, target))

    @pytest.mark.parametrize("shape", ROWS, ids=str)
    def test_every_size_of_row(self, shape):
        for seed in range(4):
            source = random_layout(seed)
            target = random_layout(seed + 100, list(source.lengths or ()), gap=seed)
            x = random_rows(source.total_tokens, shape, torch.bfloat16)
            poisoned = torch.full((target.total_tokens, *shape), torch.nan, dtype=x.dtype, device=DEVICE)
            relayout(x.to(DEVICE), source.to(DEVICE), target.to(DEVICE), fill=2, out=poisoned)
            assert_same_bits(poisoned, moved(x, source, target, 2))

    def test_nothing_at_all(self):
        empty = PackedLayout.from_lengths([], device=DEVICE)
        for total in (0, 3):
            room = PackedLayout.from_lengths([], total_tokens=total, device=DEVICE)
            assert relayout(torch.zeros(0, 5, device=DEVICE), empty, room, fill=1).tolist() == [[1.0] * 5] * total

    def test_thousands_of_short_sequences(self):
        source = random_layout(3, [i % 17 for i in range(4096)])
        target = random_layout(4, [i % 17 for i in range(4096)])
        x = random_rows(source.total_tokens, (33,), torch.float32)
        assert_same_bits(relayout(x.to(DEVICE), source.to(DEVICE), target.to(DEVICE)), moved(x, source, target))

    def test_rows_with_strides(self):
        source = random_layout(5)
        target = random_layout(6, list(source.lengths or ()))
        x = random_rows(source.total_tokens, (6, 8), torch.float32)
        there = x.to(DEVICE)
        for view in (there[:, ::2], there.transpose(1, 2), there[:, :1].expand(-1, 6, -1)):
            assert_same_bits(relayout(view, source.to(DEVICE), target.to(DEVICE)), moved(view.cpu(), source, target))

    def test_gradients_are_those_of_the_cpu(self):
        source = random_layout(7)
        target = random_layout(8, list(source.lengths or ()))
        x = torch.randn(source.total_tokens, 9, dtype=torch.float64)
        weight = torch.randn(target.total_tokens, 9, dtype=torch.float64)
        gradients = []
        for device in ("cpu", DEVICE):
            leaf = x.to(device, copy=True).requires_grad_()
            out = relayout(leaf, source.to(device), target.to(device)).sin() * weight.to(device)
            gradients.append(torch.autograd.grad(out.sum(), leaf)[0])
        torch.testing.assert_close(gradients[1].cpu(), gradients[0])

    def test_there_and_back(self):
        layout = random_layout(9, device=DEVICE)
        x = torch.randn(layout.total_tokens, 4, device=DEVICE)
        clean = zero_padding(x, layout)
        assert_same_bits(pack(unpack(x, layout), layout), clean)
        splits = torch.tensor([5, 0, 17, 3], device=DEVICE)
        rows = torch.randn(25, 7, device=DEVICE)
        padded, padded_splits = pad_rows(rows, splits, 16)
        assert padded_splits.tolist() == [16, 0, 32, 16]
        assert_same_bits(unpad_rows(padded, splits, 16), rows)

    def test_no_waiting_with_a_layout_that_is_there(self):
        source = random_layout(10, device=DEVICE)
        target = random_layout(11, list(source.lengths or ()), device=DEVICE)
        x = torch.randn(source.total_tokens, 16, device=DEVICE, requires_grad=True)
        relayout(x, source, target).sum().backward()
        with no_waiting():
            relayout(x, source, target).sum().backward()
            zero_padding_(x.detach(), source)
            zero_padding(x, source).sum().backward()


class TestCapture:
    def test_relayout_follows_its_buffers(self):
        buffers = Buffers(DEVICE)
        buffers.refill(0)
        graph, out = capture(
            lambda: relayout(buffers.x, buffers.layout(buffers.source), buffers.layout(buffers.target), fill=-1)
        )
        for seed in range(1, 5):
            x, source, target = buffers.refill(seed)
            out.fill_(torch.nan)
            graph.replay()
            assert_same_bits(out, moved(x, source, target, -1))

    def test_zeroing_in_place_follows_its_buffers(self):
        buffers = Buffers(DEVICE)
        buffers.refill(0)
        graph, _ = capture(lambda: zero_padding_(buffers.x, buffers.layout(buffers.source)))
        for seed in range(1, 5):
            x, source, _ = buffers.refill(seed)
            graph.replay()
            assert_same_bits(buffers.x, moved(x, source, source))

    def test_forward_and_backward_of_a_step(self):
        buffers = Buffers(DEVICE)
        buffers.refill(0)
        leaf = buffers.x.requires_grad_()

        def step() -> torch.Tensor:
            layout = buffers.layout(buffers.source)
            clean = zero_padding(leaf, layout)
            moved_rows = relayout(clean, layout, buffers.layout(buffers.target))
            return torch.autograd.grad((moved_rows**3).sum(), leaf)[0]

        graph, gradient = capture(step)
        for seed in range(1, 4):
            with torch.no_grad():
                x, source, _ = buffers.refill(seed)
            graph.replay()
            torch.testing.assert_close(gradient.cpu(), 3 * moved(x, source, source) ** 2)

    def test_a_tensor_first_asked_for_under_capture_is_not_kept(self):
        def use() -> torch.Tensor:
            return get_full_cu_seqlens(5, 7, DEVICE) * 1

        graph, out = capture(use, warm_up=False)
        assert cache_info()["full_cu_seqlens"].entries == 0
        kept = get_full_cu_seqlens(5, 7, DEVICE)
        other, _ = capture(lambda: torch.full((4096,), -1, dtype=torch.int32, device=DEVICE), warm_up=False)
        for _ in range(3):
            graph.replay()
            other.replay()
        assert get_full_cu_seqlens(5, 7, DEVICE) is kept
        assert kept.tolist() == out.tolist() == [0, 7, 14, 21, 28, 35]


class TestResolve:
    @staticmethod
    def pair(*values: int) -> tuple[torch.Tensor, torch.Tensor]:
        cu = torch.tensor(values, dtype=torch.int32, device=DEVICE)
        return cu, cu.clone()

    def test_warm_up_then_capture_then_a_refilled_buffer(self):
        memory = PaddingDecisions()
        cu, padded = self.pair(0, 8, 16)
        graph, answer = capture(lambda: resolve_pad_between_seqs(cu, cu, padded, padded, decisions=memory))
        assert answer is False
        for _ in range(3):
            graph.replay()
        memory.verify_replay()
        padded.copy_(torch.tensor([0, 9, 17]))
        graph.replay()
        padded.copy_(cu)
        graph.replay()
        with pytest.raises(StalePaddingDecision, match=r"int32 \[3\] on cuda:0, differ at entry 1") as raised:
            memory.verify_replay()
        assert "cu_seqlens_q_padded" in raised.value.buffers[0].arguments
        memory.verify_replay()
        graph.replay()
        memory.verify_replay()

    def test_only_the_last_slot_and_several_ranks(self):
        memory = PaddingDecisions()
        cu, padded = self.pair(0, 8, 16)
        graphs = [
            capture(lambda c=c: resolve_pad_between_seqs(cu, cu, padded, padded, cp_size=c, decisions=memory))[0]
            for c in (1, 4)
        ]
        padded.copy_(torch.tensor([0, 8, 24]))
        graphs[0].replay()
        memory.verify_replay()
        graphs[1].replay()
        with pytest.raises(StalePaddingDecision, match="entry 2"):
            memory.verify_replay()

    def test_never_seen_or_edited_since_is_true_and_does_not_break_the_capture(self):
        memory = PaddingDecisions()
        cu, padded = self.pair(0, 8, 16)
        ask = lambda: (resolve_pad_between_seqs(cu, cu, padded, padded, decisions=memory), cu + 1)  # noqa: E731
        graph, (answer, _) = capture(ask, warm_up=False)
        assert answer is True
        assert ask()[0] is False
        padded.add_(0)
        graph, (answer, out) = capture(ask, warm_up=False)
        assert answer is True
        graph.replay()
        assert out.tolist() == [1, 9, 17]

    def test_a_hit_does_not_wait(self):
        memory = PaddingDecisions()
        cu, padded = self.pair(0, 8, 16)
        resolve_pad_between_seqs(cu, cu, padded, padded, decisions=memory)
        with no_waiting():
            assert resolve_pad_between_seqs(cu, cu, padded, padded, decisions=memory) is False

    def test_what_a_replay_noted_is_in_no_memory_of_a_graph(self):
        memory = PaddingDecisions()
        cu, padded = self.pair(0, 8, 16)
        graph, _ = capture(lambda: resolve_pad_between_seqs(cu, cu, padded, padded, decisions=memory))
        other = torch.cuda.CUDAGraph()
        with torch.cuda.graph(other, pool=graph.pool()):
            for size in (1, 3, 4, 64, 1024, 1 << 20):
                torch.full((size,), -1, dtype=torch.int32, device=DEVICE)
        for _ in range(3):
            graph.replay()
            other.replay()
        memory.verify_replay()
        padded.add_(1)
        graph.replay()
        other.replay()
        with pytest.raises(StalePaddingDecision):
            memory.verify_replay()

    def test_a_replay_on_another_stream_is_waited_for(self):
        memory = PaddingDecisions()
        cu, padded = self.pair(0, 8, 16)
        graph, _ = capture(lambda: resolve_pad_between_seqs(cu, cu, padded, padded, decisions=memory))
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            torch.cuda._sleep(20_000_000)
            padded.add_(1)
            graph.replay()
        with pytest.raises(StalePaddingDecision):
            memory.verify_replay()

    def test_to_verify_under_capture_is_refused_and_the_capture_goes_on(self):
        memory = PaddingDecisions()
        cu, padded = self.pair(0, 8, 16)

        def work() -> torch.Tensor:
            resolve_pad_between_seqs(cu, cu, padded, padded, decisions=memory)
            if torch.cuda.is_current_stream_capturing():
                with pytest.raises(HostReadError):
                    memory.verify_replay()
            return cu * 2

        graph, out = capture(work)
        graph.replay()
        assert out.tolist() == [0, 16, 32]

    def test_the_callers_offsets_may_go_before_the_graph(self):
        memory = PaddingDecisions()

        def of_buffers_that_go() -> torch.cuda.CUDAGraph:
            cu, padded = self.pair(*range(0, 4096, 2))
            return capture(lambda: resolve_pad_between_seqs(cu, cu, padded, padded, decisions=memory))[0]

        graph = of_buffers_that_go()
        torch.cuda.empty_cache()
        _others = [torch.full((2048,), i, dtype=torch.int32, device=DEVICE) for i in range(64)]
        graph.replay()
        memory.verify_replay()


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
class TestTwoDevices:
    def test_rows_on_a_device_that_is_not_current(self):
        source = random_layout(12)
        target = random_layout(13, list(source.lengths or ()))
        x = random_rows(source.total_tokens, (17,), torch.float32)
        for device in ("cuda:1", "cuda:0"):
            out = relayout(x.to(device), source.to(device), target.to(device))
            assert out.device == torch.device(device)
            assert_same_bits(out, moved(x, source, target))
            dirty = torch.full((source.total_tokens, 5), torch.nan, device=device)
            zero_padding_(dirty, source.to(device))
            assert torch.equal(dirty.isnan().any(1).cpu(), ~padding_mask(source))

    def test_each_device_has_its_own_kept_tensor(self):
        first, second = get_full_cu_seqlens(3, 4, "cuda:0"), get_full_cu_seqlens(3, 4, "cuda:1")
        assert (first.device.index, second.device.index) == (0, 1)
        with torch.cuda.device(1):
            assert get_full_cu_seqlens(3, 4, "cuda") is second

    def test_graphs_on_both_are_verified(self):
        memory = PaddingDecisions()
        graphs, buffers = [], []
        for index in (0, 1):
            with torch.cuda.device(index):
                cu = torch.tensor([0, 8, 16], dtype=torch.int32, device=f"cuda:{index}")
                padded = cu.clone()
                ask = lambda cu=cu, p=padded: resolve_pad_between_seqs(cu, cu, p, p, decisions=memory)  # noqa: E731
                graph, answer = capture(ask)
                assert answer is False
                graphs.append(graph)
                buffers.append(padded)
        for index in (0, 1):
            with torch.cuda.device(index):
                buffers[index].add_(1)
                graphs[index].replay()
        with pytest.raises(StalePaddingDecision) as raised:
            memory.verify_replay()
        assert {stale.device.index for stale in raised.value.buffers} == {0, 1}
