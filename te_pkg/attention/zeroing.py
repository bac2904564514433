"""Clear the rows of no sequence. Kernels leave them undefined, and garbage there reaches the gradients of weights.

``t`` rows. Cleared are the gaps between sequences, the one behind the last, and the capacity of the buffer. To clear
is to fill or to select, never to multiply: ``NaN * 0`` is NaN.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.autograd.forward_ad as forward_ad

from te_pkg.attention.buffer_checks import overlap_faults, refuse, row_faults
from te_pkg.attention.errors import AttentionError, GradientError
from te_pkg.attention.kernels import PaddingRows, Slots, check_kernel, choose, cpu
from te_pkg.attention.kernels.host import HostRows, host_rows, is_common, is_plain
from te_pkg.attention.kernels.words import count_write
from te_pkg.attention.layout import PackedLayout
from te_pkg.attention.offsets import is_traced
from te_pkg.attention.relayout import relayout

__all__ = ["zero_padding", "zero_padding_"]

# Of the others some have no `masked_fill_`; all have bits, and 0 has none.
_MASKED_FILL = {
    torch.bool,
    torch.uint8,
    torch.int8,
    torch.int16,
    torch.int32,
    torch.int64,
    torch.float16,
    torch.bfloat16,
    torch.float32,
    torch.float64,
    torch.complex64,
    torch.complex128,
}
_INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def zero_padding_(x: torch.Tensor, layout: PackedLayout, *, kernel: str | None = None) -> torch.Tensor:
    """Set the padding rows of ``x`` to 0, in place. No host sync.

    >>> x = torch.tensor([1.0, float("nan"), 3.0, float("inf")])
    >>> zero_padding_(x, PackedLayout.from_lengths([1, 1], pad_to_multiple=2))
    tensor([1., 0., 3., 0.])

    Only padding rows are written. Where the host knows that there are none, nothing happens at all. Autograd sees one
    operation, which keeps nothing of ``x``: the gradient of padding rows is 0, whatever comes in.

    Safe under CUDA graph capture, where what the host knows is not used: the graph clears what is padding when it is
    replayed.

    Args:
        x: ``[t, ...]``, any dtype; no two elements in one place.
        layout: of ``x``.
        kernel: ``"reference"``, ``"cpu"`` or ``"triton"``, see :mod:`te_pkg.attention.kernels`; None: by device. Not
            used under ``torch.compile`` and the like, which see an operation of torch's own.

    Returns:
        ``x``.

    Raises:
        LayoutError: a ``ValueError``; ``x`` has another number of rows than ``layout``, is on another device, or was
            expanded. Like all errors here it leaves ``x`` as it was.
        ArgumentTypeError: a ``TypeError``; ``x`` is no tensor with strides, or ``layout`` no layout.
        GradientError: a ``RuntimeError``; ``x`` requires a gradient and is a leaf, a view of one, or another view that
            torch does not let change.
        KernelUnavailableError: a ``RuntimeError``; ``kernel`` cannot run here, and why.
    """
    if (
        kernel is None
        and is_common(x, layout)
        and x.is_contiguous()
        and x.ndim > 0
        and x.size(0) == layout.total_tokens
        and x.numel() > 0
    ):
        if layout.real_tokens != layout.total_tokens:
            cpu.fill_known_(x, layout.lengths or (), layout.slot_offsets or (), layout.real_tokens or 0, 0)
            count_write(x)
        return x
    refuse(row_faults("x", x, layout, "layout"))
    check_kernel(kernel)
    known = host_rows(layout, x)
    if known is None and is_traced(x):
        # One operation of torch's own, which a compiler may join with what comes before.
        padding = layout.token_mask().logical_not().view(-1, *[1] * (x.ndim - 1))
        words = x if x.dtype in _MASKED_FILL else x.view(_INTEGERS[x.itemsize])
        words.masked_fill_(padding, 0)
        return x
    if known is not None and known.real == layout.total_tokens:
        return x
    if is_plain(x):
        refuse(overlap_faults("x", x))
    if (x.requires_grad and torch.is_grad_enabled()) or forward_ad._current_level >= 0:
        return _record_and_clear(x, layout, known, kernel)
    _clear(x, layout, known, kernel)
    return x


def zero_padding(x: torch.Tensor, layout: PackedLayout, *, kernel: str | None = None) -> torch.Tensor:
    """``x`` with padding rows of 0, in forward and in backward; ``x`` itself is not changed. No host sync.

    >>> x = torch.tensor([1.0, float("nan"), 3.0, 4.0], requires_grad=True)
    >>> y = zero_padding(x, PackedLayout.from_lengths([1, 2], pad_to_multiple=2))
    >>> y.detach(), torch.autograd.grad(y.square().sum(), x)
    (tensor([1., 0., 3., 4.]), (tensor([2., 0., 6., 8.]),))

    Where the host knows that there is no padding, ``x`` itself is returned. Nothing of ``x`` is kept for the backward
    pass. Differentiable twice; compiles without a graph break; safe under CUDA graph capture.

    Args:
        x: ``[t, ...]``, any dtype.
        layout: of ``x``.
        kernel: as for :func:`zero_padding_`.

    Returns:
        ``[t, ...]``, contiguous unless it is ``x``.

    Raises:
        LayoutError, ArgumentTypeError, KernelUnavailableError: as :func:`zero_padding_`.
    """
    refuse(row_faults("x", x, layout, "layout"))
    known = host_rows(layout, x)
    if known is not None and known.real == layout.total_tokens:
        return x
    return relayout(x, layout, layout, kernel=kernel)


def _record_and_clear(
    x: torch.Tensor, layout: PackedLayout, known: HostRows | None, kernel: str | None
) -> torch.Tensor:
    choose(x.device, kernel)  # what cannot be done is refused before anything is recorded
    try:
        recorded: torch.Tensor = _ZeroPadding.apply(x, layout, kernel)  # type: ignore[no-untyped-call]
    except AttentionError:
        raise
    except RuntimeError as error:
        raise GradientError(f"x cannot be changed in place: {error}; hint: use zero_padding") from None
    with torch.no_grad():
        _clear(x, layout, known, kernel)
    return recorded


class _ZeroPadding(torch.autograd.Function):
    """In place, and one node: a node for each slice would copy the whole gradient.

    Nothing is written here: torch refuses leaves and some views only after this, and then all must be as before.
    """

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, layout: PackedLayout, kernel: str | None) -> torch.Tensor:
        ctx.mark_dirty(x)
        # As tensors, so that torch notices if somebody changes them before the way back.
        ctx.save_for_backward(layout.cu_seqlens, layout.cu_seqlens_padded)
        ctx.layout, ctx.kernel = layout, kernel
        return x

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        _ = ctx.saved_tensors
        return zero_padding(gradient, ctx.layout, kernel=ctx.kernel), None, None

    @staticmethod
    def jvp(ctx: Any, tangent: torch.Tensor, *_: None) -> torch.Tensor:
        return zero_padding_(tangent, ctx.layout, kernel=ctx.kernel)


def _clear(x: torch.Tensor, layout: PackedLayout, known: HostRows | None, kernel: str | None) -> None:
    if x.is_complex() or x.is_neg():
        # 0 is 0, conjugated or not, and so the memory can be seen as it is.
        x = x.conj() if x.is_conj() else x
        x = torch._neg_view(x) if x.is_neg() else x
    slots = Slots(layout.cu_seqlens_padded, layout.total_tokens, known and known.slots)
    padding = PaddingRows(layout.cu_seqlens, slots, known and known.lengths, -1 if known is None else known.real)
    choose(x.device, kernel).fill_padding_(x, padding, 0)
    count_write(x)
