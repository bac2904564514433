"""What blocks sum up to: a rank's attention so far, and its gradients so far.

``t`` rows of a shard, ``h`` heads, ``d`` head size. Sums are made in float32 at least, whatever the dtype of the parts.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch

from te_pkg.attention.backends import Backend
from te_pkg.attention.context_parallel.blocks import Block
from te_pkg.attention.context_parallel.merge import merge_attention_

__all__ = ["Attended", "Incoming", "Kept", "Task", "wide_dtype"]


class Task(NamedTuple):
    """A block, and the backend that serves it."""

    block: Block
    backend: Backend


class Attended:
    """Attention of some queries over the keys that were taken in; 0 and an LSE of -inf at first."""

    def __init__(self, q: torch.Tensor, size: int) -> None:
        self._shape = (*q.shape[:2], size)
        self._q = q
        self._so_far: tuple[torch.Tensor, torch.Tensor] | None = None

    def take(self, task: Task, k: torch.Tensor, v: torch.Tensor) -> None:
        """Take in the keys of one more block."""
        (at, *_), (at_kv, *_), problem = task.block
        out, lse = task.backend.forward(self._q[at:], k[at_kv:], v[at_kv:], problem)
        if self._so_far is None and at == 0:
            self._so_far = out.to(wide_dtype(out.dtype)), lse
        else:
            out_so_far, lse_so_far = self._result()
            # Backends leave no garbage where an LSE is -inf.
            merge_attention_(out_so_far[at:], lse_so_far[:, at:], out, lse, clean=True)

    def result(self) -> tuple[torch.Tensor, torch.Tensor]:
        """``[t, h, d]`` of the dtype of the queries, and ``[h, t]``."""
        out, lse = self._result()
        return out.to(self._q.dtype), lse

    def _result(self) -> tuple[torch.Tensor, torch.Tensor]:
        if self._so_far is None:
            dtype = wide_dtype(self._q.dtype)
            lse = self._q.new_full((self._shape[1], self._shape[0]), -math.inf, dtype=dtype)
            self._so_far = self._q.new_zeros(self._shape, dtype=dtype), lse
        return self._so_far


class Kept(NamedTuple):
    """What a forward pass keeps for the way back: its queries, keys and values, their attention and log-sum-exp."""

    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    out: torch.Tensor
    lse: torch.Tensor


class Incoming(NamedTuple):
    """The gradients that come in, ``[t, h, d]`` and ``[h, t]`` or None, and the queries that they are for."""

    kept: Kept
    d_out: torch.Tensor
    d_lse: torch.Tensor | None

    def add_gradients(
        self,
        task: Task,
        k: torch.Tensor,
        v: torch.Tensor,
        d_q: torch.Tensor,
        d_k: torch.Tensor,
        d_v: torch.Tensor,
    ) -> None:
        """Add those of one block to what the last three hold."""
        (at, *_), (at_kv, *_), problem = task.block
        parts = task.backend.backward(
            self.d_out[at:],
            self.kept.q[at:],
            k[at_kv:],
            v[at_kv:],
            self.kept.out[at:],
            self.kept.lse[:, at:],
            problem,
            None if self.d_lse is None else self.d_lse[:, at:],
        )
        for total, begin, part in zip((d_q, d_k, d_v), (at, at_kv, at_kv), parts, strict=True):
            total[begin:] += part


def wide_dtype(dtype: torch.dtype) -> torch.dtype:
    """What sums are made in.

    >>> wide_dtype(torch.bfloat16), wide_dtype(torch.float64)
    (torch.float32, torch.float64)
    """
    return torch.promote_types(dtype, torch.float32)
