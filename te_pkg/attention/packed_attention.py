"""Attention within each sequence of a packed buffer, by whichever library serves best.

``t_q`` rows of queries, ``t_kv`` of keys and values, ``h`` and ``h_kv`` heads, ``d`` head size. A query sees keys of
its own sequence alone, and of these what ``causal`` and ``window`` leave::

    rows     a a a . | b b .         causal     X . . . . . .
                                                X X . . . . .
                                                X X X . . . .
                                                . . . . . . .     padding: exactly 0, forwards and backwards
                                                . . . . X . .
                                                . . . . X X .
                                                . . . . . . .

Source: Vaswani et al., Attention Is All You Need, <https://arxiv.org/abs/1706.03762>; the log-sum-exp as in Dao et al.,
FlashAttention, <https://arxiv.org/abs/2205.14135>.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Literal, overload

import torch

from te_pkg.attention.attention_checks import check_arguments
from te_pkg.attention.backends import BACKENDS, AttentionProblem, dense, why_absent, why_not
from te_pkg.attention.backends.operators import attend
from te_pkg.attention.errors import ArgumentTypeError
from te_pkg.attention.layout import PackedLayout

__all__ = ["available_backends", "packed_attention"]


@overload
def packed_attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    layout: PackedLayout,
    layout_kv: PackedLayout | None = None,
    *,
    causal: bool = False,
    align: str = "top_left",
    window: tuple[int, int] | None = None,
    scale: float | None = None,
    softcap: float | None = None,
    dropout_p: float = 0.0,
    generator: torch.Generator | None = None,
    return_lse: Literal[False] = False,
    backend: str | None = None,
) -> torch.Tensor: ...


@overload
def packed_attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    layout: PackedLayout,
    layout_kv: PackedLayout | None = None,
    *,
    causal: bool = False,
    align: str = "top_left",
    window: tuple[int, int] | None = None,
    scale: float | None = None,
    softcap: float | None = None,
    dropout_p: float = 0.0,
    generator: torch.Generator | None = None,
    return_lse: Literal[True],
    backend: str | None = None,
) -> tuple[torch.Tensor, torch.Tensor]: ...


def packed_attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    layout: PackedLayout,
    layout_kv: PackedLayout | None = None,
    *,
    causal: bool = False,
    align: str = "top_left",
    window: tuple[int, int] | None = None,
    scale: float | None = None,
    softcap: float | None = None,
    dropout_p: float = 0.0,
    generator: torch.Generator | None = None,
    return_lse: bool = False,
    backend: str | None = None,
) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
    """``softmax(scale * q k^T) v`` within each sequence.

    >>> layout = PackedLayout.from_lengths([2, 1], pad_to_multiple=2)
    >>> q = k = torch.zeros(4, 1, 8)
    >>> v = torch.tensor([2.0, 4.0, 7.0, float("nan")]).view(4, 1, 1).expand(4, 1, 8)
    >>> out, lse = packed_attention(q, k, v, layout, causal=True, return_lse=True)
    >>> out[:, 0, 0], lse
    (tensor([2., 3., 7., 0.]), tensor([[0.0000, 0.6931, 0.0000,   -inf]]))

    Padding rows of the output and of the gradients are exactly 0, whatever stands in padding of ``q``, ``k``, ``v`` and
    of the incoming gradient. A row that sees no key is 0, its gradient 0, its log-sum-exp -inf.

    The fastest backend that can serve is taken, and logged at debug level on ``te_pkg.attention``. Only ``sdpa`` needs
    the lengths on the host; no backend reads them from a device. Under CUDA graph capture it is never taken. Compiles
    without a graph break. Differentiable more than once, forwards, and by ``torch.func``; ``dense`` does that, in the
    memory that it needs.

    Args:
        q: ``[t_q, h, d]``, float16, bfloat16, float32 or float64; strided memory will do.
        k: ``[t_kv, h_kv, d]``, of the same dtype; ``h`` is a multiple of ``h_kv``, and head ``i`` of the queries sees
            head ``i // (h / h_kv)`` of the keys.
        v: ``[t_kv, h_kv, d_v]``, likewise.
        layout: of ``q``.
        layout_kv: of ``k`` and ``v``, with as many sequences; None: ``layout``.
        causal: a query sees no key to the right of its diagonal.
        align: where the diagonal of a sequence lies: ``"top_left"`` begins at its first query and first key,
            ``"bottom_right"`` ends at the last ones.
        window: ``(left, right)``, how many keys beside the diagonal a query sees; -1: without bound.
        scale: of the scores, a number that their dtype holds, float64 for float64, else float32; None:
            ``1 / sqrt(d)``.
        softcap: scores ``x`` become ``softcap * tanh(x / softcap)``; likewise, greater than 0; None: they stay.
        dropout_p: the share of weights that become 0, others growing by ``1 / (1 - dropout_p)``. Done by ``dense``.
        generator: of the dropout, on the device of ``q``; None: torch's default, so that ``torch.manual_seed`` rules.
        return_lse: return the log-sum-exp of the scores too.
        backend: ``"flash_attn"``, ``"varlen"``, ``"sdpa"``, ``"flex"`` or ``"dense"``, see
            :mod:`te_pkg.attention.backends`; None: the fastest that can serve.

    Returns:
        ``[t_q, h, d_v]``; with ``return_lse`` also ``[h, t_q]``, natural logarithm, float64 for float64, else float32,
        with a gradient too. Both contiguous.

    Raises:
        ArgumentTypeError: a ``TypeError`` with every fault; an argument is of a type that cannot be meant.
        ArgumentError, LayoutError: a ``ValueError`` with every fault; shapes, dtypes, devices or numbers that do not
            fit.
        BackendUnavailableError: a ``RuntimeError``; the backend that was asked for cannot serve this, and why.
    """
    problem = _problem(q, k, v, layout, layout_kv, causal, align, window, scale, softcap, dropout_p, generator)
    if dropout_p > 0:
        problem = dataclasses.replace(problem, dropout_keep=dense.draw_dropout(q, k, problem, generator))
    out, lse = attend(q, k, v, problem, backend)
    return (out, lse) if return_lse else out


def available_backends(
    q: torch.Tensor | None = None,
    k: torch.Tensor | None = None,
    v: torch.Tensor | None = None,
    layout: PackedLayout | None = None,
    layout_kv: PackedLayout | None = None,
    *,
    causal: bool = False,
    align: str = "top_left",
    window: tuple[int, int] | None = None,
    scale: float | None = None,
    softcap: float | None = None,
    dropout_p: float = 0.0,
) -> dict[str, str | None]:
    """For each backend None, or why it cannot serve, in the order in which they are asked. No host sync.

    >>> available_backends()["dense"] is None
    True
    >>> x = torch.zeros(3, 1, 8)
    >>> available_backends(x, x, x, PackedLayout.from_lengths([3]), softcap=30.0)["sdpa"]
    "PyTorch's fused kernels have no soft cap, got softcap 30.0"

    Args:
        q: as for :func:`packed_attention`, like all that follow; None: what this machine has.

    Raises:
        ArgumentTypeError, ArgumentError, LayoutError: as :func:`packed_attention`; also where some of ``q``, ``k``,
            ``v`` and ``layout`` are given, and not all.
    """
    if q is None and k is None and v is None and layout is None:
        return {name: why_absent(name) for name in BACKENDS}
    if q is None or k is None or v is None or layout is None:
        given = {"q": q, "k": k, "v": v, "layout": layout}
        missing = ", ".join(name for name, value in given.items() if value is None)
        raise ArgumentTypeError(f"{missing} must be given too, or none of q, k, v and layout")
    problem = _problem(q, k, v, layout, layout_kv, causal, align, window, scale, softcap, dropout_p, None)
    return {name: why_not(name, problem, q, k, v) for name in BACKENDS}


def _problem(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    layout: PackedLayout,
    layout_kv: PackedLayout | None,
    causal: bool,
    align: str,
    window: tuple[int, int] | None,
    scale: float | None,
    softcap: float | None,
    dropout_p: float,
    generator: torch.Generator | None,
) -> AttentionProblem:
    keys = layout if layout_kv is None else layout_kv
    check_arguments(q, k, v, layout, keys, causal, align, window, scale, softcap, dropout_p, generator)
    return AttentionProblem.of(
        layout,
        keys,
        scale=1 / math.sqrt(q.shape[-1]) if scale is None else float(scale),
        causal=causal,
        align=align,
        window=window,
        softcap=None if softcap is None else float(softcap),
        dropout_p=float(dropout_p),
    )
