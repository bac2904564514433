"""PyTorch's fused kernels, one sequence after the other: views of the real rows in, rows of the result out.

On the CPU the flash kernel behind ``torch.nn.functional.scaled_dot_product_attention``, which gives the log-sum-exp and
takes float64 too; on CUDA the memory-efficient one, see :mod:`te_pkg.attention.backends.efficient`. Nothing is padded,
and no row of no sequence is looked at. The loop runs on the host, which must know the lengths: not under CUDA graph
capture.

Source: ``aten::_scaled_dot_product_flash_attention_for_cpu`` of PyTorch.
"""

from __future__ import annotations

from typing import TypeAlias

import torch

from te_pkg.attention.backends import efficient
from te_pkg.attention.backends.pieces import Piece, pieces
from te_pkg.attention.backends.problem import AttentionProblem
from te_pkg.attention.backends.widths import narrowed, wide, widened
from te_pkg.attention.errors import HostReadError
from te_pkg.attention.kernels.host import HostRows, host_rows
from te_pkg.attention.offsets import INT32_MAX

__all__ = ["backward", "forward", "why_absent", "why_not"]

_Part: TypeAlias = tuple[int, torch.Tensor]
"""The first row, and rows ``[n, h, d]``."""


def why_absent() -> str | None:
    """None: PyTorch always has them."""
    return None


def why_not(problem: AttentionProblem, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> str | None:
    """See :class:`te_pkg.attention.backends.Backend`."""
    if q.device.type not in ("cpu", "cuda"):
        return f"PyTorch has fused kernels for cpu and cuda, got tensors on {q.device}"
    if q.is_cuda and q.dtype == torch.float64:
        return "PyTorch's fused kernels for CUDA take no float64"
    if problem.softcap is not None:
        return f"PyTorch's fused kernels have no soft cap, got softcap {problem.softcap!r}"
    if problem.dropout_p > 0:
        return f"dropout would not be the same in the backward pass, got dropout_p {problem.dropout_p!r}"
    if isinstance(problem.shift, torch.Tensor) and problem.shift.device.type != "cpu":
        return f"it goes sequence by sequence on the host, and shift is on {problem.shift.device}"
    for name, layout, x in (("layout", problem.layout, q), ("layout_kv", problem.layout_kv, k)):
        if host_rows(layout, x, most=INT32_MAX) is None:
            return f"it goes sequence by sequence on the host, where the lengths of {name} are not known"
    return problem.why_not_scale()


def forward(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, problem: AttentionProblem
) -> tuple[torch.Tensor, torch.Tensor]:
    """See :class:`te_pkg.attention.backends.Backend`.

    >>> from te_pkg.attention.layout import PackedLayout
    >>> q = k = torch.zeros(3, 1, 1)
    >>> v = torch.tensor([2.0, 4.0, float("nan")]).view(3, 1, 1)
    >>> layout = PackedLayout.from_lengths([2], total_tokens=3)
    >>> out, lse = forward(q, k, v, AttentionProblem.of(layout, scale=1.0, causal=True))
    >>> out.flatten(), lse
    (tensor([2., 3., 0.]), tensor([[0.0000, 0.6931,   -inf]]))
    """
    size_v = v.shape[-1]
    width = max(q.shape[-1], size_v)
    queries, keys, values = (_heads_first(wide(x, width)) for x in (q, k, v))
    kernel = efficient.forward if q.is_cuda else _forward
    outs, logs = [], []
    for sequence in pieces(problem, *_on_host(problem, q, k)):
        for piece in sequence:
            out, lse = kernel(
                queries.narrow(2, piece.q, piece.queries),
                keys.narrow(2, piece.k, piece.keys),
                values.narrow(2, piece.k, piece.keys),
                piece,
                problem.scale,
            )
            outs.append((piece.q, narrowed(out, size_v)[0].transpose(0, 1)))
            logs.append((piece.q, lse[0].T))
    rows, heads, _ = q.shape
    precise = q.new_empty(0, dtype=torch.promote_types(q.dtype, torch.float32))
    lse = _laid_out(logs, (rows, heads), precise, -torch.inf)
    return _laid_out(outs, (rows, heads, size_v), q), lse.T.contiguous()


def backward(
    d_out: torch.Tensor,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    out: torch.Tensor,
    lse: torch.Tensor,
    problem: AttentionProblem,
    d_lse: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """See :class:`te_pkg.attention.backends.Backend`."""
    size, size_v = q.shape[-1], v.shape[-1]
    if size != size_v or d_lse is not None:
        d_out, q, k, v, out = widened(d_out, q, k, v, out, d_lse)
    gradient, queries, keys, values, result = (_heads_first(x) for x in (d_out, q, k, v, out))
    logs = lse.unsqueeze(0)
    kernel = efficient.backward if q.is_cuda else _backward
    parts: tuple[list[_Part], list[_Part], list[_Part]] = [], [], []
    for sequence in pieces(problem, *_on_host(problem, q, k)):
        found: tuple[list[_Part], list[_Part], list[_Part]] = [], [], []
        for piece in sequence:
            rows, seen = (piece.q, piece.queries), (piece.k, piece.keys)
            d_q, d_k, d_v = kernel(
                gradient.narrow(2, *rows),
                queries.narrow(2, *rows),
                keys.narrow(2, *seen),
                values.narrow(2, *seen),
                result.narrow(2, *rows),
                logs.narrow(2, *rows),
                piece,
                problem.scale,
            )
            for of, start, x, columns in zip(
                found, (piece.q, piece.k, piece.k), (d_q, d_k, d_v), (size, size, size_v), strict=True
            ):
                of.append((start, narrowed(x, columns)[0].transpose(0, 1)))
        parts[0].extend(found[0])
        for of, together in zip(parts[1:], found[1:], strict=True):
            of.extend(together if len(together) < 2 else [_added(together, lse.dtype)])
    shapes = (q.shape[:2], size), (k.shape[:2], size), (v.shape[:2], size_v)
    d_q, d_k, d_v = (_laid_out(of, (*shape, columns), q) for of, (shape, columns) in zip(parts, shapes, strict=True))
    return d_q, d_k, d_v


def _forward(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, piece: Piece, scale: float
) -> tuple[torch.Tensor, torch.Tensor]:
    out, lse = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
        q, k, v, 0.0, piece.is_causal, attn_mask=piece.mask(q) if piece.is_masked else None, scale=scale
    )
    return out, lse


def _backward(
    d_out: torch.Tensor,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    out: torch.Tensor,
    lse: torch.Tensor,
    piece: Piece,
    scale: float,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    d_q, d_k, d_v = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward(
        d_out,
        q,
        k,
        v,
        out,
        lse,
        0.0,
        piece.is_causal,
        attn_mask=piece.mask(q) if piece.is_masked else None,
        scale=scale,
    )
    return d_q, d_k, d_v


def _on_host(problem: AttentionProblem, q: torch.Tensor, k: torch.Tensor) -> tuple[HostRows, HostRows]:
    rows = host_rows(problem.layout, q, most=INT32_MAX)
    keys = rows if problem.layout_kv is problem.layout else host_rows(problem.layout_kv, k, most=INT32_MAX)
    if rows is None or keys is None:
        raise HostReadError("sdpa goes sequence by sequence on the host, where the lengths are not known")
    return rows, keys


def _heads_first(x: torch.Tensor) -> torch.Tensor:
    """``[t, h, d]`` seen as ``[1, h, t, d]``; copied only where the kernels could not read it."""
    if x.stride(-1) != 1:
        x = x.contiguous()
    return x.transpose(0, 1).unsqueeze(0)


def _added(parts: list[_Part], precise: torch.dtype) -> _Part:
    """The sum of what pieces of one sequence say of the same keys, rounded once."""
    first, end = parts[0][0], max(start + len(rows) for start, rows in parts)
    rows = parts[0][1]
    total = torch.zeros(end - first, *rows.shape[1:], dtype=precise, device=rows.device)
    for start, part in parts:
        total.narrow(0, start - first, len(part)).add_(part)
    return first, total.to(rows.dtype)


def _laid_out(parts: list[_Part], shape: tuple[int, ...], like: torch.Tensor, fill: float = 0.0) -> torch.Tensor:
    """Each part, in order, from its row on, and ``fill`` in all other rows.

    One copy at last: each by itself would be shared among threads, who would have to meet each time.
    """
    blocks, done = [], 0
    for start, part in (*parts, (shape[0], None)):
        if start > done:
            blocks.append(like.new_full((start - done, *shape[1:]), fill))
        if part is not None:
            blocks.append(part)
            done = start + len(part)
    if not blocks:
        return like.new_empty(shape)
    return torch.cat(blocks) if len(blocks) > 1 else blocks[0].contiguous()
