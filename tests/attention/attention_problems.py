"""Random attention problems with their tensors, NaN in every padding row, and a truth in plain loops."""

from __future__ import annotations

import dataclasses
import math
from typing import NamedTuple

import torch
from hypothesis import strategies as st

from te_pkg.attention import PackedLayout
from te_pkg.attention.backends import AttentionProblem, Backend, dense
from tests.attention.layouts import Rows, layouts

__all__ = ["Case", "assert_close", "cases", "compare", "naive", "poisoned", "with_softcap", "with_tensors"]


class Case(NamedTuple):
    problem: AttentionProblem
    rows: Rows
    rows_kv: Rows
    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    d_out: torch.Tensor
    d_lse: torch.Tensor


def poisoned(layout: PackedLayout, *shape: int, dtype: torch.dtype = torch.float64, seed: int = 0) -> torch.Tensor:
    """Random rows of a layout, NaN on padding."""
    x = torch.randn(layout.total_tokens, *shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    x[~layout.token_mask()] = math.nan
    return x.to(dtype)


@st.composite
def cases(draw: st.DrawFn, *, shifted: bool = True, capped: bool = True, max_length: int = 7) -> Case:
    """Self and cross attention, grouped heads, bands of every kind, sequences without queries or keys."""
    layout, rows = draw(layouts(max_sequences=4, max_length=max_length))
    keys, rows_kv = layout, rows
    if draw(st.booleans()):
        keys, rows_kv = draw(layouts(num_sequences=len(rows.lengths), max_length=max_length))
    side = st.integers(-1, 4)
    shift = None
    if shifted and draw(st.booleans()):
        numbers = st.integers(-max_length, max_length)
        shift = tuple(draw(st.lists(numbers, min_size=len(rows.lengths), max_size=len(rows.lengths))))
    problem = AttentionProblem.of(
        layout,
        keys,
        scale=draw(st.sampled_from([0.3, 1.0, -0.5])),
        causal=draw(st.booleans()),
        align=draw(st.sampled_from(["top_left", "bottom_right"])),
        window=draw(st.none() | st.tuples(side, side)),
        shift=shift,
        softcap=draw(st.none() | st.just(1.5)) if capped else None,
    )
    heads_kv, group = draw(st.integers(1, 2)), draw(st.integers(1, 3))
    size = draw(st.sampled_from([1, 3, 8]))
    size_v = draw(st.sampled_from([size, 2]))
    seed = draw(st.integers(0, 1000))
    heads = heads_kv * group
    return Case(
        problem,
        rows,
        rows_kv,
        poisoned(layout, heads, size, seed=seed),
        poisoned(keys, heads_kv, size, seed=seed + 1),
        poisoned(keys, heads_kv, size_v, seed=seed + 2),
        poisoned(layout, heads, size_v, seed=seed + 3),
        poisoned(layout, heads, seed=seed + 4).T,
    )


def naive(case: Case) -> tuple[torch.Tensor, torch.Tensor]:
    """Row by row, head by head, over the keys that a row sees; from the models of the layouts alone."""
    problem, rows, rows_kv = case.problem, case.rows, case.rows_kv
    q, k, v = case.q, case.k, case.v
    group = q.shape[1] // k.shape[1]
    shifts = problem.shift or (0,) * len(rows.lengths)
    out = [[torch.zeros(v.shape[2], dtype=q.dtype)] * q.shape[1] for _ in range(rows.total)]
    lse = [[torch.tensor(-math.inf, dtype=q.dtype)] * rows.total for _ in range(q.shape[1])]
    for row, owner in enumerate(rows.owners):
        if owner is None:
            continue
        sequence, position = owner
        meets = position + shifts[sequence]
        if problem.align == "bottom_right":
            meets += rows_kv.lengths[sequence] - rows.lengths[sequence]
        seen = [
            key
            for key, of in enumerate(rows_kv.owners)
            if of is not None
            and of[0] == sequence
            and (problem.left is None or of[1] >= meets - problem.left)
            and (problem.right is None or of[1] <= meets + problem.right)
        ]
        for head in range(q.shape[1] if seen else 0):
            scores = torch.stack([q[row, head].dot(k[key, head // group]) for key in seen]) * problem.scale
            if problem.softcap is not None:
                scores = problem.softcap * (scores / problem.softcap).tanh()
            lse[head][row] = scores.logsumexp(0)
            out[row][head] = (scores.softmax(0)[:, None] * torch.stack([v[key, head // group] for key in seen])).sum(0)
    stacked = [torch.stack(heads) for heads in out]
    logs = [torch.stack(of_rows) if of_rows else torch.zeros(0, dtype=q.dtype) for of_rows in lse]
    return torch.stack(stacked) if stacked else case.d_out.new_zeros(case.d_out.shape), torch.stack(logs)


def with_tensors(case: Case, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> Case:
    return case._replace(q=q, k=k, v=v)


def with_softcap(case: Case, softcap: float | None) -> Case:
    return case._replace(problem=dataclasses.replace(case.problem, softcap=softcap))


def assert_close(found: torch.Tensor, expected: torch.Tensor, layout: PackedLayout, tolerance: float = 1e-9) -> None:
    """Equal to rounding, and exactly 0 on padding."""
    assert found.shape == expected.shape
    torch.testing.assert_close(found.double(), expected.double(), rtol=tolerance, atol=tolerance)
    assert not found[~layout.token_mask()].any()


def compare(backend: Backend, case: Case, tolerance: float = 1e-9) -> None:
    """Both passes of a backend against those of ``dense``.

    The backward pass also as a block of a whole, whose output and log-sum-exp are others.
    """
    problem, q, k, v = case.problem, case.q, case.k, case.v
    layout, keys = problem.layout, problem.layout_kv
    out, lse = backend.forward(q, k, v, problem)
    expected, logs = dense.forward(q, k, v, problem)
    assert_close(out, expected, layout, tolerance)
    torch.testing.assert_close(lse.double(), logs.double(), rtol=tolerance, atol=tolerance)
    assert (lse.dtype, out.dtype) == (logs.dtype, q.dtype)
    assert out.is_contiguous()
    assert lse.is_contiguous()
    whole = expected + 0.5, logs + 0.25
    for of_out, of_lse in ((expected, logs), whole):
        for d_lse in (None, case.d_lse):
            arguments = case.d_out, q, k, v, of_out, of_lse, problem, d_lse
            for found, truth, of in zip(
                backend.backward(*arguments), dense.backward(*arguments), (layout, keys, keys), strict=True
            ):
                assert_close(found, truth, of, tolerance)
                assert found.dtype == truth.dtype
                assert found.is_contiguous()
