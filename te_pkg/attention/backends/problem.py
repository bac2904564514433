"""One attention problem as a value: who may attend to whom, and how scores become weights.

``b`` sequences, ``t_q`` rows of queries, ``t_kv`` of keys, ``h`` heads. A query at position ``p`` of a sequence with
``n`` queries and ``n_kv`` keys meets the key at ``p + diagonal``, and sees those from ``left`` before it to ``right``
behind it. The diagonal is 0 or, aligned at the bottom right, ``n_kv - n``; ``shift`` moves it for each sequence by
itself, so that a block of a longer sequence is a problem too. Queries that begin at position ``a`` against keys that
begin at position ``b``, causal, are ``right=0`` with a shift of ``a - b``::

    a = 2, b = 0     X X X .        a = 0, b = 2     . . . .
                     X X X X                         . . . .
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from te_pkg.attention.layout import PackedLayout
from te_pkg.attention.masks import diagonal_bounds

__all__ = ["AttentionProblem"]

# What is less may be 0 to a kernel that works in float32.
_LEAST_SCALE = torch.finfo(torch.float32).tiny


@dataclass(frozen=True, eq=False)
class AttentionProblem:
    """What every backend gets beside the tensors. Checked by those who make it.

    >>> layout = PackedLayout.from_lengths([2, 3])
    >>> AttentionProblem.of(layout, causal=True, scale=0.125).right
    0

    Attributes:
        layout: of the queries.
        layout_kv: of keys and values; the same object for self-attention.
        scale: what scores are multiplied by.
        left: how many keys before its diagonal a query sees; None: all.
        right: likewise, behind it.
        align: where the diagonal begins, ``"top_left"`` or ``"bottom_right"``.
        shift: by how much the diagonal of each sequence is moved, ``b`` numbers on the host or an integer tensor
            ``[b]``; None: not at all.
        softcap: scores ``x`` become ``softcap * tanh(x / softcap)``; None: they stay.
        dropout_p: the share of weights that become 0; the others grow by ``1 / (1 - dropout_p)``.
        dropout_keep: bool, which weights stay, as ``dense`` draws it; None where ``dropout_p`` is 0.
    """

    layout: PackedLayout
    layout_kv: PackedLayout
    scale: float
    left: int | None = None
    right: int | None = None
    align: str = "top_left"
    shift: tuple[int, ...] | torch.Tensor | None = None
    softcap: float | None = None
    dropout_p: float = 0.0
    dropout_keep: torch.Tensor | None = None

    @classmethod
    def of(
        cls,
        layout: PackedLayout,
        layout_kv: PackedLayout | None = None,
        *,
        scale: float,
        causal: bool = False,
        align: str = "top_left",
        window: tuple[int, int] | None = None,
        shift: tuple[int, ...] | torch.Tensor | None = None,
        softcap: float | None = None,
        dropout_p: float = 0.0,
    ) -> AttentionProblem:
        """Of the arguments of :func:`~te_pkg.attention.packed_attention`."""
        left, right = diagonal_bounds(causal, window)
        return cls(layout, layout_kv or layout, scale, left, right, align, shift, softcap, dropout_p)

    @property
    def is_banded(self) -> bool:
        """Whether the diagonal matters at all."""
        return self.left is not None or self.right is not None

    def why_not_scale(self) -> str | None:
        """None, or why kernels that write -inf for a hidden key and then multiply by the scale cannot serve."""
        return None if self.scale >= _LEAST_SCALE else f"the kernels take a scale greater than 0, got {self.scale!r}"

    def diagonals(self) -> torch.Tensor:
        """int32 ``[b]``, where the first query of each sequence meets its keys. No host sync.

        Numbers of ``shift`` on the host are copied to the device, which CUDA graph capture forbids.
        """
        cu, cu_kv = self.layout.cu_seqlens, self.layout_kv.cu_seqlens
        diagonals = cu_kv.diff() - cu.diff() if self.align == "bottom_right" else torch.zeros_like(cu[1:])
        if self.shift is None:
            return diagonals
        return diagonals + torch.as_tensor(self.shift, dtype=torch.int32, device=cu.device)

    def host_diagonals(self, lengths: tuple[int, ...], lengths_kv: tuple[int, ...]) -> list[int] | None:
        """The same on the host; None where ``shift`` is a tensor on a device that would have to be waited for."""
        shift = self.shift
        if isinstance(shift, torch.Tensor):
            if shift.device.type != "cpu":
                return None
            shift = tuple(shift.tolist())
        if self.align == "bottom_right":
            found = [keys - queries for queries, keys in zip(lengths, lengths_kv, strict=True)]
        else:
            found = [0] * len(lengths)
        return found if shift is None else [a + b for a, b in zip(found, shift, strict=True)]
