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

__all__ = ["Widened", "narrowed", "width_for", "widened"]


class Widened(NamedTuple):
    """The arguments of a backward pass, all of one head size."""

    d_out: torch.Tensor
    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    out: torch.Tensor


def width_for(size: int, size_v: int, multiple: int = 1) -> int:
    """The head size for a kernel that takes one for all, and only multiples."""
    size = max(size, size_v)
    return size + -size % multiple


def widened(
    d_out: torch.Tensor,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    out: torch.Tensor,
    d_lse: torch.Tensor | None,
    multiple: int = 1,
) -> Widened:
    """All with the same head size, and with the gradient of the log-sum-exp ``[h, t]`` where there is one."""
    size, size_v = q.shape[-1], v.shape[-1]
    width = width_for(size, size_v + (d_lse is not None), multiple)
    of_size = [x if width == size else pad(x, (0, width - size)) for x in (q, k)]
    of_size_v = [x if width == size_v else pad(x, (0, width - size_v)) for x in (d_out, v, out)]
    if d_lse is not None:
        of_size_v[0][..., size_v] = 1
        of_size_v[2][..., size_v] = -d_lse.T
    return Widened(of_size_v[0], *of_size, of_size_v[1], of_size_v[2])


def narrowed(x: torch.Tensor, size: int) -> torch.Tensor:
    """Without the columns more."""
    return x if x.shape[-1] == size else x[..., :size]
