"""The row kernels as operators of torch: ``te_pkg::relayout``, and ``te_pkg::relayout_out`` for a given result.

An operator is one node for autograd, ``torch.compile`` and ``torch.export``, which know its shapes and its derivative
and do not look inside. The derivative of a move is the same move from the target back to the source.
"""

from __future__ import annotations

from typing import Any

import torch

from te_pkg.attention.kernels import Fill, RowMove, choose

__all__ = ["move_rows", "move_rows_into"]

_MOVE = "Tensor x, Tensor cu_seqlens, Tensor source, Tensor target"
_FACTS = "Scalar fill, int[] spans, int real_rows, str kernel"


@torch.library.custom_op("te_pkg::relayout", mutates_args=(), schema=f"({_MOVE}, SymInt rows, {_FACTS}) -> Tensor")
def move_rows(
    x: torch.Tensor,
    cu_seqlens: torch.Tensor,
    source: torch.Tensor,
    target: torch.Tensor,
    rows: int,
    fill: Fill,
    spans: list[int],
    real_rows: int,
    kernel: str,
) -> torch.Tensor:
    """``[t_source, ...]`` -> ``[rows, ...]``, see :class:`~te_pkg.attention.kernels.RowMove`.

    ``spans`` is empty and ``real_rows`` -1 where the host does not know them.
    """
    move = RowMove(cu_seqlens, source, target, rows, spans or None, full=real_rows == rows)
    return choose(x.device, kernel).move_rows(x, move, fill)


@move_rows.register_fake
def _(
    x: torch.Tensor,
    cu_seqlens: torch.Tensor,
    source: torch.Tensor,
    target: torch.Tensor,
    rows: int,
    *facts: Any,
) -> torch.Tensor:
    return x.new_empty((rows, *x.shape[1:]))


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
    x, cu_seqlens, source, target, _, _, ctx.spans, ctx.real_rows, ctx.kernel = inputs
    ctx.rows = x.shape[0]
    ctx.save_for_backward(cu_seqlens, source, target)


def _backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
    cu_seqlens, source, target = ctx.saved_tensors
    spans = ctx.spans
    back = [row for span in zip(spans[1::3], spans[::3], spans[2::3], strict=True) for row in span]
    moved = move_rows(gradient, cu_seqlens, target, source, ctx.rows, 0, back, ctx.real_rows, ctx.kernel)
    return (moved, *[None] * 8)


move_rows.register_autograd(_backward, setup_context=_setup_context)


@move_rows.register_vmap
def _(info: Any, in_dims: tuple[int | None, ...], x: torch.Tensor, *rest: Any) -> tuple[torch.Tensor, int]:
    if in_dims[0] is None or any(dim is not None for dim in in_dims[1:4]):
        raise NotImplementedError("vmap maps over rows, not over layouts: each would have results of its own shape")
    return move_rows(x.movedim(in_dims[0], 1), *rest), 1


@torch.library.custom_op(
    "te_pkg::relayout_out", mutates_args={"out"}, schema=f"({_MOVE}, {_FACTS}, Tensor(a!) out) -> ()"
)
def move_rows_into(
    x: torch.Tensor,
    cu_seqlens: torch.Tensor,
    source: torch.Tensor,
    target: torch.Tensor,
    fill: Fill,
    spans: list[int],
    real_rows: int,
    kernel: str,
    out: torch.Tensor,
) -> None:
    """The same into ``out`` ``[rows, ...]``, not differentiable."""
    rows = out.shape[0]
    move = RowMove(cu_seqlens, source, target, rows, spans or None, full=real_rows == rows)
    choose(x.device, kernel).move_rows(x, move, fill, out)


@move_rows_into.register_fake
def _(*arguments: Any) -> None:
    return None
