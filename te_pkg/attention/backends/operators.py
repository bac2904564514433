"""Attention as one operation of torch: for autograd, for compilers, and for neither, at the least cost of each.

``te_pkg::packed_attention`` and ``te_pkg::packed_attention_backward`` are operators with known shapes, one node each
for ``torch.compile``, ``torch.export`` and every mode that watches operations; which backend serves is settled when
they run. Where nobody watches the backend is called as it is, or as a function of autograd.

What is differentiated more than once, forwards, or by ``torch.func`` is done by ``dense``, which has all derivatives.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any, cast

import torch
import torch.autograd.forward_ad as forward_ad
from torch._C import _functorch, _len_torch_dispatch_stack
from torch.compiler import is_compiling

from te_pkg.attention import capture
from te_pkg.attention.backends import Backend, BackendUnavailableError, choose, dense
from te_pkg.attention.backends.problem import AttentionProblem
from te_pkg.attention.caching import is_tracing
from te_pkg.attention.kernels.host import is_plain
from te_pkg.attention.layout import PackedLayout
from te_pkg.attention.layout_checks import CheckedOffsets

__all__ = ["attend"]


def attend(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, problem: AttentionProblem, backend: str | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Attention and log-sum-exp, see :class:`te_pkg.attention.backends.Backend`; both are differentiable.

    Raises:
        BackendUnavailableError: a ``RuntimeError``; ``backend`` cannot serve this, and why.
    """
    if is_compiling() or (_len_torch_dispatch_stack() and _functorch.peek_interpreter_stack() is None):
        return cast("tuple[torch.Tensor, torch.Tensor]", _attend(q, k, v, *_flat(problem), backend or ""))
    if _functorch.peek_interpreter_stack() is not None or forward_ad._current_level >= 0:
        if backend not in (None, "dense"):
            raise BackendUnavailableError(backend, "only dense is differentiated forwards and by torch.func")
        with _as_given(q):
            return dense.forward(q, k, v, problem)
    if not is_plain(q, k, v):
        return cast("tuple[torch.Tensor, torch.Tensor]", _attend(q, k, v, *_flat(problem), backend or ""))
    chosen = choose(problem, q, k, v, backend)
    if torch.is_grad_enabled() and (q.requires_grad or k.requires_grad or v.requires_grad):
        return cast(
            "tuple[torch.Tensor, torch.Tensor]",
            _Attention.apply(q, k, v, problem, chosen),  # type: ignore[no-untyped-call]
        )
    with _as_given(q):
        return chosen.forward(q, k, v, problem)


def _as_given(q: torch.Tensor) -> AbstractContextManager[Any]:
    """A block in which no autocast changes the dtype that a backend works in."""
    kind = q.device.type
    if torch.amp.is_autocast_available(kind) and torch.is_autocast_enabled(kind):  # "meta" has none to ask about
        return torch.autocast(kind, enabled=False)
    return nullcontext()


class _Attention(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, problem: AttentionProblem, backend: Backend
    ) -> tuple[torch.Tensor, torch.Tensor]:
        with _as_given(q):
            out, lse = backend.forward(q, k, v, problem)
        # The offsets too, so that torch notices if somebody changes them before the way back.
        layout, keys = problem.layout, problem.layout_kv
        offsets = layout.cu_seqlens, layout.cu_seqlens_padded, keys.cu_seqlens, keys.cu_seqlens_padded
        ctx.save_for_backward(q, k, v, out, lse, *offsets)
        ctx.problem, ctx.backend = problem, backend
        ctx.set_materialize_grads(False)
        return out, lse

    @staticmethod
    def backward(ctx: Any, d_out: torch.Tensor | None, d_lse: torch.Tensor | None) -> tuple[torch.Tensor | None, ...]:
        q, k, v, out, lse, *_ = ctx.saved_tensors
        if d_out is None and d_lse is None:
            return (None,) * 5
        if d_out is None:
            d_out = torch.zeros_like(out)
        # A gradient that will be differentiated is made of operations that have derivatives.
        backend = dense if torch.is_grad_enabled() else ctx.backend
        with _as_given(q):
            return *backend.backward(d_out, q, k, v, out, lse, ctx.problem, d_lse), None, None


def _flat(problem: AttentionProblem) -> tuple[Any, ...]:
    """The problem as arguments of an operator; what the host knows would become a constant of the program."""
    layout, keys, shift = problem.layout, problem.layout_kv, problem.shift
    if shift is not None and not isinstance(shift, torch.Tensor):
        shift = torch.tensor(shift, dtype=torch.int32, device=layout.device)
    return (
        layout.cu_seqlens,
        layout.cu_seqlens_padded,
        layout.max_seqlen,
        keys.cu_seqlens,
        keys.cu_seqlens_padded,
        keys.max_seqlen,
        problem.scale,
        problem.left,
        problem.right,
        problem.align,
        shift,
        problem.softcap,
        problem.dropout_p,
        problem.dropout_keep,
    )


def _problem(
    rows: int,
    rows_kv: int,
    cu_seqlens: torch.Tensor,
    cu_seqlens_padded: torch.Tensor,
    max_seqlen: int,
    cu_seqlens_kv: torch.Tensor,
    cu_seqlens_kv_padded: torch.Tensor,
    max_seqlen_kv: int,
    *rest: Any,
) -> AttentionProblem:
    layout = _layout(cu_seqlens, cu_seqlens_padded, rows, max_seqlen)
    return AttentionProblem(layout, _layout(cu_seqlens_kv, cu_seqlens_kv_padded, rows_kv, max_seqlen_kv), *rest)


def _layout(cu_seqlens: torch.Tensor, cu_seqlens_padded: torch.Tensor, rows: int, longest: int) -> PackedLayout:
    if cu_seqlens.device.type == "cpu" and not capture.is_capturing() and not is_tracing():
        return PackedLayout.from_cu_seqlens(cu_seqlens, cu_seqlens_padded, rows, longest)  # read without waiting
    return PackedLayout._trusted(CheckedOffsets(cu_seqlens, cu_seqlens_padded, rows, longest))


_PROBLEM = (
    "Tensor cu_seqlens, Tensor cu_seqlens_padded, SymInt max_seqlen, Tensor cu_seqlens_kv, "
    "Tensor cu_seqlens_kv_padded, SymInt max_seqlen_kv, float scale, SymInt? left, SymInt? right, str align, "
    "Tensor? shift, float? softcap, float dropout_p, Tensor? dropout_keep, str backend"
)


@torch.library.custom_op(
    "te_pkg::packed_attention",
    mutates_args=(),
    schema=f"(Tensor q, Tensor k, Tensor v, {_PROBLEM}) -> (Tensor, Tensor)",
)
def _attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *rest: Any) -> tuple[torch.Tensor, torch.Tensor]:
    *flat, backend = rest
    problem = _problem(q.shape[0], k.shape[0], *flat)
    with _as_given(q):
        return choose(problem, q, k, v, backend or None).forward(q, k, v, problem)


@_attend.register_fake
def _(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *rest: Any) -> tuple[torch.Tensor, torch.Tensor]:
    rows, heads, _ = q.shape
    lse = q.new_empty((heads, rows), dtype=torch.promote_types(q.dtype, torch.float32))
    return q.new_empty((rows, heads, v.shape[-1])), lse


@torch.library.custom_op(
    "te_pkg::packed_attention_backward",
    mutates_args=(),
    schema=(
        "(Tensor d_out, Tensor q, Tensor k, Tensor v, Tensor out, Tensor lse, Tensor? d_lse, "
        f"{_PROBLEM}) -> (Tensor, Tensor, Tensor)"
    ),
)
def _attend_backward(
    d_out: torch.Tensor,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    out: torch.Tensor,
    lse: torch.Tensor,
    d_lse: torch.Tensor | None,
    *rest: Any,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    *flat, backend = rest
    problem = _problem(q.shape[0], k.shape[0], *flat)
    with _as_given(q):
        return choose(problem, q, k, v, backend or None).backward(d_out, q, k, v, out, lse, problem, d_lse)


@_attend_backward.register_fake
def _(
    d_out: torch.Tensor, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *rest: Any
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    return q.new_empty(q.shape), k.new_empty(k.shape), v.new_empty(v.shape)


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[torch.Tensor, torch.Tensor]) -> None:
    tensors = [x if isinstance(x, torch.Tensor) else None for x in inputs]
    ctx.save_for_backward(*tensors, *output)
    ctx.others = [None if isinstance(x, torch.Tensor) else x for x in inputs]
    ctx.set_materialize_grads(False)


def _backward(ctx: Any, d_out: torch.Tensor | None, d_lse: torch.Tensor | None) -> tuple[torch.Tensor | None, ...]:
    if d_out is None and d_lse is None:
        return (None,) * len(ctx.others)
    *tensors, out, lse = ctx.saved_tensors
    inputs = [other if tensor is None else tensor for tensor, other in zip(tensors, ctx.others, strict=True)]
    if d_out is None:
        d_out = torch.zeros_like(out)
    q, k, v, *rest = inputs
    if torch.is_grad_enabled():  # as above; an operator has no derivative of its own
        with _as_given(q):
            gradients = dense.backward(d_out, q, k, v, out, lse, _problem(q.shape[0], k.shape[0], *rest[:-1]), d_lse)
    else:
        gradients = _attend_backward(d_out, q, k, v, out, lse, d_lse, *rest)
    return (*gradients, *[None] * (len(inputs) - 3))


_attend.register_autograd(_backward, setup_context=_setup_context)
