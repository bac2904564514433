"""Context-parallel attention on real processes: what one process gives, for every layout, forwards and backwards."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import hypothesis
import pytest
import torch
import torch.distributed as dist
from hypothesis import strategies as st

from te_pkg.attention import PackedLayout
from te_pkg.attention.capture import mark_capturing
from te_pkg.attention.context_parallel import RankError, context_parallel_attention, exchange, partition_indices
from te_pkg.attention.context_parallel.exchange import Ranks
from te_pkg.attention.context_parallel.request import next_call
from te_pkg.attention.errors import ArgumentError, ArgumentTypeError, LayoutError
from tests.attention.context_parallel.cases import Case, Results, attend, joined, truth
from tests.attention.context_parallel.team import Team, World
from tests.attention.layouts import Rows

METHODS = ("p2p", "all_gather", "a2a")
SIZES = (1, 2, 4)
# Every kind of padding; lengths that no number of ranks divides; one row, no row, no row in a slot of eight.
ROWS = Rows((7, 0, 1, 16, 3), (16, 0, 8, 16, 8), 51)
ROWS_KV = Rows((13, 2, 0, 5, 9), (16, 8, 8, 8, 16), 56)

each_method = pytest.mark.parametrize("method", METHODS)
each_size = pytest.mark.parametrize("size", SIZES)


def assert_right(team: Team, size: int, case: Case, tolerance: float = 1e-12) -> None:
    answers = team.run(attend, size, case)
    expected = truth(case)
    for first in range(0, team.size, size):
        assert_same(joined(answers, size, case, first), expected, tolerance)


def assert_same(found: Results, expected: Results, tolerance: float) -> None:
    for name, one, other in zip(Results._fields, found, expected, strict=True):
        torch.testing.assert_close(
            one, other, rtol=tolerance, atol=tolerance, msg=lambda text, name=name: f"{name}: {text}"
        )


def options(**chosen: Any) -> tuple[tuple[str, Any], ...]:
    return tuple(chosen.items())


@st.composite
def rows(draw: st.DrawFn, size: int, count: int) -> Rows:
    lengths = tuple(draw(st.lists(st.integers(0, 24), min_size=count, max_size=count)))
    slots = tuple((-(-length // (2 * size)) + draw(st.integers(0, 1))) * 2 * size for length in lengths)
    return Rows(lengths, slots, sum(slots) + draw(st.integers(0, 5)))


@st.composite
def cases(draw: st.DrawFn, size: int) -> Case:
    count = draw(st.integers(0, 4))
    heads_kv = draw(st.sampled_from([4, 8]))
    window = draw(st.none() | st.tuples(st.integers(-1, 9), st.integers(-1, 9)))
    chosen = {
        "method": draw(st.sampled_from(METHODS)),
        "causal": draw(st.booleans()),
        "align": draw(st.sampled_from(["top_left", "bottom_right"])),
        "window": window,
        "softcap": draw(st.none() | st.just(1.5)),
        "check": draw(st.booleans()),
    }
    return Case(
        draw(rows(size, count)),
        draw(st.none() | rows(size, count)),
        heads=8,
        heads_kv=heads_kv,
        size_v=draw(st.sampled_from([2, 3])),
        spare=draw(st.sampled_from([0, 3])),
        options=options(**chosen),
    )


@pytest.fixture(scope="module")
def trio(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Team]:
    with Team(3, tmp_path_factory.mktemp("trio")) as ranks:
        yield ranks


class TestOneProcess:
    """Outputs, log-sum-exps and gradients are those of every score of every pair, with NaN in all padding."""

    @each_size
    @hypothesis.given(data=st.data())
    @hypothesis.settings(max_examples=25)
    def test_every_layout_and_option(self, team, size, data):
        assert_right(team, size, data.draw(cases(size)))

    @hypothesis.given(data=st.data())
    @hypothesis.settings(max_examples=15)
    def test_three_ranks(self, trio, data):
        case = data.draw(cases(3))
        assert_right(trio, 3, replace(case, heads=12, heads_kv=data.draw(st.sampled_from([3, 6, 12]))))

    @each_method
    @each_size
    @pytest.mark.parametrize("causal", [False, True])
    @pytest.mark.parametrize("cross", [False, True])
    def test_all_kinds_of_padding_at_once(self, team, method, size, causal, cross):
        case = Case(
            ROWS,
            ROWS_KV if cross else None,
            heads=8,
            spare=2,
            options=options(method=method, causal=causal, align="bottom_right"),
        )
        assert_right(team, size, case)

    @each_method
    @pytest.mark.parametrize(("length", "slot", "size"), [(698, 704, 4), (7, 8, 2), (1, 4, 2), (1, 8, 4)])
    def test_lengths_that_twice_the_ranks_do_not_divide(self, team, method, length, slot, size):
        case = Case(Rows((length,), (slot,), slot), size=2, options=options(method=method, causal=True))
        assert_right(team, size, case)

    @each_method
    @pytest.mark.parametrize("window", [(0, 0), (3, -1), (-1, 2), (20, 0), (1, 30), (0, -1)])
    def test_windows(self, team, method, window):
        case = Case(Rows((37, 9), (40, 16), 56), heads=4, options=options(method=method, window=window, causal=False))
        assert_right(team, 4, case)

    @each_method
    def test_grouped_heads(self, team, method):
        assert_right(team, 2, Case(ROWS, heads=8, heads_kv=2, options=options(method=method, causal=True)))

    @each_method
    def test_other_scales(self, team, method):
        assert_right(team, 2, Case(ROWS, options=options(method=method, scale=0.3)))

    @each_method
    @pytest.mark.parametrize("rows", [Rows((), (), 0), Rows((), (), 4), Rows((0, 0), (8, 0), 8)])
    def test_nothing_to_attend_to(self, team, method, rows):
        assert_right(team, 4, Case(rows, options=options(method=method, causal=True)))

    @each_method
    def test_the_readable_backend(self, team, method):
        assert_right(team, 4, Case(ROWS, heads=8, options=options(method=method, causal=True, backend="dense")))

    @each_method
    @pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
    def test_lower_precision_at_most_twice_the_error_of_one_process(self, team, method, dtype):
        narrow = Case(
            Rows((125, 61), (128, 64), 192), size=8, size_v=8, dtype=dtype, options=options(method=method, causal=True)
        )
        exact = truth(narrow)
        once = joined(team.run(attend, 1, narrow), 1, narrow)
        split = joined(team.run(attend, 4, narrow), 4, narrow)
        for name, one, many, right in zip(Results._fields, once, split, exact, strict=True):
            error, error_once = (torch.linalg.vector_norm((x - right).nan_to_num(0)) for x in (many, one))
            assert error <= 2 * error_once + 1e-6, name


def run_alone(world: World, size: int, **chosen: Any) -> None:
    layout = PackedLayout.from_lengths([16])
    held = len(partition_indices(layout.cu_seqlens_padded, size, 0))
    x = torch.randn(held, 4, 8)
    context_parallel_attention(x, x, x, layout, group=world.group(size), **chosen)


def attend_twice(world: World) -> None:
    layout = PackedLayout.from_lengths([16])
    q = torch.randn(4, 4, 8, requires_grad=True)
    out = context_parallel_attention(q, q.detach(), q.detach(), layout, group=world.group(4))
    (gradient,) = torch.autograd.grad(out.square().sum(), q, create_graph=True)
    gradient.sum().backward()


def attend_in_bfloat16_if_asked(world: World) -> tuple[torch.dtype, bool]:
    """Under autocast, with the whole group by its default name."""
    layout = PackedLayout.from_lengths([16])
    q = torch.randn(4, 4, 8, generator=torch.Generator().manual_seed(world.rank))
    plain = context_parallel_attention(q, q, q, layout, group=None, backend="dense")
    with torch.autocast("cpu", torch.bfloat16):
        out = context_parallel_attention(q, q, q, layout, group=None, backend="dense")
    return out.dtype, torch.equal(out, plain)


def attend_compiled(world: World) -> list[bool]:
    layout = PackedLayout.from_lengths([16, 7], pad_to_multiple=8)
    q = torch.randn(6, 4, 8, generator=torch.Generator().manual_seed(world.rank)).requires_grad_()

    def attend_between(q: torch.Tensor) -> torch.Tensor:
        return context_parallel_attention(2 * q, q, q, layout, group=world.group(4), causal=True) + 1

    results = []
    for function in (attend_between, torch.compile(attend_between, backend="aot_eager")):
        out = function(q)
        results.append((out.detach(), *torch.autograd.grad(out.square().sum(), q)))
    return [torch.allclose(one, other) for one, other in zip(*results, strict=True)]


def count_messages(world: World, method: str) -> list[int]:
    """How often this rank began to send or receive in a forward pass without the question before."""
    counts = []
    originals = exchange.Ranks.pass_on, exchange.Ranks.gather, exchange.Ranks.trade

    def counting(original: Any) -> Any:
        def call(*args: Any) -> Any:
            counts.append(1)
            return original(*args)

        return call

    names = ("pass_on", "gather", "trade")
    for name, original in zip(names, originals, strict=True):
        setattr(exchange.Ranks, name, counting(original))
    try:
        run_alone(world, 4, method=method, check=False)
    finally:
        for name, original in zip(names, originals, strict=True):
            setattr(exchange.Ranks, name, original)
    return counts


def attend_with_gradients_of_one(world: World, method: str) -> list[bool]:
    """Rank 0 wants the gradient of q alone, the others that of k alone; twice, from one forward pass."""
    layout = PackedLayout.from_lengths([13, 0, 5], pad_to_multiple=8)
    generator = torch.Generator().manual_seed(world.rank)
    q, k, v = (torch.randn(6, 4, 8, generator=generator) for _ in range(3))
    wanted = (k if world.rank else q).requires_grad_()
    out = context_parallel_attention(q, k, v, layout, group=world.group(4), method=method, causal=True)
    out.sum().backward(retain_graph=True)
    once = wanted.grad.clone()
    out.sum().backward()
    return [bool(once.any()), torch.equal(wanted.grad, 2 * once), *(x.grad is None for x in (q, k, v))]


def calls_of_a_group_made_anew(world: World, folder: Path) -> list[int]:
    counts = []
    world.groups.clear()
    for _ in range(2):
        counts += [next_call(Ranks.of(None)), next_call(Ranks.of(dist.group.WORLD))]
        dist.destroy_process_group()
        dist.init_process_group(
            "gloo", store=dist.FileStore(str(folder / f"anew {len(counts)}"), 1), rank=0, world_size=1
        )
    return counts


class TestBehaviour:
    @each_method
    def test_ranks_may_want_other_gradients_and_want_them_twice(self, team, method):
        first, *more = (answer.get() for answer in team.run(attend_with_gradients_of_one, method))
        assert first == [True, True, False, True, True]
        assert more == [[True, True, True, False, True]] * 3

    def test_calls_are_counted_from_the_start_in_a_group_made_anew(self, tmp_path):
        with Team(1, tmp_path) as alone:
            assert [answer.get() for answer in alone.run(calls_of_a_group_made_anew, tmp_path)] == [[1, 2, 1, 2]]

    @pytest.mark.parametrize(("method", "messages"), [("p2p", 3), ("all_gather", 1), ("a2a", 2)])
    def test_no_more_messages_than_it_says(self, team, method, messages):
        assert [len(answer.get()) for answer in team.run(count_messages, method)] == [messages] * 4

    def test_gradients_cannot_be_differentiated_again(self, team):
        for answer in team.run(attend_twice):
            assert isinstance(answer.error, RuntimeError)
            assert "once_differentiable" in str(answer.error)

    def test_a_compiled_program_calls_it_between_two_graphs(self, team):
        assert [answer.get() for answer in team.run(attend_compiled)] == [[True, True]] * 4

    def test_autocast_does_not_change_what_is_computed(self, team):
        assert [answer.get() for answer in team.run(attend_in_bfloat16_if_asked)] == [(torch.float32, True)] * 4


def refused(world: World, what: str) -> None:
    layout = PackedLayout.from_lengths([16, 5], pad_to_multiple=8)
    q, k = torch.randn(6, 6, 8), torch.randn(6, 2, 8)
    calls: dict[str, dict[str, Any]] = {
        "heads": {"method": "a2a"},
        "method": {"method": "ring"},
        "align": {"align": "left"},
        "softcap": {"softcap": -1.0},
        "window": {"window": (1, -2)},
        "rows": {"q": q[:5]},
        "slots": {"layout": PackedLayout.from_lengths([16, 5])},
        "sequences": {"layout_kv": PackedLayout.from_lengths([24])},
        "kv size": {"k": torch.randn(6, 2, 7)},
        "dtype": {"v": k.double()},
        "tensor": {"k": None},
        "layout": {"layout": [0, 16]},
        "group": {"group": "world"},
    }
    given = {"q": q, "k": k, "v": k, "layout": layout, "group": world.group(4), **calls[what]}
    context_parallel_attention(given.pop("q"), given.pop("k"), given.pop("v"), given.pop("layout"), **given)


class TestRefusals:
    @pytest.mark.parametrize(
        ("what", "kind", "message"),
        [
            (
                "heads",
                LayoutError,
                "method 'a2a' splits the heads over the ranks: q has 6 heads, expected a multiple of 4",
            ),
            ("heads", LayoutError, "k and v have 2 heads, expected a multiple of 4"),
            ("method", ArgumentError, "method is 'ring', expected one of 'p2p', 'all_gather', 'a2a'"),
            ("align", ArgumentError, "align is 'left', expected one of 'top_left', 'bottom_right'"),
            ("softcap", ArgumentError, "softcap is -1.0, expected"),
            ("window", ArgumentError, "window is (1, -2), expected"),
            ("rows", LayoutError, "q has 5 rows, expected at least 6, the share of one of 4 ranks"),
            ("slots", LayoutError, "layout: the slot of sequence 1 has 5 rows, expected a multiple of 8"),
            ("sequences", LayoutError, "layout_kv has 1 sequences, expected 2"),
            ("kv size", LayoutError, "k has heads of size 7, expected 8 as q"),
            ("dtype", LayoutError, "v is torch.float64, expected torch.float32 as q"),
            ("tensor", ArgumentTypeError, "k must be a tensor, got None"),
            ("layout", ArgumentTypeError, "layout must be a PackedLayout, got [0, 16]"),
            ("group", ArgumentTypeError, "group must be a torch.distributed.ProcessGroup or None, got 'world'"),
        ],
    )
    def test_what_cannot_be_meant_is_named_on_every_rank(self, team, what, kind, message):
        for answer in team.run(refused, what):
            assert type(answer.error) is kind
            assert message in str(answer.error)

    def test_a_layout_without_host_lengths_cannot_be_read_under_capture(self, team):
        for answer in team.run(captured):
            assert "needs the lengths of layout on the host" in str(answer.error)


def captured(world: World) -> None:
    with mark_capturing():
        layout = PackedLayout.from_cu_seqlens(torch.tensor([0, 16]), total_tokens=16, max_seqlen=16)
        x = torch.zeros(4, 4, 8)
        context_parallel_attention(x, x, x, layout, group=world.group(4), check=False)


def test_errors_travel_between_processes_with_their_facts():
    error = pickle.loads(pickle.dumps(RankError([2], ["rank 2: x"])))
    assert (error.ranks, error.faults, str(error)) == ((2,), ("rank 2: x",), "rank 2: x")
