"""Ranks that differ, refuse, die or do not come: every other one ends with an error that says so, in time."""

from __future__ import annotations

import doctest
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch

from te_pkg.attention import PackedLayout
from te_pkg.attention.backends import dense
from te_pkg.attention.context_parallel import RankError, agreement, context_parallel_attention
from te_pkg.attention.context_parallel.agreement import agree, differences
from te_pkg.attention.context_parallel.exchange import Ranks
from te_pkg.attention.errors import LayoutError
from tests.attention.context_parallel.team import Answer, Team, World

ODD = 2  # the rank that differs
METHODS = ("p2p", "all_gather", "a2a")


def attend(world: World, odd: dict[str, Any] | None = None, **chosen: Any) -> None:
    """One call, forwards and backwards; ``odd`` is what rank 2 does otherwise."""
    told = {
        "lengths": [13, 5],
        "shape": (6, 4, 8),
        "shape_kv": (6, 4, 8),
        "dtype": torch.float64,
        "gradients": True,
        **chosen,
        **((odd or {}) if world.rank == ODD else {}),
    }
    layout = PackedLayout.from_lengths(told.pop("lengths"), pad_to_multiple=8)
    dtype, gradients = told.pop("dtype"), told.pop("gradients")
    q, k, v = (
        torch.randn(shape, dtype=dtype, requires_grad=gradients)
        for shape in (told.pop("shape"), told["shape_kv"], told.pop("shape_kv"))
    )
    out = context_parallel_attention(q, k, v, layout, group=world.group(4), **told)
    if gradients:
        out.sum().backward()


def others(answers: list[Answer]) -> list[Answer]:
    return [answer for rank, answer in enumerate(answers) if rank != ODD]


class TestDifferences:
    @pytest.mark.parametrize(
        ("odd", "difference"),
        [
            ({"lengths": [13, 4]}, "layout.lengths[1] is 4, expected 5"),
            ({"lengths": [12, 6]}, "layout.lengths[0] is 12, expected 13 (1 more entries differ)"),
            ({"lengths": [13, 5, 0]}, "layout.lengths has 3 entries, expected 2"),
            ({"causal": True}, "causal is True, expected False"),
            ({"method": "a2a"}, "method is 'a2a', expected 'p2p'"),
            ({"window": (3, 0)}, "window is [3, 0], expected None"),
            ({"align": "bottom_right"}, "align is 'bottom_right', expected 'top_left'"),
            ({"scale": 0.25}, "scale is 0.25, expected 0.35"),
            ({"softcap": 2.0}, "softcap is 2.0, expected None"),
            ({"shape": (6, 8, 8)}, "q[1] is 8, expected 4"),
            ({"shape_kv": (7, 4, 8)}, "k[0] is 7, expected 6"),
            ({"dtype": torch.float32}, "dtype is 'torch.float32', expected 'torch.float64'"),
            ({"gradients": False}, "gradients is False, expected True"),
        ],
    )
    def test_every_rank_is_told_which_one_differs_and_how(self, team, odd, difference):
        for answer in team.run(attend, odd, limit=20):
            assert isinstance(answer.error, RankError)
            assert answer.error.ranks == (ODD,)
            assert str(answer.error).startswith("rank 2: ")
            assert difference in str(answer.error)
            assert str(answer.error).endswith(" as on rank 0")

    def test_after_that_the_ranks_go_on(self, team):
        team.run(attend, {"causal": True})
        for answer in team.run(attend):
            answer.get()

    def test_a_layout_of_ones_own_may_be_the_one_of_the_queries(self, team):
        same = PackedLayout.from_lengths([13, 5], pad_to_multiple=8)
        for answer in team.run(attend, {"layout_kv": same}):
            answer.get()

    def test_ranks_may_differ_in_the_backend(self, team):
        for answer in team.run(attend, {"backend": "dense"}):
            answer.get()

    def test_without_a_majority_rank_0_is_right(self):
        assert differences([{"a": 1}, {"a": 2}]) == {1: "rank 1: a is 2, expected 1 as on rank 0"}
        assert differences([{"a": 1}, {"a": 2}, {"a": 2}]) == {0: "rank 0: a is 1, expected 2 as on rank 1"}

    def test_of_two_passes_nothing_else_is_compared(self):
        found = differences([{"pass": "forward of call 2", "a": [1]}, {"pass": "backward of call 1"}])
        assert found == {1: "rank 1: pass is 'backward of call 1', expected 'forward of call 2' as on rank 0"}


class TestRefusals:
    @pytest.mark.parametrize("method", METHODS)
    def test_a_rank_that_refuses_its_arguments_tells_the_others(self, team, method):
        answers = team.run(attend_one_short, method, limit=20)
        assert isinstance(answers[ODD].error, LayoutError)
        for answer in others(answers):
            assert isinstance(answer.error, RankError)
            assert answer.error.ranks == (ODD,)
            assert "rank 2 refused the call: LayoutError: k has 5 rows, expected at least 6" in str(answer.error)

    def test_several_at_once(self, team):
        for rank, answer in enumerate(team.run(refuse_if_odd)):
            if rank % 2:
                assert type(answer.error) is ValueError
            else:
                assert answer.error.faults == tuple(
                    f"rank {other} refused the call: ValueError: {other} is odd" for other in (1, 3)
                )

    def test_alone_one_raises_ones_own(self):
        with pytest.raises(ValueError, match="mine"):
            agree(Ranks(None, 1, 0), {}, ValueError("mine"))
        agree(Ranks(None, 1, 0), {"a": 1})


def attend_one_short(world: World, method: str) -> None:
    attend(world, {"shape_kv": (5, 4, 8)}, method=method)


def refuse_if_odd(world: World) -> None:
    failure = ValueError(f"{world.rank} is odd") if world.rank % 2 else None
    agree(Ranks.of(world.group(4)), {"a": "ä" * world.rank}, failure)


def backwards_in_another_order(world: World) -> None:
    layout = PackedLayout.from_lengths([16])
    q = torch.randn(4, 4, 8, requires_grad=True)
    results = [context_parallel_attention(q, q, q, layout, group=world.group(4)) for _ in range(2)]
    for out in reversed(results) if world.rank == ODD else results:
        out.sum().backward()


def test_gradients_of_another_call_are_no_gradients_of_this_one(team):
    for answer in team.run(backwards_in_another_order, limit=20):
        assert isinstance(answer.error, RankError)
        assert answer.error.ranks == (ODD,)
        assert "rank 2: pass is 'backward of call" in str(answer.error)


@pytest.fixture
def mortal(tmp_path: Path) -> Iterator[Team]:
    """Ranks that wait three seconds for each other."""
    with Team(4, tmp_path, timeout=3) as ranks:
        yield ranks


def die_at(world: World, where: str, method: str) -> None:
    if where == "before" and world.rank == ODD:
        os._exit(1)
    original = getattr(dense, where, None)

    def deadly(*args: Any) -> Any:
        if world.rank == ODD:
            os._exit(1)
        return original(*args)

    with mock.patch.object(dense, where, deadly) if original else mock.patch.object(dense, "__doc__", ""):
        attend(world, method=method, backend="dense")


def fail_in_the_kernel(world: World) -> None:
    original = dense.forward

    def failing(*args: Any) -> Any:
        if world.rank == ODD:
            raise MemoryError("no memory for the scores")
        return original(*args)

    with mock.patch.object(dense, "forward", failing):
        attend(world, backend="dense")


def come_late(world: World) -> float:
    begun = time.monotonic()
    if world.rank == ODD:
        time.sleep(6)
        return 0.0
    with pytest.raises(RankError, match=r"rank 2 failed, or did not answer in time") as caught:
        attend(world)
    assert caught.value.ranks == (ODD,)
    return time.monotonic() - begun


class TestDeath:
    @pytest.mark.parametrize(
        ("where", "method"),
        [("before", "p2p"), ("forward", "p2p"), ("forward", "a2a"), ("backward", "p2p"), ("backward", "all_gather")],
    )
    def test_a_rank_that_dies_ends_the_others(self, mortal, where, method):
        begun = time.monotonic()
        answers = mortal.run(die_at, where, method, limit=20)
        assert answers[ODD].died
        for answer in others(answers):
            assert isinstance(answer.error, RankError), answer
            assert where != "before" or answer.error.ranks == (ODD,)
        assert time.monotonic() - begun < 15

    def test_a_kernel_that_fails_on_one_rank_ends_the_others_too(self, mortal):
        answers = mortal.run(fail_in_the_kernel, limit=20)
        assert isinstance(answers[ODD].error, MemoryError)
        for answer in others(answers):
            assert isinstance(answer.error, RankError), answer

    def test_a_rank_that_does_not_come_is_named_when_the_time_is_up(self, mortal):
        waited = [answer.get() for answer in mortal.run(come_late, limit=20)]
        assert all(2 < seconds < 6 for seconds in waited[:ODD] + waited[ODD + 1 :])


def test_examples():
    assert doctest.testmod(agreement).failed == 0
