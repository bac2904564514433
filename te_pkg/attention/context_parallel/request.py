"""A call of context-parallel attention as a value, checked once.

``t`` rows of a rank's shard, ``h`` and ``h_kv`` heads, ``d`` and ``d_v`` head sizes, ``c`` ranks.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from types import ModuleType
from typing import Any

import torch

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

_DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64)
_ALIGNMENTS = ("top_left", "bottom_right")
_calls: defaultdict[str, int] = defaultdict(int)


def next_call(ranks: Ranks) -> int:
    """How many calls this process has made with the group, this one included."""
    _calls[ranks.name] += 1
    return _calls[ranks.name]


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

    def faults(self, methods: Sequence[str]) -> list[str]:
        """What cannot be meant."""
        faults = []
        if self.method not in methods:
            faults.append(f"method is {self.method!r}, expected one of {', '.join(map(repr, methods))}")
        if self.align not in _ALIGNMENTS:
            faults.append(f"align is {self.align!r}, expected one of {', '.join(map(repr, _ALIGNMENTS))}")
        for name, number in (("scale", self.scale), ("softcap", self.softcap)):
            if number is not None and not _is_number(number):
                faults.append(f"{name} is {number!r}, expected a finite number or None")
        if self.softcap is not None and _is_number(self.softcap) and self.softcap <= 0:
            faults.append(f"softcap is {self.softcap!r}, expected more than 0")
        return faults


@dataclass(frozen=True)
class Request:
    """What a rank has to do.

    Attributes:
        ranks: with whom.
        queries: the layout of the queries, cut into shards.
        keys: likewise that of keys and values; the same object for self-attention.
        band: who sees whom.
        tasks: for each step of the method, its blocks and who serves them.
    """

    ranks: Ranks
    queries: Shards
    keys: Shards
    band: Band
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
        faults = options.faults(tuple(methods))
        if faults:
            raise ArgumentError("\n".join(faults))
        left, right = diagonal_bounds(options.causal, options.window)
        faults = _shape_faults(q, k, v)
        if not faults:
            faults += methods[options.method].why_not(q.shape[1], k.shape[1], ranks.size)
        queries = Shards.of(layout, ranks.size)
        keys = queries
        if layout_kv is not None and layout_kv is not layout:
            keys = Shards.of(layout_kv, ranks.size, "layout_kv")
            if len(keys.lengths) != len(queries.lengths):
                faults.append(
                    f"layout_kv has {len(keys.lengths)} sequences, expected {len(queries.lengths)} as the queries"
                )
        for name, x, shards in (("q", q, queries), ("k", k, keys), ("v", v, keys)):
            faults += _row_faults(name, x, shards)
        if faults:
            raise LayoutError(faults)
        is_self = keys.lengths == queries.lengths and keys.chunks == queries.chunks
        diagonals = (0,) * len(queries.lengths)
        if options.align == "bottom_right":
            diagonals = tuple(n_kv - n for n, n_kv in zip(queries.lengths, keys.lengths, strict=True))
        scale = q.shape[2] ** -0.5 if options.scale is None else float(options.scale)
        band = Band(left, right, diagonals, scale, options.softcap, is_self)
        request = cls(ranks, queries, keys, band)
        method = methods[options.method]
        split = ranks.size if options.method == "a2a" else 1
        tasks = tuple(
            tuple(_served(block, q, k, v, split, options.backend) for block in step) for step in method.plan(request)
        )
        return replace(request, tasks=tasks)

    def facts(self, options: Options, **others: Fact) -> dict[str, Fact]:
        """What all ranks must have alike."""
        sides = {"layout": self.queries}
        if self.keys is not self.queries:
            sides["layout_kv"] = self.keys
        facts: dict[str, Fact] = {
            "method": options.method,
            "causal": bool(options.causal),
            "align": options.align,
            "window": None if options.window is None else list(map(int, options.window)),
            "scale": self.band.scale,
            "softcap": options.softcap,
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


def _shape_faults(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> list[str]:
    faults = [
        f"{name} is {x.ndim}-D with shape {list(x.shape)}, expected 3-D [t, {heads}, d]"
        for name, x, heads in (("q", q, "h"), ("k", k, "h_kv"), ("v", v, "h_kv"))
        if x.ndim != 3
    ]
    if q.dtype not in _DTYPES:
        names = ", ".join(str(dtype).removeprefix("torch.") for dtype in _DTYPES)
        faults.append(f"q is {q.dtype}, expected one of {names}")
    for name, x in (("k", k), ("v", v)):
        if x.dtype != q.dtype:
            faults.append(f"{name} is {x.dtype}, expected {q.dtype} as q")
    if faults:
        return faults
    if k.shape[2] != q.shape[2]:
        faults.append(f"k has heads of size {k.shape[2]}, expected {q.shape[2]} as q")
    if q.shape[2] == 0:
        faults.append("q has heads of size 0, expected at least 1")
    if v.shape[:2] != k.shape[:2]:
        faults.append(f"v has {v.shape[0]} rows of {v.shape[1]} heads, expected {k.shape[0]} of {k.shape[1]} as k")
    if k.shape[1] == 0 or q.shape[1] % k.shape[1]:
        faults.append(f"q has {q.shape[1]} heads, expected a multiple of {k.shape[1]}, the heads of k")
    return faults


def _row_faults(name: str, x: torch.Tensor, shards: Shards) -> list[str]:
    faults = []
    if x.ndim and x.shape[0] < shards.rows:
        end, size = shards.rows * shards.cp_size, shards.cp_size
        faults.append(
            f"{name} has {x.shape[0]} rows, expected at least {shards.rows}, which is the share of one of {size} ranks "
            f"in slots that end at row {end}"
        )
    if x.device != shards.layout.device:
        faults.append(f"{name} is on {x.device}, expected {shards.layout.device} as its layout")
    return faults


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
