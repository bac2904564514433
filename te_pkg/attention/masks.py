"""Who may attend to whom: the mask of packed attention, dense for eyes and tests, in blocks for FlexAttention.

``t`` rows of the queries' buffer, ``t_kv`` of the keys'. A query sees keys of its own sequence alone. ``causal`` and
``window`` lie along the diagonal that ``align`` names, where a query at position ``p`` of a sequence with ``n`` queries
and ``n_kv`` keys meets the key at ``p`` (``"top_left"``) or at ``p + n_kv - n`` (``"bottom_right"``)::

    n = 2, n_kv = 4, causal     top_left  X . . .      bottom_right  X X X .
                                          X X . .                    X X X X
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from te_pkg.attention.errors import ArgumentError, ArgumentTypeError, LayoutError
from te_pkg.attention.offsets import integers, ordinary

if TYPE_CHECKING:
    from torch.nn.attention.flex_attention import BlockMask

    from te_pkg.attention.layout_rows import LayoutRows

__all__ = ["attention_mask", "block_mask", "diagonal_bounds"]

_ALIGNMENTS = ("top_left", "bottom_right")


def attention_mask(
    layout: LayoutRows,
    layout_kv: LayoutRows | None,
    *,
    causal: bool,
    align: str,
    window: tuple[int, int] | None,
) -> torch.Tensor:
    """bool ``[t, t_kv]``, True where a query may attend to a key. No host sync."""
    keys = layout if layout_kv is None else layout_kv
    may_attend = _mask_mod(layout, keys, causal, align, window)
    with ordinary():
        q = torch.arange(layout.total_tokens, device=layout.device).unsqueeze(1)
        kv = torch.arange(keys.total_tokens, device=layout.device)
        return may_attend(None, None, q, kv)


def block_mask(
    layout: LayoutRows,
    layout_kv: LayoutRows | None,
    *,
    causal: bool,
    align: str,
    window: tuple[int, int] | None,
) -> BlockMask:
    """The same as a ``BlockMask`` of FlexAttention, one for all batches and heads."""
    from torch.nn.attention.flex_attention import create_block_mask  # 0.5 s that nobody else shall wait for

    keys = layout if layout_kv is None else layout_kv
    may_attend = _mask_mod(layout, keys, causal, align, window)
    for name, rows in (("the queries", layout.total_tokens), ("the keys", keys.total_tokens)):
        if rows == 0:
            raise LayoutError([f"the layout of {name} has 0 rows, expected at least 1: a block mask has no empty form"])
    with ordinary():
        return create_block_mask(
            may_attend, None, None, layout.total_tokens, keys.total_tokens, device=str(layout.device)
        )


def diagonal_bounds(causal: bool, window: tuple[int, int] | None) -> tuple[int | None, int | None]:
    """How far a query sees to the left and to the right of its diagonal; None: without bound.

    >>> diagonal_bounds(causal=True, window=(128, -1))
    (128, 0)

    Raises:
        ArgumentTypeError: a ``TypeError``; ``window`` is no pair of integers.
        ArgumentError: a ``ValueError``; a side of ``window`` is less than -1.
    """
    if window is None:
        window = (-1, -1)
    try:
        left, right = window
    except (TypeError, ValueError):
        raise ArgumentTypeError(f"window must be a pair (left, right), got {window!r}") from None
    left, right = integers(**{"window[0]": left, "window[1]": right})
    if min(left, right) < -1:
        raise ArgumentError(f"window is {window!r}, expected (left, right) with -1 for unbounded, else at least 0")
    return (None if left < 0 else left), (0 if causal else None if right < 0 else right)


def _mask_mod(
    layout: LayoutRows, keys: LayoutRows, causal: bool, align: str, window: tuple[int, int] | None
) -> Callable[[Any, Any, torch.Tensor, torch.Tensor], torch.Tensor]:
    left, right = diagonal_bounds(causal, window)
    if align not in _ALIGNMENTS:
        raise ArgumentError(f"align is {align!r}, expected one of {', '.join(map(repr, _ALIGNMENTS))}")
    faults = []
    if keys.num_sequences != layout.num_sequences:
        faults.append(
            f"layout_kv has {keys.num_sequences} sequences, expected {layout.num_sequences} as the queries' layout"
        )
    if keys.device != layout.device:
        faults.append(f"layout_kv is on {keys.device}, expected {layout.device} as the queries' layout")
    if faults:
        raise LayoutError(faults)
    with ordinary():
        sequence_q = layout.sequence_ids()
        sequence_kv = keys.sequence_ids()
        # Padding is -1 on either side, and must not find itself.
        sequence_kv = sequence_kv.where(sequence_kv >= 0, -2)
        diagonal = layout.position_ids()
        if align == "bottom_right" and keys is not layout:
            extra = keys.cu_seqlens.diff() - layout.cu_seqlens.diff()
            # One entry more, for padding: its -1 is the last one.
            diagonal = diagonal + torch.cat([extra, extra.new_zeros(1)])[sequence_q]
        position_kv = keys.position_ids()

    def may_attend(batch: Any, head: Any, q: torch.Tensor, kv: torch.Tensor) -> torch.Tensor:
        keep = sequence_q[q] == sequence_kv[kv]
        if left is not None or right is not None:
            offset = position_kv[kv] - diagonal[q]
            if left is not None:
                keep = keep & (offset >= -left)
            if right is not None:
                keep = keep & (offset <= right)
        return keep

    return may_attend
