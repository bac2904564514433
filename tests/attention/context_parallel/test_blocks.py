"""Blocks: every pair of a query and a key that it sees is in one block, and in one alone; none is empty."""

from __future__ import annotations

import doctest
from collections import Counter

import hypothesis
import pytest
from hypothesis import strategies as st

from te_pkg.attention.backends import AttentionProblem
from te_pkg.attention.context_parallel import all_to_all, blocks, demo, shards
from te_pkg.attention.context_parallel.blocks import Band, Block, gathered_blocks, ring_blocks, whole_block
from te_pkg.attention.context_parallel.partition import partition_indices
from te_pkg.attention.context_parallel.shards import Shards
from tests.attention.layouts import Rows, layout_of

Pair = tuple[int, int]


@st.composite
def problems(draw: st.DrawFn) -> tuple[Shards, Shards, Band, int]:
    """Queries, keys, a band, and the number of ranks."""
    size = draw(st.integers(1, 4))
    count = draw(st.integers(0, 3))

    def cut() -> Shards:
        lengths = tuple(draw(st.lists(st.integers(0, 18), min_size=count, max_size=count)))
        slots = tuple((-(-length // (2 * size)) + draw(st.integers(0, 1))) * 2 * size for length in lengths)
        return Shards.of(layout_of(Rows(lengths, slots, sum(slots))), size)

    queries = cut()
    keys = queries if draw(st.booleans()) else cut()
    sides = st.none() | st.integers(0, 7)
    left, right = draw(st.sampled_from([(None, None), (None, 0), (draw(sides), draw(sides))]))
    diagonals = (0,) * count
    if draw(st.booleans()):
        diagonals = tuple(n_kv - n for n, n_kv in zip(queries.lengths, keys.lengths, strict=True))
    return queries, keys, Band(left, right, diagonals, 1.0, None, keys is queries), size


def seen(queries: Shards, keys: Shards, band: Band) -> Counter[Pair]:
    """Rows of the whole buffers, by the definition."""
    found: Counter[Pair] = Counter()
    begins = [shards.layout.cu_seqlens_padded.tolist() for shards in (queries, keys)]
    for i, (n, n_kv) in enumerate(zip(queries.lengths, keys.lengths, strict=True)):
        for p in range(n):
            met = p + band.diagonals[i]
            for u in range(n_kv):
                if (band.left is None or u >= met - band.left) and (band.right is None or u <= met + band.right):
                    found[begins[0][i] + p, begins[1][i] + u] += 1
    return found


def pairs(block: Block, rows: list[int], rows_kv: list[int]) -> Counter[Pair]:
    """Rows of the whole buffers that a block lets attend; ``rows`` says which rows its buffers hold."""
    problem: AttentionProblem = block.problem
    mask = problem.layout.attention_mask(problem.layout_kv)
    q_at, kv_at = problem.layout.position_ids().tolist(), problem.layout_kv.position_ids().tolist()
    sequences = problem.layout.sequence_ids().tolist()
    diagonals = problem.diagonals().tolist()
    found: Counter[Pair] = Counter()
    for q, kv in mask.nonzero().tolist():
        met = q_at[q] + diagonals[sequences[q]]
        if (problem.left is None or kv_at[kv] >= met - problem.left) and (
            problem.right is None or kv_at[kv] <= met + problem.right
        ):
            found[rows[block.q.begin + q], rows_kv[block.kv.begin + kv]] += 1
    return found


def held(side: Shards, rank: int) -> list[int]:
    return partition_indices(side.layout.cu_seqlens_padded, side.cp_size, rank).tolist()


@hypothesis.given(problems())
def test_the_steps_of_the_ring_see_each_pair_once(problem):
    queries, keys, band, size = problem
    found: Counter[Pair] = Counter()
    for rank in range(size):
        for source in range(size):
            for block in ring_blocks(band, queries, keys, rank, source):
                part = pairs(block, held(queries, rank), held(keys, source))
                assert part
                found += part
    assert found == seen(queries, keys, band)


@hypothesis.given(problems())
def test_gathered_keys_are_seen_once_and_those_behind_the_last_are_left_out(problem):
    queries, keys, band, size = problem
    found: Counter[Pair] = Counter()
    everything = list(range(keys.rows * size))
    for rank in range(size):
        for block in gathered_blocks(band, queries, keys, rank):
            part = pairs(block, held(queries, rank), everything)
            assert part
            found += part
            if band.right is not None:
                seen_to = {kv for _, kv in part}
                ends = (begin + n for begin, n in zip(block.kv.layout.slot_offsets, block.kv.lengths, strict=False))
                assert any(end - 1 in seen_to for end in ends)
    assert found == seen(queries, keys, band)


@hypothesis.given(problems())
def test_whole_sequences_are_one_block(problem):
    queries, keys, band, size = problem
    made = whole_block(band, queries, keys)
    assert len(made) <= 1
    found: Counter[Pair] = Counter()
    for block in made:
        found += pairs(block, list(range(queries.rows * size)), list(range(keys.rows * size)))
    assert found == seen(queries, keys, band)


def test_causal_self_attention_is_one_block_in_each_step_of_half_the_pairs():
    side = Shards.of(layout_of(Rows((32,), (32,), 32)), 4)
    band = Band(None, 0, (0,), 1.0, None, True)
    for rank in range(4):
        steps = [ring_blocks(band, side, side, rank, source) for source in range(4)]
        assert [len(step) for step in steps] == [1] * 4
        sizes = [(step[0].q.lengths[0], step[0].kv.lengths[0], step[0].problem.right) for step in steps]
        assert sizes == [(8, 4, None)] * rank + [(8, 8, 0)] + [(4, 8, None)] * (3 - rank)


def test_a_window_leaves_out_what_nobody_sees():
    side = Shards.of(layout_of(Rows((64,), (64,), 64)), 4)
    band = Band(4, 0, (0,), 1.0, None, True)
    # Chunk 0 sees itself, and 7 itself and a little of 6, which rank 1 holds with chunk 1.
    assert [len(ring_blocks(band, side, side, 0, source)) for source in range(4)] == [2, 1, 0, 0]


def test_a_block_that_is_seen_whole_has_no_band():
    side = Shards.of(layout_of(Rows((64,), (64,), 64)), 4)
    wide = ring_blocks(Band(60, 0, (0,), 1.0, None, True), side, side, 1, 0)
    assert [(block.problem.left, block.problem.right, block.problem.shift) for block in wide[:1]] == [
        (None, None, None)
    ]


@pytest.mark.parametrize("module", [blocks, shards, all_to_all, demo])
def test_examples(module):
    assert doctest.testmod(module).failed == 0
