"""A move of rows as one operation of torch: for autograd, for compilers, and for neither, at the least cost of each.

``te_pkg::relayout`` and, for a given result, ``te_pkg::relayout_out`` are operators with known shapes and a known
derivative, one node each for ``torch.compile``, ``torch.export`` and every mode that watches operations. An operator
takes 50 microseconds of Python, so where nobody watches the kernel is called as it is, or as a function of autograd.

The derivative of a move is the move from the target back to the source.
"""

from __future__ import annotations

from typing import Any, cast

import torch
import torch.autograd.forward_ad as forward_ad
from torch._C import _functorch, _len_torch_dispatch_stack
from torch.compiler import is_compiling

from te_pkg.attention.kernels import Fill, RowMove, Slots, choose
from te_pkg.attention.kernels.host import is_plain
from te_pkg.attention.kernels.words import check_fill, count_write

__all__ = ["move_rows"]


def move_rows(
    x: torch.Tensor, move: RowMove, fill: Fill, kernel: str | None, out: torch.Tensor | None = None
) -> torch.Tensor:
    """``[t_source, ...]`` -> ``[t_target, ...]``, see :class:`~te_pkg.attention.kernels.RowMove`.

    Differentiable twice if ``out`` is None. ``out`` shares no memory with ``x`` and is not conjugated lazily.
    """
    if is_plain(x):
        if out is None and ((x.requires_grad and torch.is_grad_enabled()) or forward_ad._current_level >= 0):
            return cast(torch.Tensor, _Move.apply(x, move, fill, kernel))  # type: ignore[no-untyped-call]
        return _run(x, move, fill, kernel, out)
    # What the host knows would become a constant of the program.
    offsets = (move.cu_seqlens, move.source.offsets, move.target.offsets)
    if out is not None:
        _relayout_out(x, *offsets, fill, kernel or "", out)
        return out
    if is_compiling() or _len_torch_dispatch_stack() or not _is_differentiated():
        return cast(torch.Tensor, _relayout(x, *offsets, move.target.rows, fill, kernel or ""))
    return cast(torch.Tensor, _MoveUnderFunctorch.apply(x, move, fill, kernel))  # type: ignore[no-untyped-call]


def _is_differentiated() -> bool:
    # By `torch.func`, which knows operators too, but not their derivatives; or batched, as operators are as well.
    interpreter = _functorch.peek_interpreter_stack()
    return interpreter is not None and interpreter.key() != _functorch.TransformType.Functionalize


def _run(
    x: torch.Tensor, move: RowMove, fill: Fill, kernel: str | None, out: torch.Tensor | None = None
) -> torch.Tensor:
    # A kernel sees memory, and none that has yet to be conjugated.
    moved = choose(x.device, kernel).move_rows(x.resolve_conj().resolve_neg(), move, fill, out)
    if out is not None:
        count_write(out)
    return moved


class _Move(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, move: RowMove, fill: Fill, kernel: str | None) -> torch.Tensor:
        _remember(ctx, move, kernel)
        return _run(x, move, fill, kernel)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        return _move_back(ctx, gradient), None, None, None

    @staticmethod
    def jvp(ctx: Any, tangent: torch.Tensor, *_: None) -> torch.Tensor:
        return move_rows(tangent, ctx.move, 0, ctx.kernel)


class _MoveUnderFunctorch(torch.autograd.Function):
    """The same in the form that ``torch.func`` asks for, which takes 20 microseconds more."""

    @staticmethod
    def forward(x: torch.Tensor, move: RowMove, fill: Fill, kernel: str | None) -> torch.Tensor:
        return _run(x, move, fill, kernel)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
        _, move, _, kernel = inputs
        _remember(ctx, move, kernel)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        return _move_back(ctx, gradient), None, None, None

    @staticmethod
    def jvp(ctx: Any, tangent: torch.Tensor, *_: None) -> torch.Tensor:
        return move_rows(tangent, ctx.move, 0, ctx.kernel)

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Any, ...], x: torch.Tensor, *rest: Any) -> tuple[torch.Tensor, int]:
        return _MoveUnderFunctorch.apply(x.movedim(in_dims[0], 1), *rest), 1  # type: ignore[no-untyped-call]


def _remember(ctx: Any, move: RowMove, kernel: str | None) -> None:
    # Saved as tensors, so that torch notices if somebody changes them before the way back.
    ctx.save_for_backward(move.cu_seqlens, move.source.given, move.target.given)
    ctx.move, ctx.kernel = move, kernel


def _move_back(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
    _ = ctx.saved_tensors
    return move_rows(gradient, ctx.move.back(), 0, ctx.kernel)


_SIGNATURE = "Tensor x, Tensor cu_seqlens, Tensor source, Tensor target"


@torch.library.custom_op(
    "te_pkg::relayout",
    mutates_args=(),
    schema=f"({_SIGNATURE}, SymInt rows, Scalar fill, str kernel) -> Tensor",
)
def _relayout(
    x: torch.Tensor,
    cu_seqlens: torch.Tensor,
    source: torch.Tensor,
    target: torch.Tensor,
    rows: int,
    fill: Fill,
    kernel: str,
) -> torch.Tensor:
    move = RowMove(cu_seqlens, Slots(source, x.shape[0]), Slots(target, rows))
    return _run(x, move, check_fill(fill, x.dtype), kernel)


@_relayout.register_fake
def _(
    x: torch.Tensor,
    cu_seqlens: torch.Tensor,
    source: torch.Tensor,
    target: torch.Tensor,
    rows: int,
    fill: Fill,
    kernel: str,
) -> torch.Tensor:
    return x.new_empty((rows, *x.shape[1:]))


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
    x, cu_seqlens, source, target, _, _, ctx.kernel = inputs
    ctx.save_for_backward(cu_seqlens, source, target)
    ctx.rows = x.shape[0]


def _backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
    cu_seqlens, source, target = ctx.saved_tensors
    return (_relayout(gradient, cu_seqlens, target, source, ctx.rows, 0, ctx.kernel), *[None] * 6)


_relayout.register_autograd(_backward, setup_context=_setup_context)


@_relayout.register_vmap
def _(info: Any, in_dims: tuple[Any, ...], x: torch.Tensor, *rest: Any) -> tuple[torch.Tensor, int]:
    return _relayout(x.movedim(in_dims[0], 1), *rest), 1


@torch.library.custom_op(
    "te_pkg::relayout_out",
    mutates_args={"out"},
    schema=f"({_SIGNATURE}, Scalar fill, str kernel, Tensor(a!) out) -> ()",
)
def _relayout_out(
    x: torch.Tensor,
    cu_seqlens: torch.Tensor,
    source: torch.Tensor,
    target: torch.Tensor,
    fill: Fill,
    kernel: str,
    out: torch.Tensor,
) -> None:
    move = RowMove(cu_seqlens, Slots(source, x.shape[0]), Slots(target, out.shape[0]))
    _run(x, move, check_fill(fill, x.dtype), kernel, out)


@_relayout_out.register_fake
def _(*arguments: Any) -> None:
    return None
