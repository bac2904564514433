"""Which rows of a packed buffer each context-parallel rank holds: arithmetic on indices, and nothing else.

``b`` sequences, ``c`` ranks, ``t`` rows of the buffer. The slot of each sequence is cut into ``2 * c`` chunks of equal
size, and rank ``r`` holds chunks ``r`` and ``2 * c - 1 - r``, one behind the other: its first and its second *half*.
So every rank gets as much work under a causal mask, and on every rank the real rows are a prefix of the stored ones::

    slot of 8, 7 real rows, 2 ranks    0 1 | 2 3 | 4 5 | 6 .
    rank 0 holds chunks 0 and 3        0 1   6 .
    rank 1 holds chunks 1 and 2        2 3   4 5

Lengths are exact for every layout: nothing is the quotient of a length and the number of ranks.

Source: the zigzag partition of Transformer Engine's THD format; the reports in its issues 1930 and 3331.
"""

from __future__ import annotations

import math
from itertools import pairwise
from typing import SupportsIndex

import torch

from te_pkg.attention.errors import ArgumentError, ArgumentTypeError, HostReadError, LayoutError
from te_pkg.attention.layout import PackedLayout
from te_pkg.attention.layout_checks import check_offsets
from te_pkg.attention.offset_pairs import check_cp_size
from te_pkg.attention.offsets import integers, ordinary, shape_faults, why_unreadable

__all__ = [
    "check_slots",
    "get_cu_seqlens_on_cp_rank",
    "inverse_partition_indices",
    "partition_indices",
    "rank_cu_seqlens",
    "rank_half_lengths",
    "read_slots",
]


def partition_indices(cu_seqlens_padded: torch.Tensor, cp_size: SupportsIndex, cp_rank: SupportsIndex) -> torch.Tensor:
    """The rows of the whole buffer that a rank holds, in its order. One host sync for offsets on a CUDA device.

    >>> partition_indices(torch.tensor([0, 8]), cp_size=2, cp_rank=0)
    tensor([0, 1, 6, 7])

    Args:
        cu_seqlens_padded: int32 or int64 ``[b + 1]``, where each slot begins.
        cp_size: ``c``, at least 1.
        cp_rank: from 0 up to ``c - 1``.

    Returns:
        ``[cu_seqlens_padded[-1] / c]``, of the dtype and on the device of ``cu_seqlens_padded``.

    Raises:
        ArgumentTypeError: a ``TypeError``; an argument is of a type that cannot be meant.
        ArgumentError: a ``ValueError``; ``cp_size`` or ``cp_rank`` is out of range.
        LayoutError: a ``ValueError`` with every fault; no offsets, or a slot that is no multiple of ``2 * c``, because
            the rows that are left over would belong to no rank.
        HostReadError: a ``RuntimeError``; the offsets decide how many rows there are, and may not be read now.
    """
    size, rank = _check_rank(cp_size, cp_rank)
    end = read_slots(cu_seqlens_padded, size)[-1]
    with ordinary():
        local = torch.arange(end // size, dtype=cu_seqlens_padded.dtype, device=cu_seqlens_padded.device)
        # From the right, so that a slot without rows is passed over.
        slots = torch.searchsorted(cu_seqlens_padded[1:] // size, local, right=True)
        begin = cu_seqlens_padded[slots]
        inside = local - begin // size
        chunk = (cu_seqlens_padded.diff() // (2 * size))[slots]
        # The second half begins at chunk `2 * size - 1 - rank`, and `inside` has counted one chunk already.
        return begin + inside + rank * chunk + (2 * size - 2 - 2 * rank) * (chunk * (inside >= chunk))


def inverse_partition_indices(cu_seqlens_padded: torch.Tensor, cp_size: SupportsIndex) -> torch.Tensor:
    """Where each row of the whole buffer stands in the ranks' shards laid end to end. One host sync, as above.

    >>> shards = torch.tensor([0, 1, 6, 7, 2, 3, 4, 5])
    >>> shards[inverse_partition_indices(torch.tensor([0, 8]), cp_size=2)]
    tensor([0, 1, 2, 3, 4, 5, 6, 7])

    Args:
        cu_seqlens_padded: int32 or int64 ``[b + 1]``, where each slot begins.
        cp_size: ``c``, at least 1.

    Returns:
        ``[cu_seqlens_padded[-1]]``, of the dtype and on the device of ``cu_seqlens_padded``.

    Raises:
        ArgumentTypeError, ArgumentError, LayoutError, HostReadError: as :func:`partition_indices`.
    """
    size, _ = _check_rank(cp_size, 0)
    end = read_slots(cu_seqlens_padded, size)[-1]
    with ordinary():
        rows = torch.arange(end, dtype=cu_seqlens_padded.dtype, device=cu_seqlens_padded.device)
        slots = torch.searchsorted(cu_seqlens_padded[1:], rows, right=True)
        begin = cu_seqlens_padded[slots]
        inside = rows - begin
        chunk = (cu_seqlens_padded.diff() // (2 * size))[slots]
        nth = inside // chunk
        rank = torch.minimum(nth, 2 * size - 1 - nth)
        return rank * (end // size) + begin // size + chunk * (nth >= size) + inside % chunk


def rank_cu_seqlens(layout: PackedLayout, cp_size: SupportsIndex) -> torch.Tensor:
    """The offsets of every rank's shard at once. No host sync where the lengths are known, else one; capture-safe.

    >>> layout = PackedLayout.from_cu_seqlens(torch.tensor([0, 698]), torch.tensor([0, 704]))
    >>> rank_cu_seqlens(layout, 4)[:, 0].tolist()
    [[0, 170], [0, 176], [0, 176], [0, 176]]

    Args:
        layout: of the whole buffer; each slot a multiple of ``2 * c``.
        cp_size: ``c``, at least 1.

    Returns:
        int32 ``[c, 2, b + 1]`` on the device of ``layout``: for each rank the offsets of its real rows, and those of
        its slots.

    Raises:
        ArgumentTypeError: a ``TypeError``; an argument is of a type that cannot be meant.
        ArgumentError: a ``ValueError``; ``cp_size`` is less than 1.
        LayoutError: a ``ValueError`` that names each slot that is no multiple of ``2 * c``. Under CUDA graph capture
            and the like, where the lengths may not be read, there is no such check.
    """
    size = _check_layout(layout, cp_size)
    with ordinary():
        first, second = _half_lengths(layout, size)
        offsets = first.new_zeros((size, 2, layout.num_sequences + 1))
        torch.cumsum(first.add_(second), 1, out=offsets[:, 0, 1:])
        offsets[:, 1] = layout.cu_seqlens_padded // size
        return offsets


def rank_half_lengths(layout: PackedLayout, cp_size: SupportsIndex) -> torch.Tensor:
    """How many real rows each half of each sequence has on each rank. Host sync and errors as above.

    >>> layout = PackedLayout.from_cu_seqlens(torch.tensor([0, 7]), torch.tensor([0, 8]))
    >>> rank_half_lengths(layout, 2).tolist()
    [[[2, 1]], [[2, 2]]]

    Args:
        layout: of the whole buffer; each slot a multiple of ``2 * c``.
        cp_size: ``c``, at least 1.

    Returns:
        int32 ``[c, b, 2]`` on the device of ``layout``.

    Raises:
        ArgumentTypeError, ArgumentError, LayoutError: as :func:`rank_cu_seqlens`.
    """
    size = _check_layout(layout, cp_size)
    with ordinary():
        return torch.stack(_half_lengths(layout, size), -1)


def get_cu_seqlens_on_cp_rank(
    cu_seqlens: torch.Tensor,
    cu_seqlens_padded_on_cp_rank: torch.Tensor,
    cp_size: SupportsIndex,
    cp_rank: SupportsIndex,
    first_half: bool,
    second_half: bool,
) -> torch.Tensor:
    """The offsets of the real rows of one rank, of either half or of both. One host sync for a CUDA device.

    Drop-in for Transformer Engine's function of this name. Under CUDA graph capture and the like nothing is read, and
    values are not checked. :func:`rank_cu_seqlens` gives all ranks' at once.

    >>> get_cu_seqlens_on_cp_rank(torch.tensor([0, 7]), torch.tensor([0, 4]), 2, 0, True, True)
    tensor([0, 3])

    Args:
        cu_seqlens: int32 or int64 ``[b + 1]``, real rows of the whole buffer.
        cu_seqlens_padded_on_cp_rank: likewise, where each slot begins on the rank: two halves for each sequence.
        cp_size: ``c``, at least 1.
        cp_rank: from 0 up to ``c - 1``.
        first_half: whether the first halves count.
        second_half: whether the second ones do.

    Returns:
        ``[b + 1]``, of the dtype and on the device of ``cu_seqlens``.

    Raises:
        ArgumentTypeError: a ``TypeError``; an argument is of a type that cannot be meant.
        ArgumentError: a ``ValueError``; ``cp_size`` or ``cp_rank`` is out of range.
        LayoutError: a ``ValueError`` with every fault; no offsets, a slot that has no two halves, or a sequence longer
            than the slots of all ranks together.
    """
    size, rank = _check_rank(cp_size, cp_rank)
    faults = []
    for name, tensor in (("cu_seqlens", cu_seqlens), ("cu_seqlens_padded_on_cp_rank", cu_seqlens_padded_on_cp_rank)):
        faults += shape_faults(name, tensor, "[b + 1]")
    if not faults and len(cu_seqlens) != len(cu_seqlens_padded_on_cp_rank):
        faults.append(
            f"cu_seqlens_padded_on_cp_rank has {len(cu_seqlens_padded_on_cp_rank)} entries, expected "
            f"{len(cu_seqlens)} as cu_seqlens"
        )
    if not faults and why_unreadable(cu_seqlens, cu_seqlens_padded_on_cp_rank) is None:
        faults += _rank_faults(cu_seqlens, cu_seqlens_padded_on_cp_rank, size)
    if faults:
        raise LayoutError(faults)
    with ordinary():
        lengths = cu_seqlens.diff()
        chunk = cu_seqlens_padded_on_cp_rank.diff().to(lengths.dtype) // 2
        counts = torch.zeros_like(lengths)
        for nth, wanted in ((rank, first_half), (2 * size - 1 - rank, second_half)):
            if wanted:
                counts += (lengths - nth * chunk).clamp_(min=0).minimum(chunk)
        offsets = torch.zeros_like(cu_seqlens)
        torch.cumsum(counts, 0, dtype=offsets.dtype, out=offsets[1:])
        return offsets


def read_slots(cu_seqlens_padded: torch.Tensor, cp_size: int, name: str = "cu_seqlens_padded") -> tuple[int, ...]:
    """The ``b + 1`` offsets of slots on the host, each slot a multiple of ``2 * cp_size``. One host sync.

    Raises:
        ArgumentTypeError, LayoutError, HostReadError: as :func:`partition_indices`.
    """
    if isinstance(cu_seqlens_padded, torch.Tensor):
        reason = why_unreadable(cu_seqlens_padded)
        if reason is not None:
            raise HostReadError(
                f"the values of {name} decide how many rows there are, and they cannot be read, because {reason}"
            )
    try:
        offsets = check_offsets(cu_seqlens_padded, None, None, None).slot_offsets or (0,)
    except LayoutError as error:
        raise LayoutError(fault.replace("cu_seqlens", name, 1) for fault in error.faults) from None
    except ArgumentTypeError as error:
        raise ArgumentTypeError(str(error).replace("cu_seqlens", name, 1)) from None
    check_slots(offsets, cp_size, name)
    return offsets


def check_slots(slot_offsets: tuple[int, ...], cp_size: int, name: str) -> None:
    """Refuse slots that cannot be cut into ``2 * cp_size`` equal chunks.

    >>> check_slots((0, 6, 13), 2, "cu_seqlens_padded")
    Traceback (most recent call last):
    te_pkg.attention.errors.LayoutError: cu_seqlens_padded: the slot of sequence 0 has 6 rows, expected a multiple of \
4, twice the 2 ranks; hint: pad each sequence, as with layout.padded_to(4)
    cu_seqlens_padded: the slot of sequence 1 has 7 rows, expected a multiple of 4, twice the 2 ranks

    Raises:
        LayoutError: a ``ValueError`` that names each of them.
    """
    multiple = 2 * cp_size
    if math.gcd(*slot_offsets) % multiple == 0:
        return
    faults = [
        f"{name}: the slot of sequence {i} has {end - begin} rows, expected a multiple of {multiple}, twice the "
        f"{cp_size} rank{'' if cp_size == 1 else 's'}"
        for i, (begin, end) in enumerate(pairwise(slot_offsets))
        if (end - begin) % multiple
    ]
    faults[0] += f"; hint: pad each sequence, as with layout.padded_to({multiple})"
    raise LayoutError(faults)


def _check_rank(cp_size: SupportsIndex, cp_rank: SupportsIndex) -> tuple[int, int]:
    size, rank = integers(cp_size=cp_size, cp_rank=cp_rank)
    check_cp_size(size)
    if not 0 <= rank < size:
        raise ArgumentError(f"cp_rank is {rank}, expected at least 0 and less than cp_size {size}")
    return size, rank


def _check_layout(layout: PackedLayout, cp_size: SupportsIndex) -> int:
    if not isinstance(layout, PackedLayout):
        raise ArgumentTypeError(f"layout must be a PackedLayout, got {layout!r}")
    (size,) = integers(cp_size=cp_size)
    check_cp_size(size)
    if layout.slot_offsets is not None:
        check_slots(layout.slot_offsets, size, "layout")
    elif why_unreadable(layout.cu_seqlens_padded) is None:
        read_slots(layout.cu_seqlens_padded, size, "layout.cu_seqlens_padded")
    return size


def _half_lengths(layout: PackedLayout, cp_size: int) -> tuple[torch.Tensor, torch.Tensor]:
    """int32 ``[c, b]`` each, the lengths of the first halves and of the second ones. No check."""
    chunk = layout.cu_seqlens_padded.diff() // (2 * cp_size)
    nth = torch.arange(2 * cp_size, dtype=torch.int32, device=layout.device).unsqueeze(1)
    held = torch.minimum((layout.cu_seqlens.diff() - nth * chunk).clamp_(min=0), chunk)
    return held[:cp_size], held[cp_size:].flip(0)


def _rank_faults(cu_seqlens: torch.Tensor, padded: torch.Tensor, cp_size: int) -> list[str]:
    """What is wrong with the values. Host sync, one if both are on one device."""
    real = check_offsets(cu_seqlens, None, None, None).slot_offsets or (0,)
    try:
        slots = check_offsets(padded, None, None, None).slot_offsets or (0,)
    except LayoutError as error:
        return [fault.replace("cu_seqlens", "cu_seqlens_padded_on_cp_rank", 1) for fault in error.faults]
    faults = []
    for i in range(len(real) - 1):
        length, slot = real[i + 1] - real[i], slots[i + 1] - slots[i]
        if slot % 2:
            faults.append(f"cu_seqlens_padded_on_cp_rank: slot {i} has {slot} rows, expected two halves of equal size")
        if length > slot * cp_size:
            faults.append(
                f"cu_seqlens: sequence {i} has {length} rows, expected at most {slot * cp_size}, which its slots of "
                f"{slot} rows on {cp_size} ranks hold"
            )
    return faults
