"""Who may attend to whom: the mask of packed attention, dense for eyes and tests, in blocks for FlexAttention.

``t`` rows of the queries' buffer, ``t_kv`` of the keys', ``b`` sequences. A query sees keys of its own sequence alone.
``causal`` and ``window`` lie along the diagonal that ``align`` names, where a query at position ``p`` of a sequence
with ``n`` queries and ``n_kv`` keys meets the key at ``p`` (``"top_left"``) or at ``p + n_kv - n``
(``"bottom_right"``)::

    n = 2, n_kv = 4, causal     top_left  X . . .      bottom_right  X X X .
                                          X X . .                    X X X X
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from te_pkg.attention.errors import ArgumentError, ArgumentTypeError, LayoutError
from te_pkg.attention.offsets import INT32_MAX, as_integers, integers, ordinary

if TYPE_CHECKING:
    from torch.nn.attention.flex_attention import BlockMask

    from te_pkg.attention.layout_rows import LayoutRows

__all__ = ["ALIGNMENTS", "attention_mask", "block_mask", "block_mask_along", "diagonal_bounds", "window_faults"]

ALIGNMENTS = ("top_left", "bottom_right")


def attention_mask(
    layout: LayoutRows,
    keys: LayoutRows,
    *,
    causal: bool,
    align: str,
    window: tuple[int, int] | None,
) -> torch.Tensor:
    """bool ``[t, t_kv]``, True where a query may attend to a key. No host sync."""
    with ordinary():
        may_attend = _mask_mod(layout, keys, _diagonal(layout, keys, causal, align, window))
        q = torch.arange(layout.total_tokens, device=layout.device).unsqueeze(1)
        kv = torch.arange(keys.total_tokens, device=layout.device)
        return may_attend(None, None, q, kv)


def block_mask(
    layout: LayoutRows,
    keys: LayoutRows,
    *,
    causal: bool,
    align: str,
    window: tuple[int, int] | None,
    block_size: int = 128,
) -> BlockMask:
    """The same as a ``BlockMask`` of FlexAttention, one for all batches and heads. No host sync.

    Equal to what ``create_block_mask`` finds by looking at every pair of rows, but worked out from the boundaries.
    """
    return _block_mask(layout, keys, lambda: _diagonal(layout, keys, causal, align, window), block_size)


def block_mask_along(
    layout: LayoutRows, keys: LayoutRows, diagonals: torch.Tensor, left: int | None, right: int | None
) -> BlockMask:
    """Likewise beside diagonals of one's own: int32 ``[b]``, which key the first query of each sequence meets."""
    shift = torch.cat([diagonals, diagonals.new_zeros(1)])
    return _block_mask(layout, keys, lambda: _Diagonal(shift, left, right), 128)


def _block_mask(
    layout: LayoutRows, keys: LayoutRows, diagonal_of: Callable[[], _Diagonal], block_size: int
) -> BlockMask:
    from torch.nn.attention.flex_attention import BlockMask  # 0.5 s that nobody else shall wait for

    for name, rows in (("the queries", layout.total_tokens), ("the keys", keys.total_tokens)):
        if rows == 0:
            raise LayoutError([f"the layout of {name} has 0 rows, expected at least 1: a block mask has no empty form"])
    with ordinary():
        diagonal = diagonal_of()
        occupied, full = _blocks(layout, keys, diagonal, block_size)
        return BlockMask.from_kv_blocks(
            *_in_order(occupied & ~full),
            *_in_order(full),
            BLOCK_SIZE=block_size,
            mask_mod=_mask_mod(layout, keys, diagonal),
            seq_lengths=(layout.total_tokens, keys.total_tokens),
        )


def diagonal_bounds(causal: bool, window: tuple[int, int] | None) -> tuple[int | None, int | None]:
    """How far a query sees to the left and to the right of its diagonal; None: without bound.

    >>> diagonal_bounds(causal=True, window=(128, -1))
    (128, 0)

    Raises:
        ArgumentTypeError: a ``TypeError``; ``window`` is no pair of integers.
        ArgumentError: a ``ValueError``; a side of ``window`` is less than -1.
    """
    strange, faults = window_faults(window)
    if strange:
        raise ArgumentTypeError("\n".join(strange))
    if faults:
        raise ArgumentError("\n".join(faults))
    left, right = (-1, -1) if window is None else integers(**{"window[0]": window[0], "window[1]": window[1]})
    return _bound(left), (0 if causal else _bound(right))


def _bound(side: int) -> int | None:
    # No two rows are further apart than int32 counts, and operations on int32 take no greater number.
    return None if side < 0 or side >= INT32_MAX else side


def window_faults(window: tuple[int, int] | None, name: str = "window") -> tuple[list[str], list[str]]:
    """What is wrong with the type of ``window``, an argument called ``name``, and with its values."""
    if window is None:
        return [], []
    try:
        left, right = window
    except (TypeError, ValueError):
        return [f"{name} must be a pair (left, right), got {window!r}"], []
    sides, strange = as_integers({f"{name}[0]": left, f"{name}[1]": right})
    if all(side >= -1 for side in sides.values()):
        return strange, []
    return strange, [f"{name} is {window!r}, expected (left, right) with -1 for unbounded, else at least 0"]


class _Diagonal(NamedTuple):
    """int ``[b + 1]``, by how much the diagonal of each sequence is moved, 0 at last, and how far is seen beside it."""

    shift: torch.Tensor
    left: int | None
    right: int | None


def _diagonal(
    layout: LayoutRows, keys: LayoutRows, causal: bool, align: str, window: tuple[int, int] | None
) -> _Diagonal:
    strange, of_arguments = window_faults(window)
    if strange:
        raise ArgumentTypeError("\n".join(strange))
    if align not in ALIGNMENTS:
        of_arguments.append(f"align is {align!r}, expected one of {', '.join(map(repr, ALIGNMENTS))}")
    faults = []
    if keys.num_sequences != layout.num_sequences:
        faults.append(f"layout_kv has {keys.num_sequences} sequences, expected {layout.num_sequences} as the queries")
    if keys.device != layout.device:
        faults.append(f"layout_kv is on {keys.device}, expected {layout.device} as the queries")
    if of_arguments:
        raise ArgumentError("\n".join([*of_arguments, *faults]))
    if faults:
        raise LayoutError(faults)
    left, right = diagonal_bounds(causal, window)
    shift = torch.zeros_like(layout.cu_seqlens)
    if align == "bottom_right" and keys is not layout:
        shift = _lengths(keys) - _lengths(layout)
    return _Diagonal(shift, left, right)


def _mask_mod(
    layout: LayoutRows, keys: LayoutRows, diagonal: _Diagonal
) -> Callable[[Any, Any, torch.Tensor, torch.Tensor], torch.Tensor]:
    sequence_q, sequence_kv = layout.sequence_ids(), keys.sequence_ids()
    # Padding is -1 on either side, and must not find itself.
    sequence_kv = sequence_kv.where(sequence_kv >= 0, -2)
    meets, position_kv = layout.position_ids() + diagonal.shift[sequence_q], keys.position_ids()
    left, right = diagonal.left, diagonal.right

    def may_attend(batch: Any, head: Any, q: torch.Tensor, kv: torch.Tensor) -> torch.Tensor:
        keep = sequence_q[q] == sequence_kv[kv]
        if left is not None:
            keep = keep & (position_kv[kv] >= meets[q] - left)
        if right is not None:
            keep = keep & (position_kv[kv] <= meets[q] + right)
        return keep

    return may_attend


def _blocks(layout: LayoutRows, keys: LayoutRows, diagonal: _Diagonal, size: int) -> tuple[torch.Tensor, torch.Tensor]:
    """bool ``[n, n_kv]``, blocks where any query may attend to any key, and those where all may.

    The distances from the diagonal that occur between two ranges of positions are all those from the least to the
    greatest, so that two comparisons tell whether any or all of them are within bounds. The sequences that two blocks
    share follow each other; only the first and the last of them can be cut off by a block, the others are as a whole
    in both, and whether they attend at all does not depend on the block.
    """
    q, kv = _Side.of(layout, size, 0), _Side.of(keys, size, 1)
    first, last = torch.maximum(q.first, kv.first), torch.minimum(q.last, kv.last)
    any_first, all_first = _attend(q, kv, first, diagonal)
    any_last, _ = _attend(q, kv, last, diagonal)
    everything = torch.arange(layout.num_sequences + 1, device=layout.device)
    any_whole, _ = _attend(q.whole(), kv.whole(), everything, diagonal)
    counts = torch.cat([any_whole.new_zeros(1, dtype=torch.int64), any_whole.cumsum(0)])
    any_between = counts[last] > counts[torch.minimum(first + 1, last)]
    return any_first | any_last | any_between, all_first


class _Side(NamedTuple):
    """The blocks of one side, shaped to be combined with those of the other.

    int each: where each slot begins and how many rows of it are real, ``[b + 1]`` with an empty one at last; then for
    each block its first row, the row behind its last, and the slots that these lie in.
    """

    starts: torch.Tensor
    lengths: torch.Tensor
    begin: torch.Tensor
    end: torch.Tensor
    first: torch.Tensor
    last: torch.Tensor
    size: int

    @classmethod
    def of(cls, layout: LayoutRows, size: int, axis: int) -> _Side:
        starts = layout.cu_seqlens_padded
        begin = torch.arange(0, layout.total_tokens, size, dtype=starts.dtype, device=starts.device)
        end = (begin + size).clamp(max=layout.total_tokens)
        first, last = (torch.searchsorted(starts[1:], rows, right=True) for rows in (begin, end - 1))
        other = 1 - axis
        return cls(
            starts,
            _lengths(layout),
            begin.unsqueeze(other),
            end.unsqueeze(other),
            first.unsqueeze(other),
            last.unsqueeze(other),
            size,
        )

    def whole(self) -> _Side:
        """As if all rows were one block."""
        return self._replace(begin=self.starts[:1], end=self.starts[-1:])

    def positions(self, sequences: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The positions in ``sequences`` that each block holds, from the first up to that behind the last."""
        starts = self.starts[sequences]
        return (self.begin - starts).clamp(min=0), torch.minimum(self.end - starts, self.lengths[sequences])


def _attend(q: _Side, kv: _Side, sequences: torch.Tensor, diagonal: _Diagonal) -> tuple[torch.Tensor, torch.Tensor]:
    """Whether any query of ``sequences`` in a block may attend to any key in a block, and whether all may."""
    (q_first, q_end), (kv_first, kv_end) = q.positions(sequences), kv.positions(sequences)
    shift = diagonal.shift[sequences]
    least, greatest = kv_first - (q_end - 1) - shift, (kv_end - 1) - q_first - shift
    some = (q_end > q_first) & (kv_end > kv_first)
    every = (q_end - q_first == q.size) & (kv_end - kv_first == kv.size)
    if diagonal.left is not None:
        some, every = some & (greatest >= -diagonal.left), every & (least >= -diagonal.left)
    if diagonal.right is not None:
        some, every = some & (least <= diagonal.right), every & (greatest <= diagonal.right)
    return some, every


def _lengths(layout: LayoutRows) -> torch.Tensor:
    """int32 ``[b + 1]``, the lengths and a 0."""
    return torch.cat([layout.cu_seqlens.diff(), layout.cu_seqlens.new_zeros(1)])


def _in_order(blocks: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """int32 ``[1, 1, n]``, how many blocks each row has, and ``[1, 1, n, n_kv]``, which, and then the others."""
    counts = blocks.sum(-1, dtype=torch.int32)
    order = blocks.to(torch.int8).argsort(dim=-1, descending=True, stable=True).to(torch.int32)
    return counts[None, None], order[None, None]
