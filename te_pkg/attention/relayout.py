"""One operation moves packed sequences between layouts: real rows go to their places, the rest is filled.

``t`` rows of the packed buffer, ``b`` sequences, ``s`` rows of the longest one. A batch ``[b, s, ...]`` is a layout
with slots of ``s`` rows; a buffer padded for context parallelism or FP8, one with slots rounded up; the input of a
grouped GEMM, one whose sequences are the rows of each expert. So :func:`pack`, :func:`unpack`, :func:`pad_rows` and
:func:`unpad_rows` are :func:`relayout` between two of them::

    a a a . | b b . .        cu_seqlens_padded = [0, 4, 8]
    a a a | b b              cu_seqlens_padded = [0, 3, 5]

All take every dtype, any trailing shape and strided memory, and are differentiated once and twice: the gradient is the
same operation backwards. Under ``torch.compile`` and ``torch.export`` each is one node of the graph. Where nothing else
is said they never wait for the device, and are safe under CUDA graph capture.

Above some 32 MB to touch fresh memory takes longer than to move the rows: ``out=`` lets a buffer serve again.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import SupportsIndex, overload

import torch
from torch.compiler import is_compiling

from te_pkg.attention.buffer_checks import (
    check_layout,
    check_tensor,
    is_room,
    needs_copy,
    out_faults,
    refuse,
    row_faults,
)
from te_pkg.attention.cu_seqlens import get_full_cu_seqlens
from te_pkg.attention.errors import ArgumentTypeError, HostReadError, LayoutError, OffsetOverflowError
from te_pkg.attention.kernels import Fill, RowMove, Slots, check_kernel, cpu
from te_pkg.attention.kernels.host import HostRows, host_rows, is_common
from te_pkg.attention.kernels.operators import move_rows
from te_pkg.attention.kernels.words import check_fill, count_write
from te_pkg.attention.layout import PackedLayout
from te_pkg.attention.offsets import INT32_MAX, integers, is_traced, shape_faults, why_unreadable

__all__ = ["pack", "pad_rows", "relayout", "unpack", "unpad_rows"]


def relayout(
    x: torch.Tensor,
    source: PackedLayout,
    target: PackedLayout,
    *,
    fill: Fill = 0,
    out: torch.Tensor | None = None,
    kernel: str | None = None,
) -> torch.Tensor:
    """Move each sequence's real rows from one layout to another, and fill the rows of no sequence.

    >>> source = PackedLayout.from_lengths([2, 1], pad_to_multiple=2)
    >>> target = PackedLayout.from_lengths([2, 1], pad_to_multiple=4)
    >>> relayout(torch.tensor([1, 2, 3, 9]), source, target)
    tensor([1, 2, 0, 0, 3, 0, 0, 0])

    What the padding rows of ``x`` hold does not matter, and their gradient is 0. No host sync.

    Args:
        x: ``[t_source, ...]``, any dtype.
        source: the layout of ``x``.
        target: the layout of the result, with the same lengths; compared where the host knows both.
        fill: a number that the dtype can hold, for the rows of no sequence.
        out: ``[t_target, ...]`` to write to, of the dtype and on the device of ``x``; not where gradients flow.
        kernel: ``"reference"``, ``"cpu"`` or ``"triton"``, see :mod:`te_pkg.attention.kernels`; None: by device.

    Returns:
        ``[t_target, ...]``, contiguous; ``out`` where it is given.

    Raises:
        LayoutError: a ``ValueError`` with every fault: another number of rows than the layout has, layouts of other
            sequences or on another device, an ``out`` of another shape, dtype or device, or in the memory of ``x``.
        ArgumentTypeError: a ``TypeError``; ``fill`` is no number that the dtype can hold, ``x`` or ``out`` no tensor
            with strides, or a layout none.
        GradientError: a ``RuntimeError``; ``out`` is given, and it or ``x`` requires a gradient.
        KernelUnavailableError: a ``RuntimeError``; ``kernel`` cannot run here, and why.
    """
    faults = row_faults("x", x, source, "source")
    check_layout("target", target)
    if target.device != x.device:
        faults.append(f"target is on {target.device}, expected {x.device} as x")
    if target.num_sequences != source.num_sequences:
        faults.append(f"target has {target.num_sequences} sequences, expected {source.num_sequences} as source")
    refuse(faults + out_faults(out, x, (target.total_tokens, *x.shape[1:])))
    here, there = host_rows(source, x), host_rows(target, x)
    if here is not None and there is not None and here.lengths != there.lengths:
        refuse(
            [
                f"target: sequence {i} has {length} rows, expected {expected} as in source"
                for i, (length, expected) in enumerate(zip(there.lengths, here.lengths, strict=True))
                if length != expected
            ]
        )
    return _move(
        x,
        source.cu_seqlens,
        Slots(source.cu_seqlens_padded, source.total_tokens, here and here.slots),
        Slots(target.cu_seqlens_padded, target.total_tokens, there and there.slots),
        here,
        fill,
        out,
        kernel,
    )


def pack(
    x: torch.Tensor,
    layout: PackedLayout,
    *,
    fill: Fill = 0,
    out: torch.Tensor | None = None,
    kernel: str | None = None,
) -> torch.Tensor:
    """The real rows of a batch in a packed buffer: ``[b, s, ...]`` -> ``[t, ...]``. No host sync.

    >>> batch = torch.tensor([[1, 2, 0], [3, 0, 0]])
    >>> pack(batch, PackedLayout.from_lengths([2, 1]))
    tensor([1, 2, 3])
    >>> pack(batch, PackedLayout.from_lengths([2, 1], pad_to_multiple=2))
    tensor([1, 2, 3, 0])

    Args:
        x: ``[b, s, ...]``, any dtype; sequence ``i`` is ``x[i, :length]``. Where sequences do not lie one behind the
            other, as in ``[s, b, ...]`` transposed, it is copied first.
        layout: of the packed buffer; its longest sequence has at most ``s`` rows.
        fill: as for :func:`relayout`.
        out: ``[t, ...]``, as for :func:`relayout`.
        kernel: as for :func:`relayout`.

    Returns:
        ``[t, ...]``, contiguous; ``out`` where it is given.

    Raises:
        LayoutError, ArgumentTypeError, GradientError, KernelUnavailableError: as :func:`relayout`.
        OffsetOverflowError: an ``OverflowError``; ``b * s`` is beyond int32.
    """
    if kernel is None and type(fill) is int and fill == 0 and is_common(x, layout) and x.is_contiguous():
        packed = _pack_memory(x, layout, out)
        if packed is not None:
            return packed
    check_tensor("x", x)
    check_layout("layout", layout)
    if x.ndim < 2:
        refuse([f"x is {x.ndim}-D with shape {list(x.shape)}, expected [b, s, ...]"])
    batch, longest = x.shape[:2]
    faults = _batch_faults(layout, batch, longest, "x has {} rows for each sequence")
    if layout.device != x.device:
        faults.append(f"x is on {x.device}, expected {layout.device} as layout")
    refuse(faults + out_faults(out, x, (layout.total_tokens, *x.shape[2:])))
    known = host_rows(layout, x)
    return _move(
        x.flatten(0, 1),
        layout.cu_seqlens,
        _batch_slots(batch, longest, x.device),
        Slots(layout.cu_seqlens_padded, layout.total_tokens, known and known.slots),
        known,
        fill,
        out,
        kernel,
    )


def _pack_memory(x: torch.Tensor, layout: PackedLayout, out: torch.Tensor | None) -> torch.Tensor | None:
    """:func:`pack` in the usual case, with rows seen as ``[t, n]``; None where anything else has to be asked."""
    shape, total = x.shape, layout.total_tokens
    if len(shape) < 2 or shape[0] != len(layout.lengths or ()) or shape[1] < layout.max_seqlen or not x.numel():
        return None
    rows, packed_shape = shape[0] * shape[1], (total, *shape[2:])
    if not total or rows > INT32_MAX or (out is not None and not is_room(out, x, packed_shape)):
        return None
    packed = x.new_empty(packed_shape) if out is None else out
    cpu.move_known(
        x.view(rows, -1),
        packed.view(total, -1),
        layout.lengths or (),
        range(0, rows + 1, shape[1]),
        layout.slot_offsets or (),
        layout.real_tokens or 0,
        0,
    )
    if out is not None:
        count_write(out)
    return packed


def unpack(
    x: torch.Tensor,
    layout: PackedLayout,
    max_seqlen: SupportsIndex | None = None,
    *,
    fill: Fill = 0,
    out: torch.Tensor | None = None,
    kernel: str | None = None,
) -> torch.Tensor:
    """The batch in a packed buffer: ``[t, ...]`` -> ``[b, s, ...]``, the inverse of :func:`pack`. No host sync.

    >>> unpack(torch.tensor([1, 2, 3]), PackedLayout.from_lengths([2, 1]), 3)
    tensor([[1, 2, 0],
            [3, 0, 0]])

    Args:
        x: ``[t, ...]``, any dtype.
        layout: of ``x``.
        max_seqlen: ``s``, at least the longest sequence; None: that of the layout.
        fill: as for :func:`relayout`.
        out: ``[b, s, ...]``, as for :func:`relayout`.
        kernel: as for :func:`relayout`.

    Returns:
        ``[b, s, ...]``, contiguous; ``out`` where it is given.

    Raises:
        LayoutError, ArgumentTypeError, GradientError, KernelUnavailableError: as :func:`relayout`.
        OffsetOverflowError: an ``OverflowError``; ``b * s`` is beyond int32.
    """
    check_layout("layout", layout)
    longest = layout.max_seqlen if max_seqlen is None else integers(max_seqlen=max_seqlen)[0]
    batch = layout.num_sequences
    faults = row_faults("x", x, layout, "layout") + _batch_faults(layout, batch, longest, "max_seqlen is {}")
    shape = (batch, longest, *x.shape[1:])
    refuse(faults + out_faults(out, x, shape))
    if out is not None and not _is_flat(out):
        return out.copy_(unpack(x, layout, longest, fill=fill, kernel=kernel))
    known = host_rows(layout, x)
    rows = _move(
        x,
        layout.cu_seqlens,
        Slots(layout.cu_seqlens_padded, layout.total_tokens, known and known.slots),
        _batch_slots(batch, longest, x.device),
        known,
        fill,
        None if out is None else out.flatten(0, 1),
        kernel,
    )
    return rows.view(shape) if out is None else out


@overload
def pad_rows(x: torch.Tensor, splits: torch.Tensor, align: SupportsIndex) -> tuple[torch.Tensor, torch.Tensor]: ...


@overload
def pad_rows(x: torch.Tensor, splits: Sequence[int], align: SupportsIndex) -> tuple[torch.Tensor, list[int]]: ...


def pad_rows(
    x: torch.Tensor, splits: torch.Tensor | Sequence[int], align: SupportsIndex
) -> tuple[torch.Tensor, torch.Tensor | list[int]]:
    """Pad the rows of each group with zeros to a multiple, as a grouped GEMM in FP8 wants them.

    A list never syncs. A tensor on a CUDA device is read: one host sync. Under CUDA graph capture a tensor is refused;
    make two layouts before it, and use :func:`relayout`.

    >>> pad_rows(torch.tensor([1, 2, 3, 4]), [3, 0, 1], align=2)
    (tensor([1, 2, 3, 0, 4, 0]), [4, 0, 2])

    Args:
        x: ``[t, ...]``, any dtype; the rows of one group behind those of the other.
        splits: how many rows each group has, ``t`` together; numbers, or an integer tensor ``[g]``.
        align: at least 1; 16 or 32 for FP8.

    Returns:
        ``[t_padded, ...]``, which is ``x`` itself where there is nothing to pad; and how many rows each group has now,
        a list for a list and a tensor for a tensor.

    Raises:
        LayoutError, ArgumentTypeError, KernelUnavailableError: as :func:`relayout`.
        HostReadError: a ``RuntimeError``; a tensor, under CUDA graph capture.
    """
    check_tensor("x", x)
    unpadded, padded = _group_layouts(splits, align, x.device)
    refuse(row_faults("x", x, unpadded, "the sum of splits"))
    rows = x if padded.total_tokens == unpadded.total_tokens else relayout(x, unpadded, padded)
    if isinstance(splits, torch.Tensor):
        return rows, padded.cu_seqlens_padded.diff().to(splits)
    return rows, [end - start for start, end in pairwise(padded.slot_offsets or ())]


def unpad_rows(x: torch.Tensor, splits: torch.Tensor | Sequence[int], align: SupportsIndex) -> torch.Tensor:
    """Take away what :func:`pad_rows` added; it syncs where that does.

    >>> unpad_rows(torch.tensor([1, 2, 3, 0, 4, 0]), [3, 0, 1], align=2)
    tensor([1, 2, 3, 4])

    Args:
        x: ``[t_padded, ...]``, any dtype.
        splits: how many rows each group has without padding; a list, or an integer tensor ``[g]``.
        align: what the rows were padded to.

    Returns:
        ``[t, ...]``, which is ``x`` itself where nothing was padded.

    Raises:
        LayoutError, ArgumentTypeError, KernelUnavailableError, HostReadError: as :func:`pad_rows`.
    """
    check_tensor("x", x)
    unpadded, padded = _group_layouts(splits, align, x.device)
    refuse(row_faults("x", x, padded, "the sum of the padded splits"))
    return x if padded.total_tokens == unpadded.total_tokens else relayout(x, padded, unpadded)


def _group_layouts(
    splits: torch.Tensor | Sequence[int], align: SupportsIndex, device: torch.device
) -> tuple[PackedLayout, PackedLayout]:
    (multiple,) = integers(align=align)
    faults = [f"align is {multiple}, expected at least 1"] if multiple < 1 else []
    lengths: Sequence[int] = []
    if isinstance(splits, torch.Tensor):
        faults += shape_faults("splits", splits, "[g]")
        reason = None if is_compiling() else why_unreadable(splits)
        if reason is not None:
            raise HostReadError(
                f"splits decides how many rows there are, and cannot be read, because {reason}; hint: make two layouts "
                "before, and use relayout"
            )
        if not faults:
            lengths = splits.tolist()
    else:
        lengths = tuple(splits) if isinstance(splits, Iterable) else splits
    refuse(faults)
    try:
        unpadded = PackedLayout.from_lengths(lengths, device=device)
        return unpadded, PackedLayout.from_lengths(lengths, multiple, device=device)
    except LayoutError as error:
        raise LayoutError(fault.replace("lengths", "splits") for fault in error.faults) from None
    except ArgumentTypeError as error:
        raise ArgumentTypeError(str(error).replace("lengths", "splits")) from None


def _batch_faults(layout: PackedLayout, batch: int, longest: int, what: str) -> list[str]:
    faults = []
    if batch != layout.num_sequences:
        faults.append(f"x has {batch} sequences, expected {layout.num_sequences} as layout")
    bound = layout.max_seqlen
    if longest < bound and not is_traced() and layout.lengths is not None:
        bound = max(layout.lengths, default=0)  # less than an upper bound that the layout was given
    if longest < bound:
        faults.append(f"{what.format(longest)}, expected at least {bound}, the longest sequence of layout")
    return faults


def _batch_slots(batch: int, longest: int, device: torch.device) -> Slots:
    """A batch, seen as ``[b * s, ...]``."""
    rows = batch * longest
    known: Sequence[int] | None = None
    if not is_compiling():
        if rows > INT32_MAX:
            raise OffsetOverflowError(
                f"{rows} is beyond int32: {batch} sequences of {longest} rows, expected at most {INT32_MAX}; hint: "
                "split the batch",
                rows,
            )
        known = range(0, rows + 1, longest) if longest else (0,) * (batch + 1)
    return Slots(lambda: get_full_cu_seqlens(batch, longest, device), rows, known)


def _is_flat(batch: torch.Tensor) -> bool:
    """Whether ``[b, s, ...]`` can be seen as ``[b * s, ...]``."""
    count, rows = batch.shape[:2]
    return batch.numel() == 0 or count == 1 or rows == 1 or batch.stride(0) == rows * batch.stride(1)


def _move(
    x: torch.Tensor,
    cu_seqlens: torch.Tensor,
    source: Slots,
    target: Slots,
    known: HostRows | None,
    fill: Fill,
    out: torch.Tensor | None,
    kernel: str | None,
) -> torch.Tensor:
    fill = check_fill(fill, x.dtype)
    check_kernel(kernel)
    move = RowMove(cu_seqlens, source, target, known and known.lengths, -1 if known is None else known.real)
    if out is not None and needs_copy(x, out):
        return out.copy_(move_rows(x, move, fill, kernel))
    return move_rows(x, move, fill, kernel, out)
