"""Checks that a graph makes of itself: a refilled buffer is caught, whatever the capture's Python has forgotten."""

from __future__ import annotations

import doctest
import gc
import pickle
import weakref
from itertools import accumulate

import hypothesis
import pytest
import torch
from hypothesis import strategies as st

from te_pkg.attention import (
    Padding,
    PaddingDecisions,
    StaleOffsets,
    StalePaddingDecision,
    clear_caches,
    padding_decisions,
    replay_checks,
    resolve_pad_between_seqs,
    verify_replay,
)
from te_pkg.attention.capture import mark_capturing
from te_pkg.attention.errors import AttentionError, HostReadError
from tests.attention.layouts import layouts
from tests.attention.no_sync import forbid_sync
from tests.attention.questions import capture, offsets
from tests.attention.recorded_graph import RecordedGraph


class TestReplay:
    def test_unchanged_buffers_pass(self, memory):
        cu, padded = offsets(0, 8, 16), offsets(0, 8, 16)
        graph, answer = capture(memory, cu, cu, padded, padded)
        assert answer is False
        for _ in range(3):
            graph.replay()
            memory.verify_replay()

    def test_a_refill_without_padding_between_passes(self, memory):
        cu, padded = offsets(0, 8, 16), offsets(0, 8, 16)
        graph, _ = capture(memory, cu, cu, padded, padded)
        cu.copy_(offsets(0, 2, 7))
        padded.copy_(offsets(0, 2, 12))
        graph.replay()
        memory.verify_replay()

    def test_a_refill_with_padding_between_is_caught_and_named(self, memory):
        cu, padded = offsets(0, 8, 16), offsets(0, 8, 16)
        graph, _ = capture(memory, cu, cu, padded, padded)
        padded.copy_(offsets(0, 9, 17))
        memory.verify_replay()  # not replayed yet
        graph.replay()
        with pytest.raises(StalePaddingDecision) as raised:
            memory.verify_replay()
        assert isinstance(raised.value, RuntimeError)
        assert isinstance(raised.value, AttentionError)
        names = ("cu_seqlens_q", "cu_seqlens_q_padded", "cu_seqlens_kv", "cu_seqlens_kv_padded")
        assert raised.value.buffers == (
            StaleOffsets(names, (3,), (torch.int32, torch.int32), torch.device("cpu"), (1,)),
        )
        lines = str(raised.value).splitlines()
        assert lines[1] == f"{' and '.join(names)}, int32 [3] on cpu, differ at entry 1"
        assert lines[2].startswith("hint: results since the last verify_replay() may be wrong")
        assert "capture again" in lines[2]
        assert "pad_between_seqs=True" in lines[2]

    def test_what_an_earlier_replay_met_is_still_known_and_raised_once(self, memory):
        cu, padded = offsets(0, 8, 16), offsets(0, 8, 16)
        graph, _ = capture(memory, cu, cu, padded, padded)
        for values in ((0, 9, 17), (0, 8, 16), (0, 8, 16)):
            padded.copy_(offsets(*values))
            graph.replay()
        with pytest.raises(StalePaddingDecision):
            memory.verify_replay()
        memory.verify_replay()
        graph.replay()
        memory.verify_replay()

    @pytest.mark.parametrize(("cp_size", "caught"), [(1, False), (4, True)])
    def test_last_padding_counts_where_the_question_was_for_several_ranks(self, memory, cp_size, caught):
        cu, padded = offsets(0, 8, 16), offsets(0, 8, 16)
        graph, answer = capture(memory, cu, cu, padded, padded, cp_size=cp_size)
        assert answer is False
        padded.copy_(offsets(0, 8, 20))
        graph.replay()
        if caught:
            with pytest.raises(StalePaddingDecision, match="entry 2"):
                memory.verify_replay()
        memory.verify_replay()

    def test_only_the_side_that_broke_is_named(self, memory):
        q, kv, q_padded, kv_padded = (offsets(0, 8, 16) for _ in range(4))
        graph, _ = capture(memory, q, kv, q_padded, kv_padded)
        kv_padded.copy_(offsets(0, 10, 18))
        graph.replay()
        with pytest.raises(StalePaddingDecision) as raised:
            memory.verify_replay()
        (stale,) = raised.value.buffers
        assert stale.arguments == ("cu_seqlens_kv", "cu_seqlens_kv_padded")

    def test_every_pair_that_broke_is_named(self, memory):
        q, kv, q_padded, kv_padded = (offsets(0, 8, 16) for _ in range(4))
        graph, _ = capture(memory, q, kv, q_padded, kv_padded)
        q_padded.copy_(offsets(0, 9, 17))
        kv.copy_(offsets(0, 7, 15))
        graph.replay()
        with pytest.raises(StalePaddingDecision) as raised:
            memory.verify_replay()
        assert len(raised.value.buffers) == 2

    def test_many_entries_are_cut_short(self, memory):
        cu, padded = torch.arange(20), torch.arange(20)
        graph, _ = capture(memory, cu, cu, padded, padded)
        padded.mul_(2)
        graph.replay()
        with pytest.raises(
            StalePaddingDecision, match=r"int64 \[20\] on cpu, differ at entry 1, 2, 3, 4, 5, \.\.\."
        ) as r:
            memory.verify_replay()
        assert r.value.buffers[0].entries == tuple(range(1, 19))

    def test_dtypes_that_differ_lose_no_bits(self, memory):
        cu, padded = offsets(0, 8, 16), offsets(0, 8, 16, dtype=torch.int64)
        graph, _ = capture(memory, cu, cu, padded, padded)
        padded.copy_(offsets(0, 8 + 2**32, 16 + 2**32, dtype=torch.int64))
        graph.replay()
        with pytest.raises(StalePaddingDecision, match="int32 and int64"):
            memory.verify_replay()

    def test_a_write_that_no_version_counts_is_caught_by_the_replay(self, memory):
        cu, padded = offsets(0, 8, 16), offsets(0, 8, 16)
        graph, _ = capture(memory, cu, cu, padded, padded)
        padded.numpy()[1:] += 1
        assert resolve_pad_between_seqs(cu, cu, padded, padded, decisions=memory) is False
        graph.replay()
        with pytest.raises(StalePaddingDecision):
            memory.verify_replay()
        # and the answer that was wrong is not given again
        assert resolve_pad_between_seqs(cu, cu, padded, padded, decisions=memory) is True

    @hypothesis.settings(deadline=None)
    @hypothesis.given(data=st.data(), cp_size=st.sampled_from([1, 2]))
    def test_it_raises_exactly_where_a_refill_has_padding_that_was_ruled_out(self, data, cp_size):
        counted = Padding.BETWEEN | Padding.LAST if cp_size > 1 else Padding.BETWEEN
        first = data.draw(layouts(kinds=~counted & Padding(7))).layout
        b = first.num_sequences
        rows = data.draw(layouts(max_sequences=b)).rows
        # As many sequences as before: the others are empty.
        slots = [*rows.slots, *[0] * (b - len(rows.slots))]
        gaps = [slot - length for slot, length in zip(slots, [*rows.lengths, *slots[len(rows.slots) :]], strict=True)]
        cu, padded = first.cu_seqlens.clone(), first.cu_seqlens_padded.clone()
        memory = PaddingDecisions()
        graph, answer = capture(memory, cu, cu, padded, padded, cp_size=cp_size)
        assert answer is False
        padded.copy_(offsets(*accumulate(slots, initial=0)))
        cu.copy_(padded - offsets(*accumulate(gaps, initial=0)))
        graph.replay()
        if any(gaps if cp_size > 1 else gaps[:-1]):
            with pytest.raises(StalePaddingDecision):
                memory.verify_replay()
        memory.verify_replay()


class TestRecord:
    def test_only_device_operations_and_no_memory_that_is_made_meanwhile(self, memory):
        cu, padded = offsets(0, 8, 16), offsets(0, 8, 16)
        graph, _ = capture(memory, cu, cu, padded, padded)
        kernels = [name for name in graph.names if name not in ("slice", "detach", "alias")]
        assert kernels == ["bitwise_xor", "bitwise_or_"]
        # What is read after the replay was there before the capture: the one output that lasts is written in place.
        (note,) = (args[0] for func, args, _, _ in graph.operations if func._schema.name == "aten::bitwise_or_")
        made = [o for func, *_, o in graph.operations if func._schema.name == "aten::bitwise_xor"]
        assert note.untyped_storage().data_ptr() not in {o.untyped_storage().data_ptr() for o in made}

    def test_a_graph_that_took_the_slow_branch_checks_nothing(self, memory):
        q, kv, equal, gap, new = (offsets(0, 8 + i // 3, 16 + i // 3) for i in (0, 0, 0, 3, 0))
        resolve_pad_between_seqs(q, kv, equal, gap, decisions=memory)
        with RecordedGraph() as graph:
            assert resolve_pad_between_seqs(q, kv, equal, gap, decisions=memory) is True
            # known without padding, beside a side that is not known
            assert resolve_pad_between_seqs(q, kv, equal, new, decisions=memory) is True
        assert graph.operations == []
        equal.add_(1)
        graph.replay()
        memory.verify_replay()

    def test_eager_records_nothing(self, memory):
        cu, padded = offsets(0, 8, 16), offsets(0, 8, 16)
        for _ in range(2):
            resolve_pad_between_seqs(cu, cu, padded, padded, decisions=memory)
        assert memory._recorded == {}

    def test_graphs_over_the_same_buffers_share_one_check(self, memory):
        cu, padded = offsets(0, 8, 16), offsets(0, 8, 16)
        for _ in range(5):
            padded.add_(0)  # refilled between warm-ups
            graph, _ = capture(memory, cu, cu, padded, padded)
        assert len(memory._recorded) == 1
        padded.copy_(offsets(0, 9, 17))
        graph.replay()
        with pytest.raises(StalePaddingDecision):
            memory.verify_replay()

    def test_a_capture_under_inference_mode(self, memory):
        cu, padded = offsets(0, 8, 16), offsets(0, 8, 16)
        with torch.inference_mode():
            graph, answer = capture(memory, cu, cu, padded, padded)
        assert answer is False
        padded.copy_(offsets(0, 9, 17))
        graph.replay()
        with pytest.raises(StalePaddingDecision):
            memory.verify_replay()
        with torch.inference_mode():
            memory.verify_replay()

    def test_a_last_warm_up_that_is_marked_as_captured_runs_the_check(self, memory):
        cu, padded = offsets(0, 8, 16), offsets(0, 8, 16)
        resolve_pad_between_seqs(cu, cu, padded, padded, decisions=memory)
        padded.data[1:] += 1
        with mark_capturing():
            resolve_pad_between_seqs(cu, cu, padded, padded, decisions=memory)
        with pytest.raises(StalePaddingDecision):
            memory.verify_replay()


class TestLife:
    def test_the_check_outlives_the_answer_and_the_callers_tensors(self, memory):
        storage = offsets(0, 8, 16)
        cu, padded = offsets(0, 8, 16), storage.view(3)
        gone = weakref.ref(padded)
        graph, _ = capture(memory, cu, cu, padded, padded)
        graph.operations = [entry for entry in graph.operations if all(arg is not padded for arg in entry[1])]
        memory.clear()
        del padded, cu
        gc.collect()
        assert gone() is None
        assert memory.info().entries == 0
        assert memory.info().bytes == 12
        storage.copy_(offsets(0, 9, 17))
        graph.replay()
        with pytest.raises(StalePaddingDecision):
            memory.verify_replay()

    def test_clear_caches_leaves_graphs_their_checks(self, memory):
        cu, padded = offsets(0, 8, 16), offsets(0, 8, 16)
        graph, _ = capture(memory, cu, cu, padded, padded)
        clear_caches()
        padded.copy_(offsets(0, 9, 17))
        graph.replay()
        with pytest.raises(StalePaddingDecision):
            memory.verify_replay()

    def test_the_memory_lives_as_long_as_graphs_need_it(self):
        memory = PaddingDecisions()
        alive = weakref.ref(memory)
        cu, padded = offsets(0, 8, 16), offsets(0, 8, 16)
        capture(memory, cu, cu, padded, padded)
        del memory
        gc.collect()
        assert alive() is not None
        alive().forget_graphs()
        gc.collect()
        assert alive() is None

    def test_forgotten_graphs_are_not_spoken_of(self, memory):
        cu, padded = offsets(0, 8, 16), offsets(0, 8, 16)
        graph, _ = capture(memory, cu, cu, padded, padded)
        padded.copy_(offsets(0, 9, 17))
        graph.replay()
        memory.forget_graphs()
        memory.verify_replay()
        assert memory.info().bytes == 0
        padded.copy_(cu)
        assert capture(memory, cu, cu, padded, padded)[1] is False  # and life goes on

    def test_evicted_answers_leave_their_checks(self):
        memory = PaddingDecisions(max_entries=1)
        cu, padded = offsets(0, 8, 16), offsets(0, 8, 16)
        graph, _ = capture(memory, cu, cu, padded, padded)
        resolve_pad_between_seqs(cu, cu, cu.clone(), padded, decisions=memory)
        padded.copy_(offsets(0, 9, 17))
        graph.replay()
        with pytest.raises(StalePaddingDecision):
            memory.verify_replay()


class TestVerify:
    def test_nothing_recorded_passes(self, memory):
        memory.verify_replay()
        verify_replay(memory)
        verify_replay()

    def test_the_function_asks_the_memory_that_it_is_given(self, memory):
        cu, padded = offsets(0, 8, 16), offsets(0, 8, 16)
        graph, _ = capture(memory, cu, cu, padded, padded)
        padded.copy_(offsets(0, 9, 17))
        graph.replay()
        verify_replay()
        with pytest.raises(StalePaddingDecision):
            verify_replay(memory)

    def test_under_capture_it_is_refused_before_it_waits(self, memory):
        cu, padded = offsets(0, 8, 16), offsets(0, 8, 16)
        capture(memory, cu, cu, padded, padded)
        with mark_capturing(), forbid_sync(), pytest.raises(HostReadError, match="after replays"):
            memory.verify_replay()

    def test_every_device_is_waited_for(self, memory, monkeypatch):
        waited = []
        monkeypatch.setattr(torch.cuda, "synchronize", waited.append)

        class Check:
            device = torch.device("cuda", 1)
            _differing = torch.tensor([0, 3, 0])
            take = staticmethod(lambda noted: noted)

        check = Check()
        assert replay_checks.read_checks([check]) == {check: [0, 3, 0]}
        assert waited == [check.device] * 2  # also before the next replay may note again

    def test_the_error_travels_between_processes(self, memory):
        cu, padded = offsets(0, 8, 16), offsets(0, 8, 16)
        graph, _ = capture(memory, cu, cu, padded, padded)
        padded.copy_(offsets(0, 9, 17))
        graph.replay()
        with pytest.raises(StalePaddingDecision) as raised:
            memory.verify_replay()
        twin = pickle.loads(pickle.dumps(raised.value))
        assert (twin.buffers, str(twin)) == (raised.value.buffers, str(raised.value))


@pytest.mark.parametrize("module", [padding_decisions, replay_checks])
def test_the_worked_examples_hold(module):
    assert doctest.testmod(module).failed == 0
