"""The memory of padding decisions: right for live, unchanged tensors alone, whoever asks."""

from __future__ import annotations

import copy
import gc
import os
import pickle
import signal
import threading
import weakref
from collections import OrderedDict
from concurrent.futures import ThreadPoolExecutor

import hypothesis
import pytest
import torch
from hypothesis import strategies as st

from te_pkg.attention import (
    Padding,
    PaddingDecisions,
    cache_info,
    clear_caches,
    default_padding_decisions,
    offset_pairs,
    resolve_pad_between_seqs,
)
from te_pkg.attention.caching import CacheInfo
from te_pkg.attention.capture import mark_capturing
from te_pkg.attention.errors import ArgumentError, ArgumentTypeError
from tests.attention.no_sync import SyncError, forbid_sync
from tests.attention.questions import ask, ask_captured, offsets

pytestmark = pytest.mark.usefixtures("nothing_is_remembered_from_another_test")


class TestMemory:
    def test_under_capture_a_pair_that_was_read_in_eager_is_known(self, memory):
        cu, equal, gap = offsets(0, 3, 8), offsets(0, 3, 8), offsets(0, 4, 9)
        assert (ask(memory, cu, equal), ask(memory, cu, gap)) == (False, True)
        assert (ask_captured(memory, cu, equal), ask_captured(memory, cu, gap)) == (False, True)

    def test_a_first_question_under_capture_reads_and_remembers_nothing(self, memory):
        cu, equal = offsets(0, 3, 8), offsets(0, 3, 8)
        assert ask_captured(memory, cu, equal) is True
        assert memory.info().entries == 0
        assert ask(memory, cu, equal) is False

    def test_to_read_in_eager_is_a_sync_and_a_hit_is_none(self, memory):
        cu, equal = offsets(0, 3, 8), offsets(0, 3, 8)
        with forbid_sync(mode=False), pytest.raises(SyncError):
            ask(memory, cu, equal)
        ask(memory, cu, equal)
        with forbid_sync():
            assert ask(memory, cu, equal) is False

    def test_an_equal_tensor_is_not_the_same(self, memory):
        cu, equal = offsets(0, 3, 8), offsets(0, 3, 8)
        ask(memory, cu, equal)
        assert ask_captured(memory, cu, equal.clone()) is True
        assert ask_captured(memory, cu.clone(), equal) is True
        assert ask_captured(memory, equal, cu) is True

    @pytest.mark.parametrize("which", [0, 1])
    @pytest.mark.parametrize(
        "edit",
        [
            lambda t: t.add_(0),
            lambda t: t[1:].zero_(),
            lambda t: t.detach().zero_(),
            lambda t: t.__setitem__(1, 2),
            lambda t: torch.add(t, 0, out=t),
            lambda t: t.copy_(offsets(0, 3, 8)),
            lambda t: t.resize_(2),
            lambda t: t.set_(offsets(0, 3, 8)),
            lambda t: setattr(t, "data", offsets(0, 3, 8)),
            lambda t: setattr(t, "data", t[:2]),
            lambda t: torch.autograd.graph.increment_version(t),
        ],
        ids=["add_", "view", "detached", "item", "out", "copy_", "resize_", "set_", "data", "data of itself", "told"],
    )
    def test_an_edit_since_the_warm_up_is_seen(self, memory, edit, which):
        pair = offsets(0, 3, 8), offsets(0, 3, 8)
        ask(memory, *pair)
        edit(pair[which])
        assert ask_captured(memory, *pair) is True

    def test_an_edit_under_inference_mode_is_seen(self, memory):
        cu, equal = offsets(0, 3, 8), offsets(0, 3, 8)
        ask(memory, cu, equal)
        with torch.inference_mode():
            equal.add_(0)
            assert ask_captured(memory, cu, equal) is True

    def test_after_an_edit_eager_reads_again_and_the_pair_stays_one_entry(self, memory):
        cu, padded = offsets(0, 3, 8), offsets(0, 3, 8)
        for values, expected in (((0, 3, 8), False), ((0, 4, 9), True), ((0, 3, 9), False)):
            padded.copy_(offsets(*values))
            assert ask(memory, cu, padded) is expected
            assert ask_captured(memory, cu, padded) is expected
        assert memory.info() == CacheInfo(3, 3, 0, 2, 1, 256, memory.info().bytes)

    def test_a_write_between_the_look_and_the_note_makes_the_note_old(self, memory, monkeypatch):
        cu, padded = offsets(0, 3, 8), offsets(0, 3, 8)
        classify = offset_pairs.classify_padding

        def slow(*pair: torch.Tensor) -> Padding:
            kinds = classify(*pair)
            padded.copy_(offsets(0, 4, 9))  # another thread
            return kinds

        monkeypatch.setattr(offset_pairs, "classify_padding", slow)
        ask(memory, cu, padded)
        assert ask_captured(memory, cu, padded) is True

    @pytest.mark.parametrize("write", ["data", "numpy"])
    def test_documented_writes_without_a_version_go_unseen_until_they_are_told(self, memory, write):
        cu, padded = offsets(0, 3, 8), offsets(0, 3, 8)
        ask(memory, cu, padded)
        (padded.data if write == "data" else padded.numpy())[1] = 4
        assert ask(memory, cu, padded) is False
        torch.autograd.graph.increment_version(padded)
        with mark_capturing():
            assert ask(memory, cu, padded) is True

    def test_inference_tensors_are_read_and_never_remembered(self, memory):
        with torch.inference_mode():
            cu, equal = offsets(0, 3, 8), offsets(0, 3, 8)
            assert ask(memory, cu, equal) is False
        assert ask(memory, cu, equal) is False
        assert ask(memory, offsets(0, 3, 8), equal) is False
        assert ask_captured(memory, cu, equal) is True
        assert memory.info() == CacheInfo(0, 0, 4, 0, 0, 256, 0)

    def test_what_a_teacher_asked_serves_the_capture_of_a_student(self, memory):
        cu, equal = offsets(0, 3, 8), offsets(0, 3, 8)
        with torch.inference_mode():
            ask(memory, cu, equal)
        assert ask_captured(memory, cu, equal) is False
        with torch.inference_mode():
            assert ask_captured(memory, cu, equal) is False

    def test_an_id_that_is_given_again_is_not_taken_for_the_old_tensor(self, memory):
        cu, reused = offsets(0, 3, 8), 0
        for _ in range(1000):
            padded = offsets(0, 3, 8)
            assert ask(memory, cu, padded) is False
            before = id(padded)
            del padded
            fresh = [offsets(0, 4, 9)]
            while id(fresh[-1]) != before and len(fresh) < 100:
                fresh.append(offsets(0, 4, 9))
            padded = fresh[-1]
            reused += id(padded) == before
            assert memory.info().entries == 0
            assert ask_captured(memory, cu, padded) is True
            assert ask(memory, cu, padded) is True
            del padded, fresh
        assert reused > 100  # or the trap was not there

    def test_an_entry_whose_finaliser_is_still_to_come_is_not_taken_for_the_new_tensor(self, memory):
        cu, padded = offsets(0, 3, 8), offsets(0, 3, 8)
        ask(memory, cu, padded)
        new = padded.detach()  # alike in version, address and shape
        memory._entries[id(cu), id(new)] = memory._entries[id(cu), id(padded)]
        assert ask_captured(memory, cu, new) is True

    @pytest.mark.parametrize("which", [0, 1])
    def test_an_entry_goes_with_the_first_of_its_tensors(self, memory, which):
        pair = [offsets(0, 3, 8), offsets(0, 3, 8)]
        ask(memory, *pair)
        assert memory.info().entries == 1
        gone = weakref.ref(pair.pop(which))
        assert gone() is None
        assert (memory.info().entries, memory.info().bytes) == (0, 0)

    def test_a_tensor_in_a_cycle_is_freed_by_the_collector(self, memory):
        holder: dict[str, object] = {"padded": offsets(0, 3, 8)}
        holder["self"] = holder
        cu = offsets(0, 3, 8)
        ask(memory, cu, holder["padded"])
        del holder
        gc.collect()
        assert memory.info().entries == 0

    @hypothesis.settings(deadline=None)
    @hypothesis.given(asked=st.lists(st.integers(0, 6), max_size=40), max_entries=st.integers(1, 4))
    def test_the_most_recently_used_are_kept(self, asked, max_entries):
        memory = PaddingDecisions(max_entries)
        cu, padded = offsets(0, 3), [offsets(0, 3) for _ in range(7)]
        model: OrderedDict[int, None] = OrderedDict()
        for i in asked:
            ask(memory, cu, padded[i])
            model[i] = None
            model.move_to_end(i)
            if len(model) > max_entries:
                model.popitem(last=False)
            assert memory.info().entries == len(model)
        for i, tensor in enumerate(padded):
            assert ask_captured(memory, cu, tensor) is (i not in model)

    def test_less_than_one_entry_is_refused(self):
        with pytest.raises(ArgumentError, match="max_entries must be an integer, at least 1, got 0"):
            PaddingDecisions(max_entries=0)

    @pytest.mark.parametrize("max_entries", ["a", 1.5, None, True])
    def test_a_bound_that_is_no_integer_is_refused(self, max_entries):
        with pytest.raises(ArgumentTypeError, match="max_entries must be an integer, at least 1, got "):
            PaddingDecisions(max_entries)

    def test_what_it_refuses_is_of_the_family(self, memory):
        with pytest.raises(ArgumentTypeError, match="belongs to its process"):
            pickle.dumps(memory)


class TestProcess:
    def test_threads_share_it(self, memory):
        memory = PaddingDecisions(max_entries=4)
        pairs = [(offsets(0, 3, 8), offsets(0, 3 + i % 2, 8 + i % 2)) for i in range(7)]
        calls = 500

        def work(seed: int) -> bool:
            right = True
            for i in range(calls):
                n = (seed + i) % 7
                right &= ask(memory, *pairs[n]) is (n % 2 == 1)
                with mark_capturing():
                    right &= ask(memory, *pairs[n]) or n % 2 == 0
                right &= ask(memory, offsets(0, 3, 8), offsets(0, 4, 9))  # dies at once
            return right

        with ThreadPoolExecutor(4) as pool:
            assert all(pool.map(work, range(4)))
        info = memory.info()
        assert info.hits + info.misses + info.bypasses == 4 * calls * 3
        assert info.entries <= 4

    def test_a_capture_in_one_thread_is_none_in_another(self, memory):
        cu, equal = offsets(0, 3, 8), offsets(0, 3, 8)
        with mark_capturing(), ThreadPoolExecutor(1) as pool:
            assert pool.submit(ask, memory, cu, equal).result() is False
            assert ask(memory, cu, equal) is False

    @pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
    @pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
    def test_the_child_of_a_fork_starts_empty_and_goes_on(self, memory):
        cu, equal = offsets(0, 3, 8), offsets(0, 3, 8)
        ask(memory, cu, equal)
        stop = threading.Event()

        def work() -> None:
            while not stop.is_set():
                ask(memory, cu, equal)

        worker = threading.Thread(target=work)
        worker.start()
        try:
            child = os.fork()
            if child == 0:
                try:
                    signal.alarm(20)
                    good = memory.info().entries == 0 and ask(memory, cu, equal) is False
                    os._exit(0 if good and memory.info().entries == 1 else 1)
                finally:
                    os._exit(2)
            assert os.waitpid(child, 0)[1] == 0
        finally:
            stop.set()
            worker.join()
        assert memory.info().entries == 1

    def test_it_is_one_of_the_caches_of_the_package(self, memory):
        cu, equal = offsets(0, 3, 8), offsets(0, 3, 8)
        resolve_pad_between_seqs(cu, cu, equal, equal)
        ask(memory, cu, equal)
        assert cache_info()["padding_decisions"] == default_padding_decisions.info()
        assert cache_info()["padding_decisions"].entries == 1
        assert cache_info()[memory.name].entries == 1
        clear_caches()
        assert default_padding_decisions.info() == memory.info() == CacheInfo(0, 0, 0, 0, 0, 256, 0)
        assert ask_captured(memory, cu, equal) is True

    def test_memories_do_not_know_of_each_other(self, memory):
        cu, equal = offsets(0, 3, 8), offsets(0, 3, 8)
        ask(memory, cu, equal)
        with mark_capturing():
            assert ask(PaddingDecisions(), cu, equal) is True
            assert resolve_pad_between_seqs(cu, cu, equal, equal) is True

    def test_a_memory_that_nobody_holds_is_gone(self):
        memory = PaddingDecisions()
        name, cu, equal = memory.name, offsets(0, 3, 8), offsets(0, 3, 8)
        ask(memory, cu, equal)
        del memory
        gc.collect()
        assert name not in cache_info()
        del cu, equal  # what is left of it hears of this

    def test_a_model_that_holds_it_is_copied_without_it(self, memory):
        assert copy.copy(memory) is copy.deepcopy(memory) is memory
        with pytest.raises(TypeError, match="belongs to its process"):
            pickle.dumps(memory)
