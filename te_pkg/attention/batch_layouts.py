"""The layouts behind the arguments of :class:`~te_pkg.attention.DotProductAttention`, a side at a time.

``b`` sequences, ``s`` rows of each in a batch. No host sync but where a size is not given.
"""

from __future__ import annotations

import re
from typing import Any, NamedTuple

import torch
from torch.compiler import is_compiling

from te_pkg.attention.cu_seqlens import get_cu_seqlens, get_full_cu_seqlens
from te_pkg.attention.errors import ArgumentTypeError, LayoutError
from te_pkg.attention.layout import PackedLayout
from te_pkg.attention.layout_checks import CheckedOffsets, check_offsets
from te_pkg.attention.offsets import is_traced

__all__ = ["Side", "layout_of_batch", "layout_of_rows", "masks_of"]


class Side(NamedTuple):
    """The queries, or the keys and values.

    Attributes:
        name: ``"q"`` or ``"kv"``, as in the names of the arguments.
        rows: ``[t, h, d]`` or ``[b, s, h, d]``.
        cu_seqlens: int32 ``[b + 1]``, or None.
        cu_seqlens_padded: likewise.
        max_seqlen: an upper bound, or None.
        mask: bool ``[b, 1, 1, s]``, True for padding, or None.
    """

    name: str
    rows: torch.Tensor
    cu_seqlens: torch.Tensor | None
    cu_seqlens_padded: torch.Tensor | None
    max_seqlen: int | None
    mask: torch.Tensor | None = None

    def is_like(self, other: Side) -> bool:
        """Whether both have one layout, by what they are made of and not by value."""
        return (
            self.rows.shape[:-2] == other.rows.shape[:-2]
            and self.cu_seqlens is other.cu_seqlens
            and self.cu_seqlens_padded is other.cu_seqlens_padded
            and self.max_seqlen == other.max_seqlen
            and self.mask is other.mask
        )


def layout_of_rows(side: Side, between: bool) -> PackedLayout:
    """Of a packed buffer.

    Args:
        between: whether there may be rows between its sequences; where not, each begins where the one before ends.
    """
    cu = side.cu_seqlens
    if cu is None:
        raise ArgumentTypeError(f"cu_seqlens_{side.name} must be a tensor for qkv_format 'thd', got None")
    padded = side.cu_seqlens_padded if between else None
    return _layout(side, cu, padded, side.rows.shape[0], side.max_seqlen)


def layout_of_batch(side: Side, padded: bool) -> PackedLayout:
    """Of a batch seen as ``[b * s, ...]``.

    Args:
        padded: whether its sequences may be shorter than ``s``.
    """
    batch, longest = side.rows.shape[:2]
    device = side.rows.device
    slots = get_full_cu_seqlens(batch, longest, device)
    if not padded:
        known = not is_compiling() and not is_traced(slots) and not slots.is_meta
        lengths = (longest,) * batch if known else None
        offsets = tuple(range(0, batch * longest + 1, longest)) if longest else (0,) * (batch + 1)
        rows = batch * longest
        return PackedLayout._trusted(
            CheckedOffsets(slots, slots, rows, longest, lengths, offsets if known else None, rows if known else None)
        )
    cu = side.cu_seqlens
    if cu is None:
        if side.mask is None:
            raise ArgumentTypeError(
                f"cu_seqlens_{side.name} or attention_mask must be a tensor where attn_mask_type has padding, got "
                "neither"
            )
        if not isinstance(side.mask, torch.Tensor):
            raise ArgumentTypeError(f"attention_mask of {side.name} must be a tensor, got {side.mask!r}")
        if side.mask.ndim != 4 or side.mask.shape[0] != batch or side.mask.shape[-1] != longest:
            raise LayoutError(
                [
                    f"attention_mask of {side.name} has shape {list(side.mask.shape)}, expected "
                    f"{[batch, 1, 1, longest]}; hint: a tuple of two where keys are not those of the queries"
                ]
            )
        cu = get_cu_seqlens(side.mask)
    return _layout(side, cu, slots, batch * longest, longest)


def masks_of(given: Any) -> tuple[torch.Tensor | None, torch.Tensor | None]:
    """``attention_mask`` of the queries, and of the keys: one for both, or a tuple of two.

    Raises:
        ArgumentTypeError: a ``TypeError``; another number of them.
    """
    if not isinstance(given, (tuple, list)):
        return given, given
    if len(given) != 2:
        raise ArgumentTypeError(f"attention_mask must be a tensor, or two for queries and keys, got {len(given)}")
    return given[0], given[1]


def _layout(side: Side, cu: torch.Tensor, padded: torch.Tensor | None, rows: int, longest: int | None) -> PackedLayout:
    on_host = not isinstance(cu, torch.Tensor) or cu.device.type == "cpu"
    unread = None if longest is None or on_host else "the device would have to be waited for"
    try:
        return PackedLayout._trusted(check_offsets(cu, padded, rows, longest, unread=unread))
    except LayoutError as error:
        raise LayoutError(_of_side(side, fault) for fault in error.faults) from None
    except ArgumentTypeError as error:
        raise ArgumentTypeError(_of_side(side, str(error))) from None


def _of_side(side: Side, fault: str) -> str:
    """By the names of the arguments that the caller gave."""
    return re.sub(r"\b(cu_seqlens|max_seqlen)\b", rf"\1_{side.name}", fault).replace(
        "cu_seqlens_padded", f"cu_seqlens_{side.name}_padded"
    )
