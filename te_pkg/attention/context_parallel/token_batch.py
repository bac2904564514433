"""Token ids, labels and positions of packed sequences, padded for context parallelism and cut into ranks' shards.

``b`` sequences, ``t`` rows, ``c`` ranks. Drop-ins for Transformer Engine's functions of these names, on any device and
for any dtype. What would lose tokens is refused.
"""

from __future__ import annotations

from typing import NamedTuple, SupportsIndex

import torch

from te_pkg.attention.buffer_checks import check_tensor
from te_pkg.attention.context_parallel.partition import partition_indices
from te_pkg.attention.errors import ArgumentError, ArgumentTypeError, HostReadError, LayoutError
from te_pkg.attention.kernels import Fill
from te_pkg.attention.kernels.words import check_fill
from te_pkg.attention.layout_checks import check_offsets
from te_pkg.attention.length_checks import Slots, check_slots
from te_pkg.attention.offsets import INT32_MAX, integers, ordinary, shape_faults, why_unreadable

__all__ = ["generate_positional_ids_for_cp", "get_batch_on_this_cp_rank", "pad_thd_sequences_for_cp"]


def pad_thd_sequences_for_cp(
    input_ids: torch.Tensor,
    labels: torch.Tensor,
    cu_seqlens: torch.Tensor,
    divisibility_factor: SupportsIndex,
    padding_token_id: Fill = 0,
    padding_label_id: Fill = -100,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Pad each sequence to a multiple. One host sync for offsets on a CUDA device, however many sequences there are.

    >>> pad_thd_sequences_for_cp(torch.tensor([7, 8, 9]), torch.tensor([8, 9, 7]), torch.tensor([0, 1, 3]), 2)
    (tensor([7, 0, 8, 9]), tensor([   8, -100,    9,    7]), tensor([0, 2, 4]))

    Args:
        input_ids: ``[t]`` or ``[1, t]``, one sequence behind the other.
        labels: likewise.
        cu_seqlens: int32 or int64 ``[b + 1]``, where each sequence begins; ends at ``t``.
        divisibility_factor: ``2 * c``, or a multiple of it.
        padding_token_id: in the padding of ``input_ids``.
        padding_label_id: in the padding of ``labels``.

    Returns:
        ``[t_padded]`` ids and labels, and where each slot begins, ``[b + 1]`` of the dtype of ``cu_seqlens``; each on
        the device of what was given.

    Raises:
        ArgumentTypeError: a ``TypeError``; an argument is of a type that cannot be meant.
        LayoutError: a ``ValueError`` with every fault; no offsets, a multiple less than 1, or rows that are in no
            sequence, or of a sequence that are not there, with both numbers.
        HostReadError: a ``RuntimeError``; the offsets may not be read now.
    """
    slots = _Slots.of(cu_seqlens, divisibility_factor)
    end, faults, rows = slots.real_rows, [], []
    for name, x, fill in (("input_ids", input_ids, padding_token_id), ("labels", labels, padding_label_id)):
        check_tensor(name, x)
        check_fill(fill, x.dtype)
        if x.ndim != 1 and not (x.ndim == 2 and x.shape[0] == 1):
            faults.append(f"{name} has shape {list(x.shape)}, expected [t] or [1, t]")
        elif x.shape[-1] != end:
            faults.append(f"{name} has {x.shape[-1]} rows, expected {end}, where cu_seqlens ends")
        if x.device != cu_seqlens.device:
            faults.append(f"{name} is on {x.device}, expected {cu_seqlens.device} as cu_seqlens")
        rows.append((x.flatten(), fill))
    if faults:
        raise LayoutError(faults)
    with ordinary():
        # Where each row goes: one behind the row before, and behind the padding of its sequence where that ends there.
        places = slots.begins.new_ones(end + 1)
        places[:1].zero_()
        places.index_add_(0, slots.ends, slots.padding).cumsum_(0)
        offsets = slots.begins if cu_seqlens.dtype == torch.int64 else slots.begins.to(cu_seqlens.dtype)
    ids, tags = (x.new_full((slots.rows,), fill).scatter_(0, places[:end], x) for x, fill in rows)
    return ids, tags, offsets


def generate_positional_ids_for_cp(
    cu_seqlens: torch.Tensor, divisibility_factor: SupportsIndex, dtype: torch.dtype = torch.long
) -> torch.Tensor:
    """The position of each row of sequences that are padded to a multiple; it counts on through the padding.

    One host sync for offsets on a CUDA device.

    >>> generate_positional_ids_for_cp(torch.tensor([0, 1, 3]), 2)
    tensor([0, 1, 0, 1])

    Args:
        cu_seqlens: int32 or int64 ``[b + 1]``, where each sequence begins.
        divisibility_factor: ``2 * c``, or a multiple of it.
        dtype: of the result.

    Returns:
        ``[t_padded]`` on the device of ``cu_seqlens``.

    Raises:
        ArgumentTypeError: a ``TypeError``; an argument is of a type that cannot be meant.
        LayoutError: a ``ValueError``; no offsets, or a multiple less than 1.
        HostReadError: a ``RuntimeError``; the offsets may not be read now.
    """
    if not isinstance(dtype, torch.dtype):
        raise ArgumentTypeError(f"dtype must be a torch.dtype, got {dtype!r}")
    slots = _Slots.of(cu_seqlens, divisibility_factor)
    with ordinary():
        begins = torch.repeat_interleave(slots.begins[:-1], slots.begins.diff(), output_size=slots.rows)
        return torch.arange(slots.rows, device=begins.device).sub_(begins).to(dtype)


def get_batch_on_this_cp_rank(
    cu_seqlens_padded: torch.Tensor,
    input_ids_padded: torch.Tensor | None,
    labels_padded: torch.Tensor | None,
    position_ids_padded: torch.Tensor | None,
    cp_group: torch.distributed.ProcessGroup | None = None,
    qvk_format: str = "thd",
) -> tuple[torch.Tensor | None, torch.Tensor | None, torch.Tensor | None]:
    """The rows of ids, labels and positions that this rank holds. One host sync for offsets on a CUDA device.

    What is None stays None. With one rank, each tensor is returned as it is.

    Args:
        cu_seqlens_padded: int32 or int64 ``[b + 1]``, where each slot begins; a multiple of ``2 * c`` each.
        input_ids_padded: ``[t]``, ``[n, t, ...]`` or ``[t, n, ...]``; where both fit, the second.
        labels_padded: likewise.
        position_ids_padded: likewise.
        cp_group: the ranks; None: the default group.
        qvk_format: ``"thd"``.

    Returns:
        The three, with ``t / c`` rows in place of ``t``, of the same dtype and on the same device.

    Raises:
        ArgumentTypeError: a ``TypeError``; an argument is of a type that cannot be meant.
        ArgumentError: a ``ValueError``; a format that is not ``"thd"``.
        LayoutError: a ``ValueError`` with every fault; no offsets, a slot that is no multiple of ``2 * c``, or a tensor
            with other rows than the slots have, with both numbers.
        HostReadError: a ``RuntimeError``; the offsets may not be read now.
    """
    if qvk_format != "thd":
        raise ArgumentError(f"qvk_format is {qvk_format!r}, expected 'thd': batches need no partition by offsets")
    size = torch.distributed.get_world_size(group=cp_group)
    given = {
        "input_ids_padded": input_ids_padded,
        "labels_padded": labels_padded,
        "position_ids_padded": position_ids_padded,
    }
    for name, x in given.items():
        if x is not None:
            check_tensor(name, x)
    if size == 1:
        return input_ids_padded, labels_padded, position_ids_padded
    rows = partition_indices(cu_seqlens_padded, size, torch.distributed.get_rank(group=cp_group))
    total = len(rows) * size
    faults = []
    shards: list[torch.Tensor | None] = []
    for name, x in given.items():
        if x is None:
            shards.append(None)
            continue
        axis = next((axis for axis in (1, 0) if axis < x.ndim and x.shape[axis] == total), None)
        if axis is None:
            faults.append(
                f"{name} has shape {list(x.shape)}, expected {total} rows, where cu_seqlens_padded ends, in the first "
                "or the second place"
            )
        else:
            shards.append(x.index_select(axis, rows.to(x.device)))
    if faults:
        raise LayoutError(faults)
    ids, labels, positions = shards
    return ids, labels, positions


class _Slots(NamedTuple):
    """Sequences without padding between them, and the slots that they are to have; int64, on the device of the offsets.

    Attributes:
        ends: ``[b]``, where each sequence ends.
        padding: ``[b]``, the rows that its slot has more.
        begins: ``[b + 1]``, where each slot begins.
        real_rows: of all sequences.
        rows: of all slots.
    """

    ends: torch.Tensor
    padding: torch.Tensor
    begins: torch.Tensor
    real_rows: int
    rows: int

    @classmethod
    def of(cls, cu_seqlens: torch.Tensor, multiple: SupportsIndex) -> _Slots:
        """Of offsets, each slot a multiple. One host sync; where there is a fault, another to name it."""
        (factor,) = integers(divisibility_factor=multiple)
        faults = shape_faults("cu_seqlens", cu_seqlens, "[b + 1]")
        reason = why_unreadable(cu_seqlens)
        if reason is not None:
            raise HostReadError(
                f"the values of cu_seqlens decide how many rows there are, and they cannot be read, because {reason}"
            )
        if faults or not len(cu_seqlens) or factor < 1:
            _refuse(cu_seqlens, factor)
        with ordinary():
            wide = cu_seqlens.long()
            starts, ends = wide[:-1], wide[1:]
            # A slot of more rows is beyond int32 anyway, and the sum of many would be beyond int64.
            padding = (starts - ends).remainder_(min(factor, INT32_MAX + 1))
            begins = wide.clone()
            begins[1:].add_(padding.cumsum(0))
            *real, rows = torch.cat([wide, begins[-1:]]).tolist()
        if real[0] != 0 or sorted(real) != real or max(real[-1], rows) > INT32_MAX:
            _refuse(cu_seqlens, factor)
        return cls(ends, padding, begins, real[-1], rows)


def _refuse(cu_seqlens: torch.Tensor, factor: int) -> None:
    """Name what is wrong with them, if anything is."""
    lengths = check_offsets(cu_seqlens, None, None, None).lengths or ()
    if factor < 1:
        raise LayoutError([f"divisibility_factor is {factor}, expected at least 1"])
    check_slots(lengths, Slots(factor), {})
