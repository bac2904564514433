"""Where the sequences of a packed buffer lie: :class:`PackedLayout`, a value that is checked once.

``t`` rows of the buffer, ``b`` sequences, ``s`` rows of the longest one. Sequence ``i`` is stored in its *slot*, the
rows ``cu_seqlens_padded[i]`` up to ``cu_seqlens_padded[i + 1]``; real are the first
``cu_seqlens[i + 1] - cu_seqlens[i]`` of them. ``cu_seqlens`` counts real rows without gaps: it is no storage offset::

    a a a . | b b | c c c c .     cu_seqlens = [0, 3, 5, 9]   cu_seqlens_padded = [0, 4, 6, 11]   t = 11
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import SupportsIndex

import torch
from torch.compiler import is_compiling

from te_pkg.attention.caching import Device, resolve_device
from te_pkg.attention.errors import HostReadError, LayoutError
from te_pkg.attention.offsets import (
    INT32_MAX,
    CheckedOffsets,
    check_lengths,
    check_offsets,
    integers,
    offsets_from_counts,
    ordinary,
    tensor_of,
    why_unreadable,
)

__all__ = ["PackedLayout", "Padding", "classify_padding"]


class Padding(enum.Flag):
    """Where a packed buffer has rows that belong to no sequence.

    >>> classify_padding(torch.tensor([0, 3, 8]), torch.tensor([0, 4, 12]), total_tokens=16)
    <Padding.LAST|BETWEEN|CAPACITY: 7>
    """

    NONE = 0
    """Every row is real."""
    LAST = 1
    """The last sequence's slot is longer than it: ``cu = [0, 698]``, ``cu_padded = [0, 704]``."""
    BETWEEN = 2
    """An earlier slot is longer than its sequence: ``cu = [0, 3, 8]``, ``cu_padded = [0, 4, 9]``."""
    CAPACITY = 4
    """Rows lie beyond the last slot, in a static buffer: ``cu_padded[-1] = 12``, ``t = 16``."""


@dataclass(frozen=True, eq=False, repr=False)
class PackedLayout:
    cu_seqlens: torch.Tensor
    cu_seqlens_padded: torch.Tensor
    total_tokens: int
    max_seqlen: int
    lengths: tuple[int, ...] | None = None
    slot_offsets: tuple[int, ...] | None = field(init=False)
    real_tokens: int | None = field(init=False)
    _kinds: Padding | None = field(init=False)

    def __post_init__(self) -> None:
        checked = check_offsets(self.cu_seqlens, self.cu_seqlens_padded, self.total_tokens, self.max_seqlen)
        if None not in (self.lengths, checked.lengths) and self.lengths != checked.lengths:
            raise LayoutError([f"lengths is {self.lengths!r}, expected {checked.lengths!r} as cu_seqlens says"])
        self._set(checked)

    @classmethod
    def _trusted(cls, checked: CheckedOffsets) -> PackedLayout:
        self = object.__new__(cls)
        self._set(checked)
        return self

    def _set(self, checked: CheckedOffsets) -> None:
        for name, value in zip(CheckedOffsets._fields, checked, strict=True):
            object.__setattr__(self, name, value)
        object.__setattr__(self, "_kinds", _kinds_of(checked))

    @classmethod
    def from_lengths(
        cls,
        lengths: Sequence[SupportsIndex] | torch.Tensor,
        pad_to_multiple: SupportsIndex = 1,
        total_tokens: SupportsIndex | None = None,
        device: Device = None,
    ) -> PackedLayout:
        (multiple,) = integers(pad_to_multiple=pad_to_multiple)
        faults = [f"pad_to_multiple is {multiple}, expected at least 1"] if multiple < 1 else []
        if isinstance(lengths, torch.Tensor):
            device = lengths.device if device is None else device
            lengths = lengths.tolist()
        host, wrong = check_lengths(lengths)
        faults += wrong
        if faults:
            raise LayoutError(faults)
        slots = [length + -length % multiple for length in host] if multiple > 1 else host
        return cls._from_host(host, slots, total_tokens, max(host, default=0), device)

    @classmethod
    def _from_host(
        cls,
        lengths: tuple[int, ...],
        slots: Iterable[int],
        total_tokens: SupportsIndex | None,
        max_seqlen: int,
        device: Device,
    ) -> PackedLayout:
        ends = tuple(accumulate(slots, initial=0))
        total = ends[-1] if total_tokens is None else integers(total_tokens=total_tokens)[0]
        faults = []
        if total < ends[-1]:
            faults.append(f"total_tokens {total} is less than {ends[-1]}, where the last slot ends")
        if max(total, ends[-1]) > INT32_MAX:
            faults.append(f"{max(total, ends[-1])} rows are beyond int32, expected at most {INT32_MAX}")
        if faults:
            raise LayoutError(faults)
        place = _place(device)
        real_tokens = sum(lengths)
        padded = tensor_of(ends, place)
        cu = padded if real_tokens == ends[-1] else tensor_of(accumulate(lengths, initial=0), place)
        return cls._trusted(CheckedOffsets(cu, padded, total, max_seqlen, lengths, ends, real_tokens))

    @classmethod
    def from_cu_seqlens(
        cls,
        cu_seqlens: torch.Tensor,
        cu_seqlens_padded: torch.Tensor | None = None,
        total_tokens: SupportsIndex | None = None,
        max_seqlen: SupportsIndex | None = None,
    ) -> PackedLayout:
        return cls._trusted(check_offsets(cu_seqlens, cu_seqlens_padded, total_tokens, max_seqlen))

    @property
    def num_sequences(self) -> int:
        return self.cu_seqlens.shape[0] - 1

    @property
    def device(self) -> torch.device:
        return self.cu_seqlens.device

    def _read(self, what: str) -> CheckedOffsets:
        reason = why_unreadable(self.cu_seqlens, self.cu_seqlens_padded)
        if reason is not None:
            raise HostReadError(
                f"{what} needs the lengths on the host, and they cannot be read, because {reason}; hint: make the "
                "layout before, from a list of lengths"
            )
        return check_offsets(self.cu_seqlens, self.cu_seqlens_padded, self.total_tokens, self.max_seqlen)

    def padding(self) -> Padding:
        kinds = self._kinds
        return _kinds_of(self._read("padding()")) if kinds is None else kinds


def _place(device: Device) -> torch.device:
    if not is_compiling():
        return resolve_device(device)
    # Dynamo follows neither that nor `torch.get_default_device`.
    return torch.empty(0, device=device).device


def _kinds_of(checked: CheckedOffsets) -> Padding | None:
    lengths, slot_offsets, real_tokens = checked.lengths, checked.slot_offsets, checked.real_tokens
    if lengths is None or slot_offsets is None or real_tokens is None:
        return None
    kinds = Padding.NONE
    if lengths:
        last_start, end = slot_offsets[-2:]
        # Slots are never shorter than sequences, so what is missing before the last one was lost in gaps.
        if last_start != real_tokens - lengths[-1]:
            kinds |= Padding.BETWEEN
        if end - last_start != lengths[-1]:
            kinds |= Padding.LAST
    if slot_offsets[-1] < checked.total_tokens:
        kinds |= Padding.CAPACITY
    return kinds


def classify_padding(
    cu_seqlens: torch.Tensor,
    cu_seqlens_padded: torch.Tensor | None = None,
    total_tokens: SupportsIndex | None = None,
) -> Padding:
    return PackedLayout.from_cu_seqlens(cu_seqlens, cu_seqlens_padded, total_tokens).padding()
