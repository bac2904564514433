"""The layouts behind the arguments of :class:`~te_pkg.attention.DotProductAttention`, a side at a time.

``b`` sequences, ``s`` rows of each in a batch. No host sync but where a size is not given.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch.compiler import is_compiling

from te_pkg.attention.cu_seqlens import get_cu_seqlens, get_full_cu_seqlens
from te_pkg.attention.errors import ArgumentTypeError, LayoutError
from te_pkg.attention.layout import PackedLayout
from te_pkg.attention.layout_checks import CheckedOffsets, check_offsets
from te_pkg.attention.offsets import is_traced

__all__ = ["Side", "layout_of_batch", "layout_of_rows"]


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
    return _layout(cu, padded, side.rows.shape[0], side.max_seqlen)


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
        if side.mask.ndim != 4 or side.mask.shape[0] != batch or side.mask.shape[-1] != longest:
            raise LayoutError(
                [
                    f"attention_mask of {side.name} has shape {list(side.mask.shape)}, expected "
                    f"{[batch, 1, 1, longest]}; hint: a tuple of two where keys are not those of the queries"
                ]
            )
        cu = get_cu_seqlens(side.mask)
    return _layout(cu, slots, batch * longest, longest)


def _layout(cu: torch.Tensor, padded: torch.Tensor | None, rows: int, longest: int | None) -> PackedLayout:
    unread = None if longest is None or cu.device.type == "cpu" else "the device would have to be waited for"
    return PackedLayout._trusted(check_offsets(cu, padded, rows, longest, unread=unread))
