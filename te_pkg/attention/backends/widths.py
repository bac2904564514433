"""Heads of other sizes than a kernel takes, and a gradient that it does not know of, both by columns more.

Columns of zeros in queries and keys change no score, and those in values only add columns to the output. A kernel
derives ``sum(d_out * out)`` of each row, and subtracts it from the gradient of the row's weights before it multiplies
by them; the gradient of the log-sum-exp must be added there. So it is written into a column more: 1 in ``d_out``,
its negative in ``out``, and 0 in the values.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch.nn.functional import pad

__all__ = ["Widened", "narrowed", "wide", "widened"]


class Widened(NamedTuple):
    """The arguments of a backward pass, all of one head size."""

    d_out: torch.Tensor
    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    out: torch.Tensor


def wide(x: torch.Tensor, width: int, multiple: int = 1) -> torch.Tensor:
    """With ``width`` columns, rounded up to a multiple; those more are 0."""
    more = width + -width % multiple - x.shape[-1]
    return pad(x, (0, more)) if more else x


def widened(
    d_out: torch.Tensor,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    out: torch.Tensor,
    d_lse: torch.Tensor | None,
    multiple: int = 1,
) -> Widened:
    """All with one head size, a multiple of ``multiple``.

    Args:
        d_lse: ``[h, t]``, the gradient of the log-sum-exp, to be added to what the kernel knows; None: there is none.
    """
    size, size_v = q.shape[-1], v.shape[-1]
    width = max(size, size_v + (d_lse is not None))
    wide_q, wide_k = wide(q, width, multiple), wide(k, width, multiple)
    wide_d_out, wide_v, wide_out = (wide(x, width, multiple) for x in (d_out, v, out))
    if d_lse is not None:
        wide_d_out[..., size_v] = 1
        wide_out[..., size_v] = -d_lse.T
    return Widened(wide_d_out, wide_q, wide_k, wide_v, wide_out)


def narrowed(x: torch.Tensor, size: int) -> torch.Tensor:
    """Without the columns more."""
    return x if x.shape[-1] == size else x[..., :size]
