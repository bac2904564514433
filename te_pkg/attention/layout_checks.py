"""The validation of offsets: whatever describes a layout becomes :class:`CheckedOffsets`, or one error.

``t`` rows of the buffer, ``b`` sequences, ``s`` rows of the longest one.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import NamedTuple, SupportsIndex, cast

import torch
from torch.compiler import is_compiling

from te_pkg.attention.errors import ArgumentTypeError, HostReadError, LayoutError
from te_pkg.attention.offsets import (
    INT32_MAX,
    as_int32,
    as_integers,
    is_traced,
    shape_faults,
    why_unreadable,
)
from te_pkg.attention.padding import Padding, padding_of

__all__ = [
    "CheckedOffsets",
    "check_offsets",
    "classify_padding",
    "host_lengths",
    "size_faults",
    "sizes_of",
]


class CheckedOffsets(NamedTuple):
    """Offsets without a fault, with what the host knows of them; the fields are those of ``PackedLayout``."""

    cu_seqlens: torch.Tensor
    cu_seqlens_padded: torch.Tensor
    total_tokens: int
    max_seqlen: int
    lengths: tuple[int, ...] | None = None
    slot_offsets: tuple[int, ...] | None = None
    real_tokens: int | None = None

    @property
    def padding(self) -> Padding | None:
        """The kinds of padding, or ``None`` where the host does not know."""
        if self.lengths is None or self.slot_offsets is None or self.real_tokens is None:
            return None
        return padding_of(self.lengths, self.slot_offsets, self.real_tokens, self.total_tokens)


def check_offsets(
    cu_seqlens: torch.Tensor,
    cu_seqlens_padded: torch.Tensor | None,
    total_tokens: SupportsIndex | None,
    max_seqlen: SupportsIndex | None,
    lengths: Iterable[SupportsIndex] | None = None,
    *,
    unread: str | None = None,
) -> CheckedOffsets:
    """Of offsets. Those on a CUDA device are read once, together: one host sync.

    Where values may not be read, see :func:`~te_pkg.attention.offsets.why_unreadable`, only shapes, dtypes and devices
    are looked at, and both sizes must be given.

    Args:
        lengths: what a caller believes that ``cu_seqlens`` holds; None: nothing.
        unread: why the values shall not be read, where they might.

    Raises:
        ArgumentTypeError: a ``TypeError`` with every fault; an argument is of a type that cannot be meant.
        LayoutError: a ``ValueError`` with every fault.
    """
    tensors = {"cu_seqlens": cu_seqlens}
    if cu_seqlens_padded is not None and cu_seqlens_padded is not cu_seqlens:
        tensors["cu_seqlens_padded"] = cu_seqlens_padded
    strange = [
        f"{name} must be a tensor, got {value!r}; hint: from_lengths takes numbers on the host"
        for name, value in tensors.items()
        if not isinstance(value, torch.Tensor)
    ]
    given = [tensor for tensor in tensors.values() if isinstance(tensor, torch.Tensor)]
    reason = why_unreadable(*given) or unread
    sizes, not_integers, faults = sizes_of(total_tokens, max_seqlen, reason, is_traced(*given))
    believed, wrong_types, wrong = ((), [], []) if lengths is None else host_lengths(lengths)
    strange += not_integers + wrong_types
    if strange:
        raise ArgumentTypeError("\n".join(strange))
    faults += wrong
    sound = {}
    for name, tensor in tensors.items():
        wrong = shape_faults(name, tensor, "[b + 1]")
        if tensor.ndim == 1 and tensor.shape[0] == 0:
            wrong.insert(0, f"{name} is empty, expected [b + 1] entries, the first one 0")
        faults += wrong
        if not wrong:
            sound[name] = tensor
    if len(sound) == 2:
        faults += _partner_faults(**sound)
    if reason is not None:
        if lengths is not None:
            faults.append(
                f"lengths is {lengths!r}, expected None: it cannot be compared with cu_seqlens, because {reason}; "
                "hint: from_lengths makes a layout of numbers on the host"
            )
        if faults:
            raise LayoutError(faults)
        cu, cu_padded = _stored(tensors)
        return CheckedOffsets(cu, cu_padded, sizes["total_tokens"], sizes["max_seqlen"])

    values = _read(sound)
    for name, entries in values.items():
        faults += _offset_faults(name, entries)
    real = values.get("cu_seqlens")
    slots = values.get("cu_seqlens_padded") if "cu_seqlens_padded" in tensors else real
    found = () if real is None else tuple(map(operator.sub, real[1:], real))
    if lengths is not None and real is not None and believed != found:
        faults.append(f"lengths is {believed!r}, expected {found!r}, as cu_seqlens has them")
    if slots is not None and slots is not real:
        faults += _slot_faults(found, slots)
    faults += size_faults(None if slots is None else slots[-1], found, sizes)
    if faults or real is None or slots is None:
        raise LayoutError(faults)
    cu, cu_padded = _stored(tensors)
    return CheckedOffsets(
        cu,
        cu if slots == real else cu_padded,
        sizes.get("total_tokens", slots[-1]),
        sizes["max_seqlen"] if "max_seqlen" in sizes else max((0, *found)),
        found,
        tuple(slots),
        real[-1],
    )


def classify_padding(
    cu_seqlens: torch.Tensor,
    cu_seqlens_padded: torch.Tensor | None = None,
    total_tokens: SupportsIndex | None = None,
) -> Padding:
    """Where a buffer with these offsets has rows of no sequence, by value. One host sync for a CUDA device.

    >>> classify_padding(torch.tensor([0, 3, 8]), torch.tensor([0, 4, 12]), total_tokens=16)
    <Padding.LAST|BETWEEN|CAPACITY: 7>

    Args:
        cu_seqlens: int32 or int64 ``[b + 1]``, real rows.
        cu_seqlens_padded: likewise, the slots; None: no slot is longer than its sequence.
        total_tokens: ``t``; None: up to the end of the last slot.

    Raises:
        LayoutError: a ``ValueError``; as :class:`PackedLayout`.
        HostReadError: a ``RuntimeError``; the offsets may not be read now.
    """
    given = (cu_seqlens, cu_seqlens_padded)
    reason = why_unreadable(*(tensor for tensor in given if isinstance(tensor, torch.Tensor)))
    if reason is not None:
        raise HostReadError(f"classify_padding() compares values, and they cannot be read, because {reason}")
    return check_offsets(cu_seqlens, cu_seqlens_padded, total_tokens, None).padding or Padding.NONE


def host_lengths(
    lengths: Iterable[SupportsIndex] | torch.Tensor,
) -> tuple[tuple[int, ...], list[str], list[str]]:
    """Numbers of rows as a tuple of ``int``, and the faults of their types and of their values.

    A tensor is read: one host sync.

    >>> host_lengths([3, -1, 0.5])
    ((3, -1), ['lengths[2] must be an integer, got 0.5'], ['lengths[1] is -1, expected at least 0'])
    """
    try:
        found = cast("tuple[int, ...]", tuple(lengths.tolist() if isinstance(lengths, torch.Tensor) else iter(lengths)))
    except TypeError:
        return (), [f"lengths must be numbers of rows, one for each sequence, got {lengths!r}"], []
    named = None
    strange: list[str] = []
    if not set(map(type, found)) <= {int}:
        named, strange = as_integers({f"lengths[{i}]": length for i, length in enumerate(found)})
        found = tuple(named.values())
    if not found or min(found) >= 0:
        return found, strange, []
    names = named or [f"lengths[{i}]" for i in range(len(found))]
    faults = [
        f"{name} is {length}, expected at least 0" for name, length in zip(names, found, strict=True) if length < 0
    ]
    return found, strange, faults


def size_faults(end: int | None, lengths: Sequence[int], sizes: dict[str, int]) -> list[str]:
    """What is wrong with ``total_tokens`` and ``max_seqlen``, where they are among ``sizes``.

    Args:
        end: where the last slot ends; None: not known.
        lengths: empty where they are not known.
    """
    faults = []
    total = sizes.get("total_tokens")
    if total is not None:
        short = end is not None and total < end
        if short:
            faults.append(f"total_tokens {total} is less than {end}, where the last slot ends")
        if not short or total > INT32_MAX:
            faults += _range_faults("total_tokens", total)
    bound = sizes.get("max_seqlen")
    if bound is not None:
        longest = max((0, *lengths))
        if bound < longest != 0:
            faults.append(f"max_seqlen {bound} is less than {longest}, the length of sequence {lengths.index(longest)}")
        else:
            faults += _range_faults("max_seqlen", bound)
    return faults


def sizes_of(
    total_tokens: SupportsIndex | None, max_seqlen: SupportsIndex | None, unreadable: str | None, traced: bool
) -> tuple[dict[str, int], list[str], list[str]]:
    """The sizes that are given, the faults of their types, and those of their values if no offsets can be read."""
    sizes = {"total_tokens": total_tokens, "max_seqlen": max_seqlen}
    given = {name: size for name, size in sizes.items() if size is not None}
    if unreadable is None:
        return *as_integers(given), []
    faults = [
        f"{name} is not given, expected an integer: it cannot be read off, because {unreadable}"
        for name in sizes
        if name not in given
    ]
    for name, size in list(given.items()):
        if isinstance(size, torch.Tensor) and not traced:
            faults.append(f"{name} is a tensor, expected an integer: it cannot be read, because {unreadable}")
            del given[name]
    known, strange = as_integers(given)
    for name, size in known.items():
        if type(size) is int and not is_compiling():  # a symbol is left alone
            faults += _range_faults(name, size)
    return known, strange, faults


def _range_faults(name: str, size: int) -> list[str]:
    if 0 <= size <= INT32_MAX:
        return []
    return [f"{name} is {size}, expected at least 0" if size < 0 else f"{name} is {size}, expected at most {INT32_MAX}"]


def _stored(tensors: dict[str, torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
    cu = as_int32(tensors["cu_seqlens"])
    return cu, as_int32(tensors["cu_seqlens_padded"]) if "cu_seqlens_padded" in tensors else cu


def _partner_faults(cu_seqlens: torch.Tensor, cu_seqlens_padded: torch.Tensor) -> list[str]:
    faults = []
    if cu_seqlens_padded.device != cu_seqlens.device:
        faults.append(f"cu_seqlens_padded is on {cu_seqlens_padded.device}, expected {cu_seqlens.device} as cu_seqlens")
    found, expected = cu_seqlens_padded.shape[0], cu_seqlens.shape[0]
    if found != expected:
        faults.append(f"cu_seqlens_padded has {found} entries, expected {expected} as cu_seqlens")
    return faults


def _read(tensors: dict[str, torch.Tensor]) -> dict[str, list[int]]:
    if len({tensor.device for tensor in tensors.values()}) != 1:
        return {name: tensor.tolist() for name, tensor in tensors.items()}
    entries = torch.cat(list(tensors.values())).tolist()
    found = {}
    for name, tensor in tensors.items():
        found[name], entries = entries[: len(tensor)], entries[len(tensor) :]
    return found


def _offset_faults(name: str, entries: Sequence[int]) -> list[str]:
    faults = []
    if entries[0] != 0:
        faults.append(f"{name} does not start at 0: entry 0 is {entries[0]}, expected 0")
    if not all(map(operator.le, entries, entries[1:])):
        faults += [
            f"{name} decreases at entry {i}: {entry} after {before}, expected at least {before}"
            for i, (before, entry) in enumerate(pairwise(entries), start=1)
            if entry < before
        ]
    if max(entries) > INT32_MAX:
        i, entry = next((i, entry) for i, entry in enumerate(entries) if entry > INT32_MAX)
        faults.append(f"{name} is beyond int32 at entry {i}: {entry}, expected at most {INT32_MAX}")
    return faults


def _slot_faults(lengths: Sequence[int], offsets: Sequence[int]) -> list[str]:
    slots = tuple(map(operator.sub, offsets[1:], offsets))
    if all(map(operator.le, lengths, slots)):
        return []
    return [
        f"cu_seqlens_padded: slot {i} holds {slot} rows, sequence {i} has {length}, expected at least {length}"
        for i, (length, slot) in enumerate(zip(lengths, slots, strict=False))
        if 0 <= slot < length  # where offsets decrease, that has been said
    ]
