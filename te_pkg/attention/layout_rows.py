"""What each row of a packed buffer is, and which rows may attend to which.

``t`` rows, ``b`` sequences. All is worked out by operations on the device of the offsets: the slots of all rows at
once, by a binary search.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from te_pkg.attention import masks
from te_pkg.attention.errors import ArgumentTypeError
from te_pkg.attention.layout_checks import CheckedOffsets
from te_pkg.attention.offsets import ordinary

if TYPE_CHECKING:
    from torch.nn.attention.flex_attention import BlockMask

__all__ = ["LayoutRows"]


class LayoutRows:
    """The part of :class:`~te_pkg.attention.PackedLayout` that tells rows apart."""

    cu_seqlens: torch.Tensor
    cu_seqlens_padded: torch.Tensor
    total_tokens: int
    max_seqlen: int
    real_tokens: int | None

    @property
    def num_sequences(self) -> int:
        """``b``. No host sync."""
        return self.cu_seqlens.shape[0] - 1

    @property
    def device(self) -> torch.device:
        """Of both offsets."""
        return self.cu_seqlens.device

    def token_mask(self) -> torch.Tensor:
        """bool ``[t]``, True for real rows. No host sync, and capture-safe.

        >>> PackedLayout.from_lengths([2, 1], pad_to_multiple=2).token_mask()
        tensor([ True,  True,  True, False])
        """
        with ordinary():
            return self._search()[2]

    def sequence_ids(self) -> torch.Tensor:
        """int64 ``[t]``, the sequence of each row, -1 for padding. No host sync, and capture-safe.

        >>> PackedLayout.from_lengths([2, 1], pad_to_multiple=2).sequence_ids()
        tensor([ 0,  0,  1, -1])
        """
        with ordinary():
            _, slots, real = self._search()
            return slots.where(real, -1)

    def position_ids(self) -> torch.Tensor:
        """int64 ``[t]``, the position of each row in its slot, for rotary embeddings. No host sync, and capture-safe.

        It counts on through the padding of a slot, and is 0 beyond the last slot.

        >>> PackedLayout.from_lengths([2, 1], pad_to_multiple=2, total_tokens=6).position_ids()
        tensor([0, 1, 0, 1, 0, 0])
        """
        with ordinary():
            stored = self.cu_seqlens_padded
            rows, slots, _ = self._search()
            return (rows - stored[slots]).where(rows < stored[-1], 0).to(torch.int64)

    def padding_rows(self) -> torch.Tensor:
        """int64 ``[n]``, the rows of no sequence in order. No host sync where the lengths are known, else one.

        >>> PackedLayout.from_lengths([2, 1], pad_to_multiple=2, total_tokens=6).padding_rows()
        tensor([3, 4, 5])

        Raises:
            HostReadError: a ``RuntimeError``; the lengths are not known, and may not be read now.
        """
        real_tokens = self.real_tokens
        if real_tokens is None:
            real_tokens = self._read("padding_rows()").real_tokens or 0
        with ordinary():
            stored = self.cu_seqlens_padded
            # The rows beyond the last slot are the gap of one more slot, which holds no sequence.
            starts = torch.cat([self._real_ends(), stored[-1:]])
            sizes = torch.cat([stored[1:], stored.new_full((1,), self.total_tokens)]) - starts
            ends = sizes.cumsum(0)
            nth = torch.arange(self.total_tokens - real_tokens, device=stored.device)
            gaps = torch.searchsorted(ends, nth, right=True)
            return nth + (starts - (ends - sizes))[gaps]

    def attention_mask(
        self,
        layout_kv: LayoutRows | None = None,
        *,
        causal: bool = False,
        align: str = "top_left",
        window: tuple[int, int] | None = None,
    ) -> torch.Tensor:
        """bool ``[t, t_kv]``, True where a query may attend to a key: for tests and eyes. No host sync.

        >>> PackedLayout.from_lengths([2, 1], pad_to_multiple=2).attention_mask(causal=True).int()
        tensor([[1, 0, 0, 0],
                [1, 1, 0, 0],
                [0, 0, 1, 0],
                [0, 0, 0, 0]], dtype=torch.int32)

        Args:
            layout_kv: of the keys, with as many sequences; None: this one.
            causal: a query sees no key to the right of its diagonal.
            align: where the diagonal of a sequence lies: ``"top_left"`` begins at its first query and first key,
                ``"bottom_right"`` ends at the last ones.
            window: ``(left, right)``, how many keys beside the diagonal a query sees; -1: without bound.

        Raises:
            ArgumentError: a ``ValueError``; ``align`` or ``window`` cannot be meant.
            LayoutError: a ``ValueError``; ``layout_kv`` differs in the number of sequences or the device.
        """
        return masks.attention_mask(self, self._keys(layout_kv), causal=causal, align=align, window=window)

    def block_mask(
        self,
        layout_kv: LayoutRows | None = None,
        *,
        causal: bool = False,
        align: str = "top_left",
        window: tuple[int, int] | None = None,
    ) -> BlockMask:
        """The same for ``torch.nn.attention.flex_attention``; arguments and errors as above. No host sync.

        Worked out from the boundaries: no pair of rows is looked at, so long buffers cost little.

        Raises:
            LayoutError: a ``ValueError``; also where a side has no rows.
        """
        return masks.block_mask(self, self._keys(layout_kv), causal=causal, align=align, window=window)

    def _keys(self, layout_kv: LayoutRows | None) -> LayoutRows:
        if layout_kv is None:
            return self
        if not isinstance(layout_kv, LayoutRows):
            raise ArgumentTypeError(f"layout_kv must be a PackedLayout or None, got {layout_kv!r}")
        return layout_kv

    def _search(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """``[t]`` each: int32 the rows, int64 their slots, ``b`` beyond the last, and bool whether they are real."""
        stored = self.cu_seqlens_padded
        rows = torch.arange(self.total_tokens, dtype=torch.int32, device=stored.device)
        # From the right, so that a slot without rows is passed over.
        slots = torch.searchsorted(stored[1:], rows, right=True)
        real_ends = torch.cat([self._real_ends(), stored.new_zeros(1)])
        return rows, slots, rows < real_ends[slots]

    def _real_ends(self) -> torch.Tensor:
        """int32 ``[b]``: where the real rows of each slot end."""
        return self.cu_seqlens_padded[:-1] + self.cu_seqlens.diff()

    def _read(self, what: str) -> CheckedOffsets:
        raise NotImplementedError
