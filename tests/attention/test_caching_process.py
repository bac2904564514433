"""The caches of a process: between threads, streams and forks, and all of them together."""

from __future__ import annotations

import copy
import gc
import itertools
import os
import pickle
import signal
import threading
import types
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from te_pkg.attention import cache_info, clear_caches, kept_tensor
from te_pkg.attention.caching import CacheInfo, TensorCache

_numbers = itertools.count()


def full(n: int, *, device: torch.device | str | None) -> torch.Tensor:
    return torch.full((3,), n, dtype=torch.int32, device=device)


def new_cache(make: Callable[..., torch.Tensor] = full, *, max_entries: int = 8) -> TensorCache:
    return TensorCache(f"process test {next(_numbers)}", make, max_entries=max_entries)


@pytest.fixture
def cache() -> TensorCache:
    return new_cache()


@pytest.fixture(autouse=True)
def _no_tensor_is_left_by_another_test() -> None:
    clear_caches()


class TestThreads:
    def test_racers_for_one_key_get_one_tensor(self):
        racers = 8
        barrier = threading.Barrier(racers)

        def make(n: int, *, device: torch.device) -> torch.Tensor:
            barrier.wait(timeout=30)  # nobody has stored yet when all make
            return full(n, device=device)

        cache = new_cache(make)
        with ThreadPoolExecutor(racers) as pool:
            tensors = list(pool.map(lambda _: cache.get((5,)), range(racers)))
        assert len({id(tensor) for tensor in tensors}) == 1
        assert (cache.info().misses, cache.info().entries) == (racers, 1)

    def test_counts_and_bound_hold_under_load(self):
        cache = new_cache(max_entries=4)
        calls = 2000

        def work(seed: int) -> bool:
            return all(cache.get(((seed + i) % 7,))[0] == (seed + i) % 7 for i in range(calls))

        with ThreadPoolExecutor(4) as pool:
            assert all(pool.map(work, range(4)))
        info = cache.info()
        assert info.hits + info.misses == 4 * calls
        assert info.entries == 4

    def test_a_mode_holds_for_its_own_thread_alone(self, cache):
        with FakeTensorMode(), ThreadPoolExecutor(1) as pool:
            assert type(pool.submit(cache.get, (5,)).result()) is torch.Tensor
        assert cache.info().entries == 1

    def test_a_finaliser_that_runs_meanwhile_may_ask_the_cache(self):
        cache = new_cache(max_entries=1)
        weakref.finalize(cache.get((1,)), lambda: cache.get((3,)))
        cache.get((2,))
        assert cache.info().entries == 1


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
class TestFork:
    @staticmethod
    def in_child(check: Callable[[], bool]) -> bool:
        child = os.fork()
        if child == 0:
            try:
                signal.alarm(20)  # a lock that nobody will ever release ends here
                os._exit(0 if check() else 1)
            finally:
                os._exit(2)
        return os.waitpid(child, 0)[1] == 0

    def test_while_another_thread_works_the_child_goes_on(self, cache):
        done = threading.Event()

        def work() -> None:
            for n in itertools.cycle(range(20)):
                cache.get((n,))
                if done.is_set():
                    return

        worker = threading.Thread(target=work)
        worker.start()
        try:
            for n in range(10):
                assert self.in_child(lambda n=n: cache.get((n,)).tolist() == [n, n, n] and cache.info().entries > 0)
        finally:
            done.set()
            worker.join()

    def test_the_child_keeps_what_is_on_the_cpu_and_makes_the_rest_anew(self, cache):
        cpu, other = cache.get((1,), "cpu"), cache.get((1,), "meta")
        assert self.in_child(lambda: cache.get((1,), "cpu") is cpu and cache.get((1,), "meta") is not other)
        assert cache.get((1,), "meta") is other

    def test_the_threads_of_the_child_are_not_locked_out(self, cache):
        def check() -> bool:
            with ThreadPoolExecutor(1) as pool:
                return pool.submit(cache.get, (1,)).result().tolist() == [1, 1, 1]

        assert self.in_child(check)

    def test_what_the_child_does_stays_there(self, cache):
        cache.get((1,))
        assert self.in_child(lambda: clear_caches() is None and cache.info().entries == 0)
        assert cache.info().entries == 1


class FakeStream:
    def __init__(self, handle: int) -> None:
        self.cuda_stream = handle
        self.waited: list[object] = []

    def record_event(self) -> str:
        return f"filled on {self.cuda_stream}"

    def wait_event(self, event: object) -> None:
        self.waited.append(event)


def test_another_stream_waits_once_until_the_tensor_is_filled(monkeypatch):
    first, second = FakeStream(1), FakeStream(2)
    current = [first]
    recorded: list[FakeStream] = []
    tensor = types.SimpleNamespace(device=torch.device("cuda", 0), record_stream=recorded.append)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: current[0])
    monkeypatch.setattr(torch._C, "_cuda_getCurrentRawStream", lambda index: current[0].cuda_stream, raising=False)
    streams = kept_tensor.Streams(tensor)
    streams.admit_current(tensor)
    assert first.waited == recorded == []
    current[0] = second
    streams.admit_current(tensor)
    streams.admit_current(tensor)
    assert second.waited == ["filled on 1"]
    assert recorded == [second]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")
class TestOnGpu:
    def test_cuda_and_its_index_are_one_key(self, cache):
        assert cache.get((5,), "cuda") is cache.get((5,), torch.device("cuda", torch.cuda.current_device()))

    def test_a_side_stream_sees_the_filled_tensor(self):
        def slowly(n: int, *, device: torch.device) -> torch.Tensor:
            torch.cuda._sleep(50_000_000)
            return full(n, device=device)

        cache = new_cache(slowly)
        torch.cuda.synchronize()
        cache.get((5,), "cuda")
        side = torch.cuda.Stream()
        with torch.cuda.stream(side):
            copied = cache.get((5,), "cuda").clone()
        side.synchronize()
        assert copied.tolist() == [5, 5, 5]

    def test_a_capture_keeps_nothing(self, cache):
        cache.get((6,), "cuda")
        with torch.cuda.graph(torch.cuda.CUDAGraph()):
            cache.get((5,), "cuda")
            assert cache.get((6,), "cuda") is not None
        assert (cache.info().entries, cache.info().bypasses) == (1, 2)


class TestRegistry:
    def test_every_living_cache_is_reported_and_cleared(self):
        one, two = new_cache(), new_cache()
        one.get((1,))
        two.get((1,))
        assert cache_info()[one.name] == one.info()
        assert cache_info()[two.name].entries == 1
        clear_caches()
        assert one.info() == two.info() == CacheInfo(0, 0, 0, 0, 0, 8, 0)

    def test_tensors_that_callers_hold_outlive_a_clear(self, cache):
        held = cache.get((5,))
        clear_caches()
        assert held.tolist() == [5, 5, 5]
        assert cache.get((5,)) is not held

    def test_a_cache_that_nobody_holds_is_gone(self):
        cache = new_cache()
        name = cache.name
        del cache
        gc.collect()
        assert name not in cache_info()

    def test_a_name_is_given_once(self, cache):
        with pytest.raises(ValueError, match="exists already"):
            TensorCache(cache.name, full, max_entries=1)

    def test_information_cannot_be_changed(self, cache):
        with pytest.raises(AttributeError):
            cache.info().hits = 1

    def test_a_model_that_holds_a_cache_is_copied_without_it(self, cache):
        assert copy.copy(cache) is cache
        assert copy.deepcopy({"cache": cache})["cache"] is cache

    def test_a_cache_is_not_pickled(self, cache):
        with pytest.raises(TypeError, match="belongs to its process"):
            pickle.dumps(cache)
