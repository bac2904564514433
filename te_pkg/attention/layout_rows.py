"""What each row of a packed buffer is, by operations on the device of the offsets.

``t`` rows, ``b`` sequences; ``real`` and ``stored`` are offsets, int32 ``[b + 1]``, as in a layout. Nothing here syncs.
The row where a slot begins is found for all rows at once by a binary search in the offsets.
"""

from __future__ import annotations

import torch

from te_pkg.attention.offsets import ordinary

__all__ = ["padding_rows", "position_ids", "sequence_ids", "token_mask"]


def token_mask(real: torch.Tensor, stored: torch.Tensor, total_tokens: int) -> torch.Tensor:
    """bool ``[t]``: True where a row belongs to a sequence."""
    with ordinary():
        rows, slots = _slots(stored, total_tokens)
        return rows < _real_ends(real, stored, 0)[slots]


def sequence_ids(real: torch.Tensor, stored: torch.Tensor, total_tokens: int) -> torch.Tensor:
    """int64 ``[t]``: the sequence of each row, -1 on padding."""
    with ordinary():
        rows, slots = _slots(stored, total_tokens)
        return slots.where(rows < _real_ends(real, stored, 0)[slots], -1)


def position_ids(stored: torch.Tensor, total_tokens: int) -> torch.Tensor:
    """int64 ``[t]``: the position of each row in its slot, 0 beyond the last slot."""
    with ordinary():
        rows, slots = _slots(stored, total_tokens)
        return (rows - stored[slots]).where(rows < stored[-1], 0).to(torch.int64)


def padding_rows(real: torch.Tensor, stored: torch.Tensor, total_tokens: int, count: int) -> torch.Tensor:
    """int64 ``[count]``: the rows of no sequence in order; ``count`` is how many there are."""
    with ordinary():
        # The rows beyond the last slot are the gap of one more slot, which holds no sequence.
        starts = _real_ends(real, stored, stored[-1:])
        sizes = torch.cat([stored[1:], stored.new_full((1,), total_tokens)]) - starts
        ends = sizes.cumsum(0)
        nth = torch.arange(count, device=stored.device)
        gaps = torch.searchsorted(ends, nth, right=True)
        return nth + (starts - (ends - sizes))[gaps]


def _slots(stored: torch.Tensor, total_tokens: int) -> tuple[torch.Tensor, torch.Tensor]:
    """int32 ``[t]`` the rows, and int64 ``[t]`` the slot of each, ``b`` beyond the last one."""
    rows = torch.arange(total_tokens, dtype=torch.int32, device=stored.device)
    # From the right, so that a slot without rows is passed over.
    return rows, torch.searchsorted(stored[1:], rows, right=True)


def _real_ends(real: torch.Tensor, stored: torch.Tensor, last: torch.Tensor | int) -> torch.Tensor:
    """int32 ``[b + 1]``: where the real rows of each slot end, and ``last``."""
    if not isinstance(last, torch.Tensor):
        last = stored.new_full((1,), last)
    return torch.cat([stored[:-1] + real.diff(), last])
