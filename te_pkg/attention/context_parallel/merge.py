"""Attention over all keys from attention over two parts of them: the weights of both are in their log-sum-exps.

``t`` rows, ``h`` heads, ``d`` head size. With ``lse`` the logarithm of the sum of a row's exponentiated scores::

    lse = log(exp(lse_a) + exp(lse_b))        out = out_a + (out_b - out_a) * exp(lse_b - lse)

A row that sees no key of a part has an LSE of -inf there, and that part does not count, whatever its output holds.

Source: online softmax, Milakov and Gimelshein, arXiv 1805.02867; in blocks, Liu et al., arXiv 2310.01889.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from torch.autograd.function import once_differentiable

from te_pkg.attention import capture
from te_pkg.attention.buffer_checks import check_tensor
from te_pkg.attention.errors import GradientError, LayoutError
from te_pkg.attention.kernels.host import is_plain

__all__ = ["merge_attention", "merge_attention_"]


def merge_attention(
    out_a: torch.Tensor, lse_a: torch.Tensor, out_b: torch.Tensor, lse_b: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Attention over the keys of two parts. No host sync for tensors on a device; differentiable once.

    >>> one, two = torch.ones(1, 1, 2), torch.full((1, 1, 2), 3.0)
    >>> out, lse = merge_attention(one, torch.zeros(1, 1), two, torch.zeros(1, 1))
    >>> out, lse
    (tensor([[[2., 2.]]]), tensor([[0.6931]]))
    >>> merge_attention(one, torch.zeros(1, 1), two * math.nan, torch.tensor([[-math.inf]]))[0]
    tensor([[[1., 1.]]])

    Args:
        out_a: ``[t, h, d]``, floating point; attention over the keys of one part.
        lse_a: ``[h, t]``, its log-sum-exp, natural logarithm; -inf where a row sees no key. +inf, as some kernels have
            it there, means the same.
        out_b: like ``out_a``, of the same dtype.
        lse_b: like ``lse_a``, of the same dtype.

    Returns:
        ``[t, h, d]`` and ``[h, t]``, of the dtypes that were given; 0 and -inf where neither part has a key. Of two
        float16 or bfloat16 outputs the sum is made in float32.

    Raises:
        ArgumentTypeError: a ``TypeError``; an argument is no tensor.
        LayoutError: a ``ValueError`` with every fault; shapes, dtypes or devices do not fit.
    """
    _check(out_a=out_a, lse_a=lse_a, out_b=out_b, lse_b=lse_b)
    if torch.is_grad_enabled() and any(x.requires_grad for x in (out_a, lse_a, out_b, lse_b)):
        merged: tuple[torch.Tensor, torch.Tensor] = _Merge.apply(out_a, lse_a, out_b, lse_b)  # type: ignore[no-untyped-call]
        return merged
    weights = _Weights.of(lse_a, lse_b)
    return _mix(out_a, out_b, weights), _merged_lse(lse_a, lse_b, weights)


def merge_attention_(
    out: torch.Tensor, lse: torch.Tensor, block_out: torch.Tensor, block_lse: torch.Tensor, *, clean: bool = False
) -> None:
    """The same in place: ``out`` and ``lse`` take in the keys of one more block. No host sync; no gradients.

    >>> out, lse = torch.ones(1, 1, 2), torch.zeros(1, 1)
    >>> merge_attention_(out, lse, torch.full((1, 1, 2), 3.0), torch.zeros(1, 1))
    >>> out, lse
    (tensor([[[2., 2.]]]), tensor([[0.6931]]))

    Args:
        out: ``[t, h, d]``, floating point; strided or not.
        lse: ``[h, t]``.
        block_out: like ``out``, of the same or another dtype.
        block_lse: like ``lse``.
        clean: where an LSE is -inf, the output is finite, as it is from this package's backends. Spares a look.

    Raises:
        ArgumentTypeError: a ``TypeError``; an argument is no tensor.
        LayoutError: a ``ValueError`` with every fault; shapes or devices do not fit.
        GradientError: a ``RuntimeError``; a gradient would have to flow through them.
    """
    _check(same_dtype=False, out=out, lse=lse, block_out=block_out, block_lse=block_lse)
    if torch.is_grad_enabled() and any(x.requires_grad for x in (out, lse, block_out, block_lse)):
        raise GradientError(
            "no gradient can flow through a merge in place; hint: use merge_attention, or torch.no_grad()"
        )
    weights = _Weights.of(lse, block_lse)
    _mix(out, block_out, weights._replace(dead=None) if clean else weights, into=out)
    lse.copy_(_merged_lse(lse, block_lse, weights))


class _Merge(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, out_a: torch.Tensor, lse_a: torch.Tensor, out_b: torch.Tensor, lse_b: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        weights = _Weights.of(lse_a, lse_b)
        ctx.save_for_backward(out_a, lse_a, out_b, lse_b, weights.share)
        return _mix(out_a, out_b, weights), _merged_lse(lse_a, lse_b, weights)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_out: torch.Tensor, d_lse: torch.Tensor) -> tuple[torch.Tensor, ...]:
        out_a, lse_a, out_b, lse_b, share = ctx.saved_tensors
        dead_a, dead_b = (lse.isinf().T.unsqueeze(-1) for lse in (lse_a, lse_b))
        d_a = (d_out * (1 - share)).masked_fill(dead_a, 0)
        d_b = (d_out * share).masked_fill(dead_b, 0)
        wide = torch.promote_types(out_a.dtype, torch.float32)
        along = (d_out * (out_b.to(wide) - out_a.to(wide))).sum(-1, keepdim=True)
        slope = (along * share * (1 - share)).masked_fill(dead_a | dead_b, 0)
        d_lse = d_lse.T.unsqueeze(-1)
        d_lse_a = (d_lse * (1 - share)).masked_fill(dead_a, 0) - slope
        d_lse_b = (d_lse * share).masked_fill(dead_b, 0) + slope
        return (
            d_a.to(out_a.dtype),
            d_lse_a.squeeze(-1).T.to(lse_a.dtype),
            d_b.to(out_b.dtype),
            d_lse_b.squeeze(-1).T.to(lse_b.dtype),
        )


class _Weights(NamedTuple):
    """``[t, h, 1]``, the share of the second part, and bool, where either part has no key; None: nowhere."""

    share: torch.Tensor
    dead: tuple[torch.Tensor, torch.Tensor] | None

    @classmethod
    def of(cls, lse_a: torch.Tensor, lse_b: torch.Tensor) -> _Weights:
        """Of the log-sum-exps ``[h, t]`` of both parts."""
        ahead = lse_b - lse_a
        if _all_finite(ahead, lse_a, lse_b):
            # Side by side, as the rows that they weigh are: to copy them costs less than to read them apart.
            return cls(ahead.sigmoid_().T.contiguous().unsqueeze(-1), None)
        dead_a, dead_b = lse_a.isinf(), lse_b.isinf()
        # Of two that are -inf the difference is NaN.
        share = ahead.sigmoid_().masked_fill_(dead_a, 1).masked_fill_(dead_b, 0)
        share, dead_a, dead_b = (x.T.unsqueeze(-1) for x in (share, dead_a, dead_b))
        return cls(share, (dead_a, dead_b))


def _all_finite(difference: torch.Tensor, *tensors: torch.Tensor) -> bool:
    """Whether every value is finite, where it is cheaper to look than to provide for it: in memory of the host.

    A sum is not finite if one of its terms is not, and neither is the difference of two numbers.
    """
    if not is_plain(difference, *tensors) or not difference.is_cpu or capture.is_capturing():
        return False
    return math.isfinite(float(difference.sum()))


def _merged_lse(lse_a: torch.Tensor, lse_b: torch.Tensor, weights: _Weights) -> torch.Tensor:
    """The log-sum-exp ``[h, t]`` of both parts."""
    if weights.dead is None:
        return torch.logaddexp(lse_a, lse_b)
    return torch.logaddexp(*(lse.masked_fill(lse.isinf(), -math.inf) for lse in (lse_a, lse_b)))


def _mix(a: torch.Tensor, b: torch.Tensor, weights: _Weights, into: torch.Tensor | None = None) -> torch.Tensor:
    """Both outputs by weight, in float32 at least, and nothing of what a part without keys holds."""
    dtype, wide = a.dtype, torch.promote_types(a.dtype, torch.float32)
    a, b, share = a.to(wide), b.to(wide), weights.share.to(wide)
    if weights.dead is not None:
        dead_a, dead_b = weights.dead
        a, b = a.masked_fill(dead_a, 0), b.masked_fill(dead_b, 0)
    if into is None:
        return torch.lerp(a, b, share).to(dtype)
    return torch.lerp(a, b, share, out=into) if dtype == wide else into.copy_(torch.lerp(a, b, share))


def _check(*, same_dtype: bool = True, **given: torch.Tensor) -> None:
    for name, x in given.items():
        check_tensor(name, x)
    (out_name, out), (lse_name, lse), (other_name, other), (other_lse_name, other_lse) = given.items()
    faults = []
    if out.ndim != 3:
        faults.append(f"{out_name} is {out.ndim}-D with shape {list(out.shape)}, expected 3-D [t, h, d]")
    else:
        rows, heads, _ = out.shape
        shapes = {lse_name: (lse, [heads, rows]), other_lse_name: (other_lse, [heads, rows])}
        for name, (x, expected) in {**shapes, other_name: (other, list(out.shape))}.items():
            if list(x.shape) != expected:
                faults.append(f"{name} has shape {list(x.shape)}, expected {expected} as {out_name}")
    for name, x in given.items():
        if not x.is_floating_point():
            faults.append(f"{name} is {x.dtype}, expected floating point")
        if x.device != out.device:
            faults.append(f"{name} is on {x.device}, expected {out.device} as {out_name}")
    if same_dtype:
        for name, x, like_name, like in (
            (other_name, other, out_name, out),
            (other_lse_name, other_lse, lse_name, lse),
        ):
            if x.dtype != like.dtype:
                faults.append(f"{name} is {x.dtype}, expected {like.dtype} as {like_name}")
    if faults:
        raise LayoutError(faults)
