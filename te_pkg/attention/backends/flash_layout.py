"""What the kernels of flash-attention ask of offsets, bands and log-sum-exps, whoever ships them.

``b`` sequences. They look for each sequence right behind the one before, know one diagonal, which ends at the last
query and the last key, and one window beside it for all sequences; rows that see nothing have a log-sum-exp of +inf.

Source: Dao-AILab/flash-attention, ``flash_attn_varlen_func``.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

from te_pkg.attention import capture
from te_pkg.attention.backends.problem import AttentionProblem
from te_pkg.attention.kernels.host import host_rows
from te_pkg.attention.layout import PackedLayout
from te_pkg.attention.layout_checks import CheckedOffsets
from te_pkg.attention.padding import Padding
from te_pkg.attention.relayout import relayout
from te_pkg.attention.zeroing import zero_padding_

__all__ = ["LARGEST", "WIDTH", "FlashLayout", "why_no_window", "why_not_tensors", "window_of"]

WIDTH = 8
"""Head sizes are multiples of it."""

LARGEST = 256
"""And so much at most."""


class FlashLayout(NamedTuple):
    """One side of the problem as the kernels want it.

    Attributes:
        layout: of the caller's rows.
        tight: without rows between sequences; what there is beyond the last one is never looked at.
        moved: whether rows must be moved from one to the other. Where the host does not know, they are.
    """

    layout: PackedLayout
    tight: PackedLayout
    moved: bool

    @classmethod
    def of(cls, layout: PackedLayout) -> FlashLayout:
        """Of the layout of the queries or the keys. No host sync."""
        if layout.cu_seqlens_padded is layout.cu_seqlens:
            return cls(layout, layout, False)
        known = layout.lengths is not None and not capture.is_capturing()
        if known and Padding.BETWEEN not in layout.padding():
            return cls(layout, layout, False)
        lengths, real = (layout.lengths, layout.real_tokens) if known else (None, None)
        # A slot for each sequence without a gap; the rest is capacity.
        slots = None if lengths is None else _offsets(lengths)
        tight = PackedLayout._trusted(
            CheckedOffsets(
                layout.cu_seqlens, layout.cu_seqlens, layout.total_tokens, layout.max_seqlen, lengths, slots, real
            )
        )
        return cls(layout, tight, True)

    def into(self, rows: torch.Tensor) -> torch.Tensor:
        """The caller's rows for a kernel, which wants columns side by side."""
        if self.moved:
            return relayout(rows, self.layout, self.tight)
        return rows if rows.stride(-1) == 1 else rows.contiguous()

    def back(self, rows: torch.Tensor) -> torch.Tensor:
        """A kernel's rows for the caller, 0 on padding."""
        if self.moved:
            return relayout(rows, self.tight, self.layout)
        return zero_padding_(rows.contiguous(), self.layout)

    def lse_into(self, lse: torch.Tensor) -> torch.Tensor:
        """``[h, t]`` with +inf where nothing is seen: a weight there is ``exp(score - inf)``, which is 0."""
        rows = relayout(lse.T, self.layout, self.tight, fill=torch.inf).T if self.moved else lse
        return rows.masked_fill(rows == -torch.inf, torch.inf).contiguous()

    def d_lse_into(self, d_lse: torch.Tensor | None) -> torch.Tensor | None:
        """The gradient of a log-sum-exp, ``[h, t]``."""
        return relayout(d_lse.T, self.layout, self.tight).T if self.moved and d_lse is not None else d_lse

    def lse_back(self, lse: torch.Tensor) -> torch.Tensor:
        """``[h, t]`` with -inf where nothing is seen, and on padding."""
        rows = relayout(lse.T, self.tight, self.layout, fill=-torch.inf).T if self.moved else lse
        padding = ~self.layout.token_mask()
        return rows.masked_fill((rows == torch.inf) | padding, -torch.inf).contiguous()


def why_not_tensors(problem: AttentionProblem, q: torch.Tensor, v: torch.Tensor) -> str | None:
    """None, or what of the tensors and layouts the kernels do not take."""
    if not q.is_cuda:
        return f"the kernels are for CUDA, got tensors on {q.device}"
    if torch.cuda.get_device_capability(q.device) < (8, 0):
        major, minor = torch.cuda.get_device_capability(q.device)
        return f"the kernels need compute capability 8.0, {q.device} has {major}.{minor}"
    if q.dtype not in (torch.float16, torch.bfloat16):
        return f"the kernels take float16 and bfloat16, got {str(q.dtype).removeprefix('torch.')}"
    size = max(q.shape[-1], v.shape[-1])
    if size > LARGEST:
        return f"the kernels take heads of at most {LARGEST} columns, got {size}"
    for name, layout in (("queries", problem.layout), ("keys", problem.layout_kv)):
        if layout.total_tokens == 0 or layout.num_sequences == 0 or layout.max_seqlen == 0:
            return f"the kernels take no empty batch, got {layout!r} for the {name}"
    return problem.why_not_scale()


def window_of(problem: AttentionProblem, q: torch.Tensor, k: torch.Tensor) -> tuple[int, int] | None:
    """``(left, right)`` beside the diagonal that ends at the bottom right, -1 unbounded; None: no pair says it."""
    left, right = problem.left, problem.right
    square = problem.align == "bottom_right" or problem.layout_kv is problem.layout
    if not problem.is_banded or (square and problem.shift is None):
        return _window(left, right)
    rows, keys = host_rows(problem.layout, q), host_rows(problem.layout_kv, k)
    diagonals = None if rows is None or keys is None else problem.host_diagonals(rows.lengths, keys.lengths)
    if rows is None or keys is None or diagonals is None:
        return None
    sizes = [size for size in zip(rows.lengths, keys.lengths, diagonals, strict=True) if size[0] and size[1]]
    if all(
        (left is None or n - 1 + diagonal - left <= 0) and (right is None or diagonal + right >= n_kv - 1)
        for n, n_kv, diagonal in sizes
    ):
        return -1, -1  # the band hides nothing
    moved, *others = {diagonal - (n_kv - n) for n, n_kv, diagonal in sizes}
    left, right = None if left is None else left - moved, None if right is None else right + moved
    # A side of less than 0 would hide the diagonal itself, which no window does.
    if others or min(side for side in (left, right) if side is not None) < 0:
        return None
    return _window(left, right)


def _window(left: int | None, right: int | None) -> tuple[int, int]:
    return -1 if left is None else left, -1 if right is None else right


def why_no_window(problem: AttentionProblem, q: torch.Tensor, k: torch.Tensor) -> str | None:
    """None, or why the band cannot be told to the kernels."""
    if window_of(problem, q, k) is not None:
        return None
    what = "a diagonal that is shifted" if problem.shift is not None else f"align {problem.align!r}"
    return (
        f"the kernels align at the bottom right, and {what} is not known to be the same for these sequences of queries "
        "and keys"
    )


def _offsets(lengths: tuple[int, ...]) -> tuple[int, ...]:
    offsets = [0]
    for length in lengths:
        offsets.append(offsets[-1] + length)
    return tuple(offsets)
