"""Layouts of lengths: numbers of rows become :class:`~te_pkg.attention.layout_checks.CheckedOffsets`, or one error.

``b`` sequences.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import accumulate
from typing import SupportsIndex, cast

import torch

from te_pkg.attention.caching import Device
from te_pkg.attention.errors import ArgumentTypeError, LayoutError
from te_pkg.attention.layout_checks import CheckedOffsets, check_offsets, host_lengths, size_faults, sizes_of
from te_pkg.attention.offsets import (
    INT32_MAX,
    as_integers,
    is_traced,
    offsets_of_counts,
    place_of,
    refuse_copy,
    shape_faults,
    tensor_of,
    why_unreadable,
)

__all__ = ["Slots", "check_lengths", "check_slots"]


class Slots:
    """How many rows the slot of each sequence has: its length rounded up, or as many for all.

    >>> Slots(multiple=4).of((3, 8)), Slots(rows=9).of((3, 8))
    ([4, 8], [9, 9])
    """

    __slots__ = ("multiple", "rows")

    def __init__(self, multiple: int = 1, rows: int | None = None) -> None:
        self.multiple = multiple
        self.rows = rows

    def of(self, lengths: Sequence[int]) -> Sequence[int]:
        """The rows of each slot, for lengths that the host knows."""
        if self.rows is not None:
            return [self.rows] * len(lengths)
        return lengths if self.multiple == 1 else [length + -length % self.multiple for length in lengths]

    def of_tensor(self, lengths: torch.Tensor) -> torch.Tensor:
        """Likewise, by operations on the device. No host sync."""
        return lengths + -lengths % self.multiple if self.rows is None else torch.full_like(lengths, self.rows)

    def faults(self, lengths: Sequence[int]) -> list[str]:
        """Where a sequence is longer than its slot."""
        rows = self.rows
        if rows is None or rows < 0 or max((0, *lengths)) <= rows:
            return []
        return [
            f"lengths[{i}] is {length}, expected at most {rows}, the rows of its slot"
            for i, length in enumerate(lengths)
            if length > rows
        ]


def check_lengths(
    lengths: Iterable[SupportsIndex] | torch.Tensor,
    total_tokens: SupportsIndex | None,
    max_seqlen: SupportsIndex | None,
    device: Device,
    *,
    pad_to_multiple: SupportsIndex = 1,
    as_batch: bool = False,
) -> CheckedOffsets:
    """Of lengths. Numbers on the host never sync; a tensor on a CUDA device is read once: one host sync.

    Args:
        device: None: that of a tensor, else torch's default.
        as_batch: each slot has ``max_seqlen`` rows.

    Raises:
        ArgumentTypeError: a ``TypeError`` with every fault; an entry or a size is no integer.
        LayoutError: a ``ValueError`` with every fault.
        CaptureError: a ``RuntimeError``; a copy between host and device under CUDA graph capture.
    """
    tensor = lengths if isinstance(lengths, torch.Tensor) else None
    reason = None if tensor is None else why_unreadable(tensor)
    if as_batch:
        named, strange = as_integers({"max_seqlen": cast(SupportsIndex, max_seqlen)})
        max_seqlen = named.get("max_seqlen", 0)
        if tensor is not None and reason is not None:
            total_tokens = (*tensor.shape, 0)[0] * max_seqlen
    else:
        named, strange = as_integers({"pad_to_multiple": pad_to_multiple})
    multiple = named.get("pad_to_multiple", 1)
    faults = [f"pad_to_multiple is {multiple}, expected at least 1"] if multiple < 1 else []
    slots = Slots(multiple, named.get("max_seqlen"))
    sizes, not_integers, of_sizes = sizes_of(total_tokens, max_seqlen, reason, tensor is not None and is_traced(tensor))
    host: tuple[int, ...] | None = None
    wrong = [] if tensor is None else shape_faults("lengths", tensor, "[b]")
    if reason is None and not wrong:
        host, of_entries, wrong = host_lengths(lengths)
        strange = of_entries + strange
    faults += wrong
    strange += not_integers
    if strange:
        raise ArgumentTypeError("\n".join([*strange, *faults]))
    if tensor is not None and reason is not None and not faults:
        place = tensor.device if device is None else place_of(device)
        refuse_copy(tensor.device, place)
        counts = tensor.to(place)
        stored = None if not as_batch and multiple == 1 else offsets_of_counts(slots.of_tensor(counts))
        return check_offsets(offsets_of_counts(counts), stored, total_tokens, max_seqlen)
    faults += slots.faults(host or ())
    if host is None or faults:
        # A batch's longest has been held against its slot already.
        known = () if as_batch or wrong or host is None else host
        raise LayoutError([*faults, *(of_sizes if reason else size_faults(None, known, sizes))])
    ends = check_slots(host, slots, sizes)
    place = place_of(tensor.device if device is None and tensor is not None else device)
    real_tokens = sum(host)
    cu_padded = tensor_of(ends, place)
    return CheckedOffsets(
        cu_padded if real_tokens == ends[-1] else tensor_of(accumulate(host, initial=0), place),
        cu_padded,
        sizes.get("total_tokens", ends[-1]),
        # Not `default=`, which Dynamo does not follow where the numbers are symbols (torch 2.13).
        sizes["max_seqlen"] if "max_seqlen" in sizes else max((0, *host)),
        host,
        ends,
        real_tokens,
    )


def check_slots(lengths: tuple[int, ...], slots: Slots, sizes: dict[str, int]) -> tuple[int, ...]:
    """The offsets of the slots on the host, ``b + 1`` numbers.

    Raises:
        LayoutError: a ``ValueError`` with every fault.
    """
    offsets = tuple(accumulate(slots.of(lengths), initial=0))
    faults = []
    if offsets[-1] > INT32_MAX:
        faults.append(f"the slots of lengths end at row {offsets[-1]}, beyond int32, expected at most {INT32_MAX}")
    faults += size_faults(offsets[-1], lengths, sizes)
    if faults:
        raise LayoutError(faults)
    return offsets
