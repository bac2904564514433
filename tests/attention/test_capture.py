"""Capture: who is told that it is under way, and who is not."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from te_pkg.attention import capture
from te_pkg.attention.capture import is_capturing, mark_capturing

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")


def test_nothing_captures_at_rest():
    assert is_capturing() is False


def test_torch_is_not_asked_where_cuda_is_not_initialised(monkeypatch):
    def raises() -> bool:
        raise RuntimeError("no driver")

    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", raises)
    monkeypatch.setattr(capture, "_ask_torch", raises)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: False)
    assert is_capturing() is False


@pytest.mark.parametrize("answer", [True, False])
def test_torch_is_asked_where_cuda_is_initialised(monkeypatch, answer):
    ask = lambda: answer  # noqa: E731
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", ask)
    monkeypatch.setattr(capture, "_ask_torch", ask)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    assert is_capturing() is answer


def test_a_function_that_stands_in_for_torchs_own_is_asked(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    assert is_capturing() is True


def test_asking_does_not_initialise_cuda():
    before = torch.cuda.is_initialized()
    is_capturing()
    assert torch.cuda.is_initialized() is before


class TestMarkCapturing:
    def test_holds_inside_and_not_after(self):
        with mark_capturing():
            assert is_capturing() is True
        assert is_capturing() is False

    def test_nests(self):
        with mark_capturing():
            with mark_capturing():
                assert is_capturing() is True
            assert is_capturing() is True
        assert is_capturing() is False

    def test_ends_when_the_body_raises(self):
        with contextlib.suppress(KeyError), mark_capturing():
            raise KeyError
        assert is_capturing() is False

    def test_decorates_a_function(self):
        assert mark_capturing()(is_capturing)() is True
        assert is_capturing() is False

    def test_holds_for_its_own_thread_alone(self):
        with mark_capturing(), ThreadPoolExecutor(1) as pool:
            assert pool.submit(is_capturing).result() is False
            assert is_capturing() is True

    def test_does_not_follow_a_context_into_another_thread(self):
        async def main() -> bool:
            with mark_capturing():
                return await asyncio.to_thread(is_capturing)

        assert asyncio.run(main()) is False

    def test_holds_for_every_coroutine_of_its_thread(self):
        async def other() -> bool:
            return is_capturing()

        async def main() -> bool:
            with mark_capturing():
                return await asyncio.create_task(other())

        assert asyncio.run(main()) is True

    def test_closed_by_another_thread_ends_in_the_thread_that_opened_it(self):
        mark = mark_capturing()
        mark.__enter__()
        closer = threading.Thread(target=mark.__exit__, args=(None, None, None))
        closer.start()
        closer.join()
        assert is_capturing() is False
        with ThreadPoolExecutor(1) as pool:
            assert pool.submit(is_capturing).result() is False


def test_the_question_compiles_without_a_graph_break():
    @torch.compile(fullgraph=True, backend="eager")
    def branch(x: torch.Tensor) -> torch.Tensor:
        return x + 1 if is_capturing() else x + 2

    assert branch(torch.zeros(1)).item() == 2
    torch._dynamo.reset()


@pytest.mark.gpu
@needs_gpu
def test_a_real_capture_is_seen():
    torch.zeros(1, device="cuda")
    assert is_capturing() is False
    with torch.cuda.graph(torch.cuda.CUDAGraph()):
        torch.zeros(1, device="cuda")
        assert is_capturing() is True
    assert is_capturing() is False
