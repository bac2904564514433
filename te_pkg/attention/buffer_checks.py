"""Whether a buffer fits its layout: by shape, dtype, device and memory, never by values. No host sync."""

from __future__ import annotations

import torch
from torch.compiler import is_compiling

from te_pkg.attention.errors import ArgumentTypeError, GradientError, LayoutError
from te_pkg.attention.kernels.host import is_common_memory, is_plain
from te_pkg.attention.layout import PackedLayout

__all__ = [
    "check_layout",
    "check_tensor",
    "is_room",
    "needs_copy",
    "out_faults",
    "overlap_faults",
    "refuse",
    "row_faults",
]


def row_faults(name: str, x: torch.Tensor, layout: PackedLayout, like: str) -> list[str]:
    """What is wrong with ``x`` as the buffer ``[t, ...]`` of ``layout``, which is called ``like``.

    >>> row_faults("x", torch.zeros(4, 2), PackedLayout.from_lengths([2, 1]), "layout")
    ['x has 4 rows, expected 3 as layout']

    Raises:
        ArgumentTypeError: a ``TypeError``; ``x`` is no tensor of rows, or ``layout`` no layout.
    """
    check_tensor(name, x)
    check_layout(like, layout)
    faults = []
    if x.ndim == 0:
        faults.append(f"{name} is 0-D, expected [t, ...]")
    elif x.shape[0] != layout.total_tokens:
        faults.append(f"{name} has {x.shape[0]} rows, expected {layout.total_tokens} as {like}")
    if x.device != layout.device:
        faults.append(f"{name} is on {x.device}, expected {layout.device} as {like}")
    return faults


def out_faults(out: torch.Tensor | None, x: torch.Tensor, shape: tuple[int, ...]) -> list[str]:
    """What is wrong with ``out`` as the memory for a result of ``shape`` made of ``x``.

    Raises:
        ArgumentTypeError: a ``TypeError``; ``out`` is no tensor of rows.
        GradientError: a ``RuntimeError``; a gradient would have to flow through it.
    """
    if out is None:
        return []
    check_tensor("out", out)
    if torch.is_grad_enabled() and (x.requires_grad or out.requires_grad):
        name = "x" if x.requires_grad else "out"
        raise GradientError(
            f"{name} requires a gradient, which cannot flow through out; hint: leave out away, or use torch.no_grad()"
        )
    faults = []
    if out.shape != shape:
        faults.append(f"out has shape {list(out.shape)}, expected {list(shape)}")
    if out.dtype != x.dtype:
        faults.append(f"out is {out.dtype}, expected {x.dtype} as x")
    if out.device != x.device:
        faults.append(f"out is on {out.device}, expected {x.device} as x")
    if is_plain(x, out):
        faults += overlap_faults("out", out)
        if _may_overlap(x, out) and _is_dense(x) and _is_dense(out):
            faults.append("out lies in the memory of x, expected memory of its own")
    return faults


def is_room(out: torch.Tensor, x: torch.Tensor, shape: tuple[int, ...]) -> bool:
    """Whether ``out`` is memory of its own for a result of ``shape`` made of ``x``; False: :func:`out_faults` says why.

    Few questions for the usual case: ``x`` is contiguous and passed :func:`~te_pkg.attention.kernels.host.is_common`.

    >>> is_room(torch.zeros(3, 2), torch.zeros(4, 2), (3, 2))
    True
    """
    if not is_common_memory(out) or out.shape != shape or out.dtype != x.dtype or not out.is_contiguous():
        return False
    start, out_start = x.data_ptr(), out.data_ptr()
    return out_start >= start + x.nbytes or start >= out_start + out.nbytes


def overlap_faults(name: str, x: torch.Tensor) -> list[str]:
    """What is wrong with ``x`` as memory to write to: a place of several elements, as in what was expanded.

    >>> overlap_faults("x", torch.zeros(1, 2).expand(3, 2))
    ['x has several elements in one place (strides [0, 1]), expected one']
    """
    if x.is_contiguous():
        return []
    beyond = 1  # of the elements of the dimensions so far
    for stride, size in sorted(zip(x.stride(), x.shape, strict=True)):
        if size > 1:
            if stride < beyond:
                return [f"{name} has several elements in one place (strides {list(x.stride())}), expected one"]
            beyond += (size - 1) * stride
    return []


def check_tensor(name: str, x: torch.Tensor) -> None:
    """Refuse what is no tensor, or one whose elements do not lie in memory by strides.

    Raises:
        ArgumentTypeError: a ``TypeError``.
    """
    if not isinstance(x, torch.Tensor):
        raise ArgumentTypeError(f"{name} must be a tensor, got {x!r}")
    if x.layout is not torch.strided or x.is_nested or x.is_quantized:
        kind = "nested" if x.is_nested else "quantized" if x.is_quantized else str(x.layout)
        raise ArgumentTypeError(f"{name} must be a dense tensor (torch.strided), got one that is {kind}")


def check_layout(name: str, layout: PackedLayout) -> None:
    """Refuse what is no layout.

    Raises:
        ArgumentTypeError: a ``TypeError``.
    """
    if not isinstance(layout, PackedLayout):
        raise ArgumentTypeError(f"{name} must be a PackedLayout, got {layout!r}; hint: PackedLayout.from_lengths")


def refuse(faults: list[str]) -> None:
    """Raise :class:`~te_pkg.attention.errors.LayoutError`, a ``ValueError``, if there are any faults."""
    if faults:
        raise LayoutError(faults)


def needs_copy(x: torch.Tensor, out: torch.Tensor) -> bool:
    """Whether a result made of ``x`` has to be complete before it is copied to ``out``, which passed the checks."""
    if is_compiling() or not is_plain(x, out):
        return False
    if x.is_contiguous() and out.is_contiguous() and not out.is_complex() and not out.is_neg():
        return False  # mostly; those that overlap were refused
    # An operator cannot be given memory that has yet to be conjugated. And strided views of one buffer, such as the
    # queries and the keys of one projection, need not share an element.
    if out.is_conj() or out.is_neg():
        return True
    return _may_overlap(x, out)


def _may_overlap(x: torch.Tensor, out: torch.Tensor) -> bool:
    """Whether one begins before the other ends in memory."""
    start, out_start = x.data_ptr(), out.data_ptr()  # 0 for what has no memory
    return start < out_start + _reach(out) and out_start < start + _reach(x) and start > 0 and out_start > 0


def _reach(tensor: torch.Tensor) -> int:
    """Bytes from the start of the first element to the end of the last one."""
    if tensor.is_contiguous():
        return tensor.nbytes
    steps = ((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return (sum(steps) + 1) * tensor.itemsize


def _is_dense(tensor: torch.Tensor) -> bool:
    return _reach(tensor) == tensor.nbytes
