"""Attention over sequences whose rows lie on several ranks: :func:`context_parallel_attention`."""

from __future__ import annotations

import math
from typing import Any, Literal, overload

import torch
import torch.distributed as dist
from torch.autograd.function import once_differentiable

from te_pkg.attention.context_parallel import all_gather, all_to_all, ring
from te_pkg.attention.context_parallel.agreement import agree
from te_pkg.attention.context_parallel.exchange import Ranks
from te_pkg.attention.context_parallel.partial import Kept
from te_pkg.attention.context_parallel.request import Options, Request, next_call
from te_pkg.attention.layout import PackedLayout

__all__ = ["METHODS", "context_parallel_attention"]

METHODS = {"p2p": ring, "all_gather": all_gather, "a2a": all_to_all}


@overload
def context_parallel_attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    layout: PackedLayout,
    layout_kv: PackedLayout | None = None,
    *,
    group: dist.ProcessGroup | None,
    method: str = "p2p",
    causal: bool = False,
    align: str = "top_left",
    window: tuple[int, int] | None = None,
    scale: float | None = None,
    softcap: float | None = None,
    return_lse: Literal[False] = False,
    backend: str | None = None,
    check: bool = True,
) -> torch.Tensor: ...


@overload
def context_parallel_attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    layout: PackedLayout,
    layout_kv: PackedLayout | None = None,
    *,
    group: dist.ProcessGroup | None,
    method: str = "p2p",
    causal: bool = False,
    align: str = "top_left",
    window: tuple[int, int] | None = None,
    scale: float | None = None,
    softcap: float | None = None,
    return_lse: Literal[True],
    backend: str | None = None,
    check: bool = True,
) -> tuple[torch.Tensor, torch.Tensor]: ...


# A compiler that traced it would have to trace what ranks say to each other.
@torch.compiler.disable  # type: ignore[untyped-decorator]
def context_parallel_attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    layout: PackedLayout,
    layout_kv: PackedLayout | None = None,
    *,
    group: dist.ProcessGroup | None,
    method: str = "p2p",
    causal: bool = False,
    align: str = "top_left",
    window: tuple[int, int] | None = None,
    scale: float | None = None,
    softcap: float | None = None,
    return_lse: bool = False,
    backend: str | None = None,
    check: bool = True,
) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
    """Attention of packed sequences, each cut over the ranks of a group. To be called by all of them.

    The result is this rank's shard of what :func:`~te_pkg.attention.packed_attention` gives on one process, for every
    layout, and so are the gradients, once; they cannot be differentiated again. What padding rows hold does not matter,
    and those of results and gradients are 0.

    ``layout`` is that of the whole buffer, whose slots are multiples of ``2 * c``: ``layout.padded_to(2 * c)`` makes
    such a one. A rank holds ``x[partition_indices(layout.cu_seqlens_padded, c, rank)]``, and, behind that, as many rows
    of spare capacity as it likes. ``torch.compile`` leaves the call as it is, between two graphs.

    ========== ===================================== ============================ ===================================
    method     a rank holds                          messages, forward            heads
    ========== ===================================== ============================ ===================================
    p2p        two shards of keys and values         c - 1, while it works        any
    all_gather the keys and values of all            1, before it works           any
    a2a        whole sequences, some of the heads    1 before, 1 or 2 after       ``h`` and ``h_kv`` multiples of c
    ========== ===================================== ============================ ===================================

    Args:
        q: ``[t, h, d]``, float32, bfloat16, float16 or float64; this rank's shard.
        k: ``[t_kv, h_kv, d]``, likewise; ``h`` is a multiple of ``h_kv``.
        v: ``[t_kv, h_kv, d_v]``, likewise.
        layout: of the whole buffer of queries, the same on all ranks. One host sync where its lengths are not known.
        layout_kv: of that of keys and values, with as many sequences; None: that of the queries.
        group: the ranks; None: the default group.
        method: ``"p2p"``, ``"all_gather"`` or ``"a2a"``.
        causal: a query sees no key to the right of its diagonal.
        align: where the diagonal of a sequence lies: ``"top_left"`` begins at its first query and first key,
            ``"bottom_right"`` ends at the last ones.
        window: ``(left, right)``, how many keys beside the diagonal a query sees; -1: without bound.
        scale: what scores are multiplied by; None: ``1 / sqrt(d)``.
        softcap: scores ``x`` become ``softcap * tanh(x / softcap)``; None: they stay.
        return_lse: whether to return the log-sum-exp too.
        backend: one of :mod:`te_pkg.attention.backends`; None: the first that can serve. Ranks may differ in it.
        check: ask all ranks, before data moves, whether they mean the same; on all or on none. They wait for each
            other, in the backward pass too. Where the group has a backend for the CPU, no host sync; else one.

    Returns:
        ``[t, h, d_v]``; with ``return_lse`` also ``[h, t]``, natural logarithm, float64 for float64, else float32, -inf
        on padding rows and where nothing is seen.

    Raises:
        ArgumentTypeError: a ``TypeError``; an argument is of a type that cannot be meant.
        ArgumentError: a ``ValueError``; an option has a value that cannot be meant.
        LayoutError: a ``ValueError`` with every fault; a slot is no multiple of ``2 * c``, shapes, dtypes or devices do
            not fit, or the method cannot split these heads.
        BackendUnavailableError: a ``RuntimeError``; the backend that was asked for cannot serve this.
        HostReadError: a ``RuntimeError``; the lengths are not known, and may not be read now.
        RankError: a ``RuntimeError``; another rank refused, differs or did not answer within the timeout of the group.
            Names it, and how it differs. Without ``check`` ranks that differ may wait for each other until then, or
            give wrong results.
    """
    ranks = Ranks.of(group)
    call = next_call(ranks)
    options = Options(method, causal, align, window, scale, softcap, backend, bool(return_lse))
    try:
        request = Request.of(ranks, q, k, v, layout, layout_kv, options, METHODS)
    except Exception as error:
        if check:
            agree(ranks, {}, error)
        raise
    if check:
        recorded = torch.is_grad_enabled() and any(x.requires_grad for x in (q, k, v))
        shapes = {name: list(x.shape) for name, x in (("q", q), ("k", k), ("v", v))}
        facts = request.facts(options, gradients=recorded, dtype=str(q.dtype), **shapes)
        agree(ranks, {"pass": f"forward of call {call}", **facts})
    out, lse = _ContextParallel.apply(q, k, v, request, method, call if check else None)  # type: ignore[no-untyped-call]
    return (out, lse) if return_lse else out


class _ContextParallel(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        request: Request,
        method: str,
        call: int | None,
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        rows, rows_kv = request.queries.rows, request.keys.rows
        with torch.autocast(q.device.type, enabled=False):
            out, lse, kept = METHODS[method].forward(request, q[:rows], k[:rows_kv], v[:rows_kv])
        ctx.set_materialize_grads(False)
        ctx.request, ctx.method, ctx.call = request, method, call
        ctx.like, ctx.inputs = (out.shape, out.dtype), [(x.shape[0], x.dtype) for x in (q, k, v)]
        ctx.save_for_backward(*kept)
        spare = q.shape[0] - rows
        if spare:
            out = torch.cat([out, out.new_zeros((spare, *out.shape[1:]))])
            lse = None if lse is None else torch.cat([lse, lse.new_full((lse.shape[0], spare), -math.inf)], 1)
        return out, lse if request.wants_lse else None

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_out: torch.Tensor | None, d_lse: torch.Tensor | None) -> tuple[torch.Tensor | None, ...]:
        request: Request = ctx.request
        if ctx.call is not None:
            agree(request.ranks, {"pass": f"backward of call {ctx.call}", "gradient of lse": d_lse is not None})
        kept = Kept(*ctx.saved_tensors)
        rows, (shape, dtype) = request.queries.rows, ctx.like
        d_out = kept.out.new_zeros(shape, dtype=dtype) if d_out is None else d_out[:rows]
        d_lse = None if d_lse is None else d_lse[:, :rows]
        with torch.autocast(kept.q.device.type, enabled=False):
            parts = METHODS[ctx.method].backward(request, kept, d_out, d_lse)
        gradients = (
            _placed(part, *like) if wanted else None
            for part, like, wanted in zip(parts, ctx.inputs, ctx.needs_input_grad[:3], strict=True)
        )
        return *gradients, None, None, None


def _placed(part: torch.Tensor, rows: int, dtype: torch.dtype) -> torch.Tensor:
    """Of the dtype of an input, and with as many rows, those of spare capacity 0."""
    spare, part = rows - part.shape[0], part.to(dtype)
    return torch.cat([part, part.new_zeros((spare, *part.shape[1:]))]) if spare else part
