"""Whether the arguments of an attention fit each other: by type, shape, dtype, device and number. No host sync."""

from __future__ import annotations

import torch

from te_pkg.attention.errors import ArgumentError, ArgumentTypeError, LayoutError
from te_pkg.attention.layout import PackedLayout
from te_pkg.attention.masks import ALIGNMENTS, window_faults

__all__ = ["DTYPES", "check_arguments"]

DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


def check_arguments(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    layout: PackedLayout,
    layout_kv: PackedLayout,
    causal: bool,
    align: str,
    window: tuple[int, int] | None,
    scale: float | None,
    softcap: float | None,
    dropout_p: float,
    generator: torch.Generator | None,
) -> None:
    """Refuse what :func:`~te_pkg.attention.packed_attention` cannot mean.

    Raises:
        ArgumentTypeError: a ``TypeError`` with every argument of a type that cannot be meant.
        ArgumentError: a ``ValueError`` with every fault; a number or a word that cannot be meant.
        LayoutError: a ``ValueError`` with every fault; else.
    """
    strange = [
        f"{name} must be a tensor, got {value!r}"
        for name, value in (("q", q), ("k", k), ("v", v))
        if not isinstance(value, torch.Tensor)
    ]
    strange += [
        f"{name} must be a PackedLayout, got {value!r}"
        for name, value in (("layout", layout), ("layout_kv", layout_kv))
        if not isinstance(value, PackedLayout)
    ]
    if not isinstance(causal, bool):
        strange.append(f"causal must be a bool, got {causal!r}")
    precise = torch.float64 if isinstance(q, torch.Tensor) and q.dtype == torch.float64 else torch.float32
    wrong_types, numbers = _number_faults(scale, softcap, dropout_p, precise)
    window_types, of_window = window_faults(window)
    strange += wrong_types + window_types
    if generator is not None and not isinstance(generator, torch.Generator):
        strange.append(f"generator must be a torch.Generator or None, got {generator!r}")
    if strange:
        raise ArgumentTypeError("\n".join(strange))
    of_arguments = numbers + of_window
    if align not in ALIGNMENTS:
        of_arguments.append(f"align is {align!r}, expected one of {', '.join(map(repr, ALIGNMENTS))}")
    if generator is not None and generator.device.type != q.device.type:
        of_arguments.append(f"generator is on {generator.device}, expected {q.device} as q")
    faults = _buffer_faults(q, k, v, layout, layout_kv)
    if of_arguments:
        raise ArgumentError("\n".join([*of_arguments, *faults]))
    if faults:
        raise LayoutError(faults)


def _number_faults(
    scale: float | None, softcap: float | None, dropout_p: float, precise: torch.dtype
) -> tuple[list[str], list[str]]:
    """What is wrong with the types, and with the values.

    Args:
        precise: the dtype of the scores, where a greater number would be Inf, and a lesser cap 0.
    """
    strange, faults = [], []
    most, least = torch.finfo(precise).max, torch.finfo(precise).tiny
    held = str(precise).removeprefix("torch.")
    for name, value, optional in (("scale", scale, True), ("softcap", softcap, True), ("dropout_p", dropout_p, False)):
        if value is None and optional:
            continue
        if isinstance(value, bool) or not isinstance(value, (int, float, torch.SymInt, torch.SymFloat)):
            strange.append(f"{name} must be a number{' or None' if optional else ''}, got {value!r}")
        elif name == "scale" and not -most <= value <= most:
            faults.append(f"scale is {value!r}, expected a finite number of {held}")
        elif name == "softcap" and not least <= value <= most:
            faults.append(f"softcap is {value!r}, expected a finite number of {held} greater than 0")
        elif name == "dropout_p" and not 0 <= value < 1:
            faults.append(f"dropout_p is {value!r}, expected at least 0 and less than 1")
    return strange, faults


def _buffer_faults(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, layout: PackedLayout, layout_kv: PackedLayout
) -> list[str]:
    faults = []
    shapes = (("q", q, "[t_q, h, d]"), ("k", k, "[t_kv, h_kv, d]"), ("v", v, "[t_kv, h_kv, d_v]"))
    for name, x, shape in shapes:
        if x.ndim != 3:
            faults.append(f"{name} is {x.ndim}-D with shape {list(x.shape)}, expected {shape}")
    like = "layout" if layout_kv is layout else "layout_kv"
    for name, x, of, called in (("q", q, layout, "layout"), ("k", k, layout_kv, like), ("v", v, layout_kv, like)):
        if x.ndim > 0 and x.shape[0] != of.total_tokens:
            faults.append(f"{name} has {x.shape[0]} rows, expected {of.total_tokens} as {called}")
        if x.device != of.device:
            faults.append(f"{name} is on {x.device}, expected {of.device} as {called}")
        if x.layout != torch.strided:
            faults.append(f"{name} is {x.layout}, expected torch.strided")
    if q.dtype not in DTYPES:
        faults.append(f"q is {q.dtype}, expected {', '.join(str(dtype).removeprefix('torch.') for dtype in DTYPES)}")
    faults += [f"{name} is {x.dtype}, expected {q.dtype} as q" for name, x, _ in shapes[1:] if x.dtype != q.dtype]
    if all(x.ndim == 3 for _, x, _ in shapes):
        faults += _head_faults(q, k, v)
    if layout_kv.num_sequences != layout.num_sequences:
        faults.append(
            f"layout_kv has {layout_kv.num_sequences} sequences, expected {layout.num_sequences} as the queries"
        )
    if layout_kv.device != layout.device:
        faults.append(f"layout_kv is on {layout_kv.device}, expected {layout.device} as the queries")
    return faults


def _head_faults(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> list[str]:
    faults = [
        f"{name} has shape {list(x.shape)}, expected at least 1 head of at least 1 column"
        for name, x in (("q", q), ("k", k), ("v", v))
        if x.shape[1] == 0 or x.shape[2] == 0
    ]
    heads, heads_kv = q.shape[1], k.shape[1]
    if v.shape[1] != heads_kv:
        faults.append(f"v has {v.shape[1]} heads, expected {heads_kv} as k")
    if heads_kv and heads % heads_kv:
        faults.append(f"q has {heads} heads, expected a multiple of {heads_kv}, those of k")
    if k.shape[2] != q.shape[2]:
        faults.append(f"k has heads of size {k.shape[2]}, expected {q.shape[2]} as q")
    return faults
