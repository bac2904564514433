"""Backends: whose softmax attention is used. It is always a library's; here it is told what to compute.

``t_q`` and ``t_kv`` rows, ``h`` and ``h_kv`` heads, ``d`` head size. Each backend is a module with the functions of
:class:`Backend`:

=========== ================================================= ======================================================
backend     works on                                          how
=========== ================================================= ======================================================
flash_attn  CUDA, where flash-attn is installed               all sequences at once
varlen      CUDA, ``torch.nn.attention.varlen``               all sequences at once
sdpa        CPU, CUDA; needs the lengths on the host          sequence by sequence through PyTorch's fused kernels
flex        where FlexAttention compiles; soft cap            blocks of scores, compiled
dense       any device                                        every score of every pair: the truth for tests
=========== ================================================= ======================================================

:func:`choose` takes the one that was asked for, else the first of these that can serve.
"""

from __future__ import annotations

import importlib
import logging
from functools import cache
from typing import Protocol, cast

import torch

from te_pkg.attention.backends.problem import AttentionProblem
from te_pkg.attention.errors import BackendUnavailableError

__all__ = [
    "BACKENDS",
    "AttentionProblem",
    "Backend",
    "BackendUnavailableError",
    "choose",
    "load",
    "why_absent",
    "why_not",
]

BACKENDS = ("flash_attn", "varlen", "sdpa", "flex", "dense")
"""In the order in which they are asked."""

_NO_SUCH = f"there is no such backend, expected one of {', '.join(map(repr, BACKENDS))}"

_log = logging.getLogger("te_pkg.attention")


class Backend(Protocol):
    """What each backend module offers. None of it is recorded by autograd, but for ``dense``.

    ``q`` is ``[t_q, h, d]``, ``k`` ``[t_kv, h_kv, d]``, ``v`` ``[t_kv, h_kv, d_v]``, ``h`` a multiple of ``h_kv``;
    all of one dtype and on the device of the layouts. Their memory may be strided. What padding rows of any argument
    hold does not matter: NaN and Inf never reach a result, and the padding rows of every result are 0.
    """

    def why_absent(self) -> str | None:
        """None, or the reason why this machine cannot have it serve anything."""

    def why_not(self, problem: AttentionProblem, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> str | None:
        """None, or the reason why the next two cannot serve these arguments now."""

    def forward(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, problem: AttentionProblem
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Attention and log-sum-exp.

        Returns:
            ``[t_q, h, d_v]`` of the dtype of ``q``; and ``[h, t_q]``, natural logarithm, float64 for float64, else
            float32; both contiguous. A row that sees no key is 0, with -inf.
        """

    def backward(
        self,
        d_out: torch.Tensor,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        out: torch.Tensor,
        lse: torch.Tensor,
        problem: AttentionProblem,
        d_lse: torch.Tensor | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Gradients of ``q``, ``k`` and ``v``, of their shapes and dtypes, contiguous.

        ``out`` and ``lse`` may be those of the whole attention of which ``k`` and ``v`` are a block: summed over all
        blocks the results are the gradients of the whole. A row whose ``lse`` is -inf has no gradient.

        Args:
            d_out: ``[t_q, h, d_v]``, the gradient of ``out``.
            d_lse: ``[h, t_q]``, the gradient of ``lse``; None: 0.
        """


def why_absent(backend: str) -> str | None:
    """None, or the reason why this machine cannot have ``backend`` serve anything.

    >>> why_absent("dense") is None
    True
    """
    return load(backend).why_absent() if backend in BACKENDS else _NO_SUCH


def why_not(backend: str, problem: AttentionProblem, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> str | None:
    """None, or the reason why ``backend`` cannot serve these arguments now.

    >>> from te_pkg.attention.layout import PackedLayout
    >>> q = torch.zeros(3, 1, 8)
    >>> problem = AttentionProblem.of(PackedLayout.from_lengths([3]), scale=1.0)
    >>> why_not("dense", problem, q, q, q) is None
    True
    >>> why_not("cudnn", problem, q, q, q)
    "there is no such backend, expected one of 'flash_attn', 'varlen', 'sdpa', 'flex', 'dense'"
    """
    return load(backend).why_not(problem, q, k, v) if backend in BACKENDS else _NO_SUCH


def choose(
    problem: AttentionProblem, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, backend: str | None = None
) -> Backend:
    """The backend that was asked for, else the first in :data:`BACKENDS` that can serve; ``dense`` always can.

    Logged at debug level on ``te_pkg.attention``, with the reason.

    Raises:
        BackendUnavailableError: a ``RuntimeError``; the backend that was asked for cannot serve this, and why.
    """
    if backend is not None:
        reason = why_not(backend, problem, q, k, v)
        if reason is not None:
            raise BackendUnavailableError(backend, reason)
        _log.debug("backend %s: asked for", backend)
        return load(backend)
    reasons = []
    for name in BACKENDS:
        reason = load(name).why_not(problem, q, k, v)
        if reason is None:
            break
        reasons.append(f"{name}: {reason}")
    _log.debug("backend %s: the first that can serve this%s", name, "".join(f"; not {reason}" for reason in reasons))
    return load(name)


@cache
def load(backend: str) -> Backend:
    """The module of a name in :data:`BACKENDS`."""
    return cast(Backend, importlib.import_module(f"{__name__}.{backend}"))
