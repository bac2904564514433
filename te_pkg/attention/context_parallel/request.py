"""A call of context-parallel attention as a value, checked once.

``t`` rows of a rank's shard, ``h`` and ``h_kv`` heads, ``d`` and ``d_v`` head sizes, ``c`` ranks.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from types import ModuleType
from weakref import WeakKeyDictionary

import torch
import torch.distributed as dist

from te_pkg.attention.attention_checks import check_arguments
from te_pkg.attention.backends import choose
from te_pkg.attention.buffer_checks import check_tensor
from te_pkg.attention.context_parallel.agreement import Fact
from te_pkg.attention.context_parallel.blocks import Band, Block
from te_pkg.attention.context_parallel.exchange import Ranks
from te_pkg.attention.context_parallel.partial import Task
from te_pkg.attention.context_parallel.shards import Shards
from te_pkg.attention.errors import ArgumentError, ArgumentTypeError, LayoutError
from te_pkg.attention.layout import PackedLayout
from te_pkg.attention.masks import diagonal_bounds

__all__ = ["Options", "Request", "next_call"]

# By the group and not by its name: one made anew has the same name, and some of its ranks may have been started anew.
_calls: WeakKeyDictionary[dist.ProcessGroup | None, int] = WeakKeyDictionary()


def next_call(ranks: Ranks) -> int:
    """How many calls this process has made with the group, this one included."""
    group = dist.group.WORLD if ranks.group is None else ranks.group
    _calls[group] = _calls.get(group, 0) + 1
    return _calls[group]


@dataclass(frozen=True)
class Options:
    """What a caller may choose; see :func:`~te_pkg.attention.context_parallel.context_parallel_attention`."""

    method: str
    causal: bool
    align: str
    window: tuple[int, int] | None
    scale: float | None
    softcap: float | None
    backend: str | None
    return_lse: bool


@dataclass(frozen=True)
class Request:
    """What a rank has to do.

    Attributes:
        ranks: with whom.
        queries: the layout of the queries, cut into shards.
        keys: likewise that of keys and values; the same object for self-attention.
        band: who sees whom.
        wants_lse: whether the caller asked for the log-sum-exp.
        tasks: for each step of the method, its blocks and who serves them.
    """

    ranks: Ranks
    queries: Shards
    keys: Shards
    band: Band
    wants_lse: bool
    tasks: tuple[tuple[Task, ...], ...] = ()

    @classmethod
    def of(
        cls,
        ranks: Ranks,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        layout: PackedLayout,
        layout_kv: PackedLayout | None,
        options: Options,
        methods: dict[str, ModuleType],
    ) -> Request:
        """Of the arguments of a call, without a word to the other ranks. One host sync where lengths are not known.

        Raises:
            ArgumentTypeError, ArgumentError, LayoutError, HostReadError, BackendUnavailableError: see
                :func:`~te_pkg.attention.context_parallel.context_parallel_attention`.
        """
        for name, x in (("q", q), ("k", k), ("v", v)):
            check_tensor(name, x)
        for name, given in (("layout", layout), ("layout_kv", layout if layout_kv is None else layout_kv)):
            if not isinstance(given, PackedLayout):
                raise ArgumentTypeError(f"{name} must be a PackedLayout, got {given!r}")
        if options.method not in tuple(methods):
            raise ArgumentError(f"method is {options.method!r}, expected one of {', '.join(map(repr, methods))}")
        queries = Shards.of(layout, ranks.size)
        keys = queries if layout_kv is None or layout_kv is layout else Shards.of(layout_kv, ranks.size, "layout_kv")
        _check(ranks, q, k, v, queries, keys, options)
        left, right = diagonal_bounds(options.causal, options.window)
        method = methods[options.method]
        faults = method.why_not(q.shape[1], k.shape[1], ranks.size)
        if faults:
            raise LayoutError(faults)
        is_self = keys.lengths == queries.lengths and keys.chunks == queries.chunks
        diagonals = (0,) * len(queries.lengths)
        if options.align == "bottom_right":
            diagonals = tuple(n_kv - n for n, n_kv in zip(queries.lengths, keys.lengths, strict=True))
        scale = q.shape[2] ** -0.5 if options.scale is None else float(options.scale)
        softcap = None if options.softcap is None else float(options.softcap)
        band = Band(left, right, diagonals, scale, softcap, is_self)
        request = cls(ranks, queries, keys, band, options.return_lse)
        split = ranks.size if options.method == "a2a" else 1
        tasks = tuple(
            tuple(_served(block, q, k, v, split, options.backend) for block in step) for step in method.plan(request)
        )
        return replace(request, tasks=tasks)

    def facts(self, options: Options, **others: Fact) -> dict[str, Fact]:
        """What all ranks must have alike."""
        sides = {"layout": self.queries}
        if not self.band.is_self:
            sides["layout_kv"] = self.keys
        facts: dict[str, Fact] = {
            "method": options.method,
            "causal": bool(options.causal),
            "align": options.align,
            "window": None if options.window is None else list(map(int, options.window)),
            "scale": self.band.scale,
            "softcap": self.band.softcap,
            "return_lse": self.wants_lse,
            **others,
        }
        for name, shards in sides.items():
            facts |= {
                f"{name}.lengths": shards.lengths,
                f"{name}.slots": [2 * self.ranks.size * chunk for chunk in shards.chunks],
                f"{name}.total_tokens": shards.layout.total_tokens,
            }
        return facts


def _served(block: Block, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, split: int, backend: str | None) -> Task:
    """Choose a backend now, so that a rank that has none says so before the others wait for it."""
    rows, rows_kv = block.q.layout.total_tokens, block.kv.layout.total_tokens
    like_q, like_k, like_v = (
        # Like what will come, without its memory.
        x.new_empty(x.shape[2]).expand(count, x.shape[1] // split, -1)
        for x, count in ((q, rows), (k, rows_kv), (v, rows_kv))
    )
    return Task(block, choose(block.problem, like_q, like_k, like_v, backend))


def _check(
    ranks: Ranks, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, queries: Shards, keys: Shards, options: Options
) -> None:
    """As on one process, but for the rows: a shard may have more than its slots."""
    faults = []
    for name, x, shards in (("q", q, queries), ("k", k, keys), ("v", v, keys)):
        if x.ndim and x.shape[0] < shards.rows:
            faults.append(
                f"{name} has {x.shape[0]} rows, expected at least {shards.rows}, the share of one of {ranks.size} "
                f"ranks in slots that end at row {shards.rows * ranks.size}"
            )
    here = queries.whole(ranks.rank).layout
    there = here if keys is queries else keys.whole(ranks.rank).layout
    fitting_q, fitting_k, fitting_v = _fitting(q, queries.rows), _fitting(k, keys.rows), _fitting(v, keys.rows)
    align, window, scale, softcap = options.align, options.window, options.scale, options.softcap
    try:
        check_arguments(
            fitting_q, fitting_k, fitting_v, here, there, options.causal, align, window, scale, softcap, 0.0, None
        )
    except LayoutError as error:
        faults += error.faults
    if faults:
        raise LayoutError(faults)


def _fitting(x: torch.Tensor, rows: int) -> torch.Tensor:
    """As if there were neither spare rows nor missing ones."""
    if x.ndim == 0 or x.shape[0] >= rows:
        return x[:rows] if x.ndim else x
    return x.new_empty(1).expand(rows, *x.shape[1:])
