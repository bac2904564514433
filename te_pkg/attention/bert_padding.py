"""Drop-ins for ``flash_attn.bert_padding``: change the import only.

``b`` sequences, ``s`` rows of the longest one, ``t`` tokens. Unlike a layout, a mask may leave out any token of a
sequence, so tokens are found by index. What is here can be differentiated once and twice; the gradient is a copy of
rows, not a scatter of elements.

Source: ``flash_attn/bert_padding.py`` of flash-attention 2.8, for what the functions mean.
"""

from __future__ import annotations

from typing import Any, SupportsIndex, cast

import torch

from te_pkg.attention.buffer_checks import check_tensor, refuse
from te_pkg.attention.errors import HostReadError, LayoutError
from te_pkg.attention.kernels.cpu import take_rows
from te_pkg.attention.kernels.words import in_words
from te_pkg.attention.offsets import integers, is_traced, offsets_of_token_mask, ordinary, why_unreadable

__all__ = ["pad_input", "unpad_input"]

_INT64_MAX = 2**63 - 1


def unpad_input(
    hidden_states: torch.Tensor, attention_mask: torch.Tensor, unused_mask: torch.Tensor | None = None
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, int, torch.Tensor]:
    """The tokens that a mask selects, one behind the other.

    Two host syncs on a CUDA device: how many tokens there are, and how many the longest sequence has. So it does not
    go into a CUDA graph; :func:`~te_pkg.attention.relayout.pack` does.

    >>> x = torch.tensor([[1.0, 2.0, 0.0], [3.0, 0.0, 0.0]])
    >>> rows, indices, cu_seqlens, max_seqlen, seqused = unpad_input(x, x > 0)
    >>> rows, indices, cu_seqlens.tolist(), max_seqlen, seqused.tolist()
    (tensor([1., 2., 3.]), tensor([0, 1, 3]), [0, 2, 3], 2, [2, 1])

    Args:
        hidden_states: ``[b, s, ...]``, any dtype.
        attention_mask: bool or integer ``[b, s]``, True or not 0 for a token.
        unused_mask: likewise, for rows that are kept although they are no tokens.

    Returns:
        ``[t, ...]``, the rows that either mask selects; int64 ``[t]``, where in ``[b * s]`` they were; int32
        ``[b + 1]``, their offsets; how many the longest sequence has; int32 ``[b]``, how many of them are tokens. All
        but the rows are ordinary tensors also under inference mode.

    Raises:
        ArgumentTypeError: a ``TypeError``; an argument is no tensor with strides.
        LayoutError: a ``ValueError`` with every fault: a mask of another shape, dtype or device.
        OffsetOverflowError: an ``OverflowError``; more tokens than int32 counts, known without a host sync.
        HostReadError: a ``RuntimeError``; the masks may not be read: under CUDA graph capture, or on the meta device.
    """
    check_tensor("hidden_states", hidden_states)
    faults = []
    masks = {"attention_mask": attention_mask}
    if unused_mask is not None:
        masks["unused_mask"] = unused_mask
    if hidden_states.ndim < 2:
        faults.append(f"hidden_states is {hidden_states.ndim}-D, expected [b, s, ...]")
    for name, mask in masks.items():
        check_tensor(name, mask)
        expected = hidden_states.shape[:2]
        if mask.shape != expected:
            faults.append(f"{name} has shape {list(mask.shape)}, expected {list(expected)} as hidden_states")
        if mask.is_floating_point() or mask.is_complex():
            faults.append(f"{name} is {mask.dtype}, expected bool or integers")
        if mask.device != hidden_states.device:
            faults.append(f"{name} is on {mask.device}, expected {hidden_states.device} as hidden_states")
    refuse(faults)
    reason = why_unreadable(*masks.values())
    if reason is not None and not is_traced(*masks.values()):
        raise HostReadError(
            f"attention_mask decides how many rows there are, and cannot be read, because {reason}; hint: use "
            "pack with a layout made before"
        )
    with ordinary():
        tokens, *unused = (mask if mask.dtype == torch.bool else mask != 0 for mask in masks.values())
        kept = tokens | unused[0] if unused else tokens
        cu_seqlens = offsets_of_token_mask(kept, "attention_mask")
        seqused = tokens.sum(1, dtype=torch.int32)
        indices = kept.flatten().nonzero().flatten()
        lengths = cu_seqlens.diff()
        longest = lengths.max().item() if lengths.shape[0] else 0
    return _take(hidden_states.flatten(0, 1), indices), indices, cu_seqlens, cast(int, longest), seqused


def pad_input(
    hidden_states: torch.Tensor, indices: torch.Tensor, batch: SupportsIndex, seqlen: SupportsIndex
) -> torch.Tensor:
    """The batch in which each token is in its place and everything else 0: the inverse of :func:`unpad_input`.

    No host sync.

    >>> pad_input(torch.tensor([1.0, 2.0, 3.0]), torch.tensor([0, 1, 3]), 2, 3)
    tensor([[1., 2., 0.],
            [3., 0., 0.]])

    Args:
        hidden_states: ``[t, ...]``, any dtype.
        indices: integers ``[t]``, the places of the tokens in ``[b * s]``, each at most once.
        batch: ``b``.
        seqlen: ``s``.

    Returns:
        ``[b, s, ...]``.

    Raises:
        ArgumentTypeError: a ``TypeError``; an argument is no tensor with strides, or a size no integer.
        LayoutError: a ``ValueError`` with every fault: indices of another number, dtype or device than the tokens, or
            fewer places than tokens; on the CPU also an index of no place, which CUDA finds as a fault of its own.
    """
    check_tensor("hidden_states", hidden_states)
    check_tensor("indices", indices)
    count, rows = integers(batch=batch, seqlen=seqlen)
    faults = []
    if hidden_states.ndim < 1:
        faults.append("hidden_states is 0-D, expected [t, ...]")
    elif indices.shape != hidden_states.shape[:1]:
        expected = list(hidden_states.shape[:1])
        faults.append(f"indices has shape {list(indices.shape)}, expected {expected} as hidden_states")
    if indices.dtype not in (torch.int32, torch.int64):
        faults.append(f"indices is {indices.dtype}, expected int64 or int32")
    if indices.device != hidden_states.device:
        faults.append(f"indices is on {indices.device}, expected {hidden_states.device} as hidden_states")
    faults += [
        f"{name} is {size}, expected at least 0" for name, size in (("batch", count), ("seqlen", rows)) if size < 0
    ]
    if not faults and not is_traced(hidden_states, indices):
        if count * rows > _INT64_MAX:
            faults.append(f"batch * seqlen is {count * rows}, expected at most {_INT64_MAX}, beyond which no index is")
        elif indices.shape[0] > count * rows:
            faults.append(
                f"hidden_states has {indices.shape[0]} rows, expected at most {count * rows} as batch * seqlen"
            )
    refuse(faults)
    return _put(hidden_states, indices.long(), count * rows).view(count, rows, *hidden_states.shape[1:])


def _take(rows: torch.Tensor, indices: torch.Tensor) -> torch.Tensor:
    """``rows[indices]``."""
    if is_traced(rows, indices):
        return rows.index_select(0, indices)
    taken: torch.Tensor = _Take.apply(rows, indices)  # type: ignore[no-untyped-call]
    return taken


def _put(rows: torch.Tensor, indices: torch.Tensor, count: int) -> torch.Tensor:
    """``[count, ...]`` of zeros with ``rows`` at ``indices``."""
    if is_traced(rows, indices):
        return rows.new_zeros((count, *rows.shape[1:])).index_copy(0, indices, rows)
    placed: torch.Tensor = _Put.apply(rows, indices, count)  # type: ignore[no-untyped-call]
    return placed


class _Take(torch.autograd.Function):
    """Torch's own gradient of an index adds up, element by element, what here cannot meet."""

    @staticmethod
    def forward(ctx: Any, rows: torch.Tensor, indices: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(indices)
        ctx.save_for_forward(indices)
        ctx.count = rows.shape[0]
        taken = rows.new_empty((indices.shape[0], *rows.shape[1:]))
        return take_rows(rows.resolve_conj().resolve_neg(), indices, taken) if taken.numel() else taken

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        (indices,) = ctx.saved_tensors
        return _put(gradient, indices, ctx.count), None

    @staticmethod
    def jvp(ctx: Any, tangent: torch.Tensor, _: None) -> torch.Tensor:
        (indices,) = ctx.saved_tensors
        return _take(tangent, indices)


class _Put(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, rows: torch.Tensor, indices: torch.Tensor, count: int) -> torch.Tensor:
        ctx.save_for_backward(indices)
        ctx.save_for_forward(indices)
        ctx.count = count
        placed = rows.new_empty((count, *rows.shape[1:]))
        if placed.numel():
            (words,) = in_words(placed)
            words.zero_()
        if rows.numel():
            source, target = in_words(rows.resolve_conj().resolve_neg(), placed)
            try:
                target.index_copy_(0, indices, source)
            except IndexError:
                lost = indices[(indices < 0) | (indices >= count)].tolist()
                expected = f"expected 0 to {count - 1}, the places of the batch"
                raise LayoutError(f"indices holds {index}, {expected}" for index in lost) from None
        return placed

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        (indices,) = ctx.saved_tensors
        return _take(gradient, indices), None, None

    @staticmethod
    def jvp(ctx: Any, tangent: torch.Tensor, *_: None) -> torch.Tensor:
        (indices,) = ctx.saved_tensors
        return _put(tangent, indices, ctx.count)
