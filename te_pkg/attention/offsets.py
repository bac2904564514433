"""Offsets of packed sequences: built, read and checked. The only place that looks at their values.

``b`` sequences. Offsets count rows, int32, ``[b + 1]``, and start at 0.
"""

from __future__ import annotations

import operator
from array import array
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple, SupportsIndex, cast

import torch
from torch._C import _functorch, _get_tracing_state, _len_torch_dispatch_stack
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch._subclasses.functional_tensor import FunctionalTensor, FunctionalTensorMode
from torch.compiler import is_compiling
from torch.fx.experimental.proxy_tensor import ProxyTorchDispatchMode
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

from te_pkg.attention import capture
from te_pkg.attention.errors import ArgumentTypeError, LayoutError

__all__ = [
    "INT32_MAX",
    "CheckedOffsets",
    "check_lengths",
    "check_offsets",
    "integers",
    "offsets_from_counts",
    "ordinary",
    "tensor_of",
    "why_unreadable",
]

INT32_MAX = 2**31 - 1

_CAPTURE = "a CUDA graph is being captured"
_TRACE = "the program is being traced"
_NO_VALUES = "the tensors are fake or on the meta device"


class CheckedOffsets(NamedTuple):
    """Offsets without a fault, with what the host knows of them."""

    cu_seqlens: torch.Tensor
    cu_seqlens_padded: torch.Tensor
    total_tokens: int
    max_seqlen: int
    lengths: tuple[int, ...] | None = None
    slot_offsets: tuple[int, ...] | None = None
    real_tokens: int | None = None


def why_unreadable(*tensors: torch.Tensor) -> str | None:
    """Why the values of ``tensors`` may not be read now, or None where they may. Reads nothing.

    A dispatch mode of somebody else's, such as one that counts operations, is no reason: the values are there.
    """
    if is_compiling():
        return _TRACE
    if capture.is_capturing():
        return _CAPTURE
    if _get_tracing_state() is not None or (
        _len_torch_dispatch_stack()
        and any(
            isinstance(mode, (FakeTensorMode, FunctionalTensorMode, ProxyTorchDispatchMode))
            for mode in _get_current_dispatch_mode_stack()
        )
    ):
        return _TRACE
    for tensor in tensors:
        if tensor.is_meta or isinstance(tensor, FakeTensor):
            return _NO_VALUES
        if (
            isinstance(tensor, FunctionalTensor)
            or _functorch.is_functorch_wrapped_tensor(tensor)
            or torch._is_functional_tensor(tensor)
        ):
            return _TRACE
    return None


def ordinary() -> AbstractContextManager[Any]:
    """A block whose tensors are ordinary ones also under inference mode."""
    if not is_compiling() and torch.is_inference_mode_enabled():
        return torch.inference_mode(False)
    return nullcontext()


def tensor_of(values: Iterable[int], device: torch.device) -> torch.Tensor:
    """int32 ``[n]`` from numbers on the host, without a host sync. Every value fits into int32."""
    with ordinary():
        if is_compiling() or _len_torch_dispatch_stack():
            on_host = torch.tensor(list(values), dtype=torch.int32, device="cpu")
        else:
            buffer = array("i", values)  # a third of the time of `torch.tensor`, which asks each number for its type
            if not buffer:
                return torch.empty(0, dtype=torch.int32, device=device)
            on_host = torch.frombuffer(buffer, dtype=torch.int32)
            if device.type == "cpu":
                return on_host.clone()  # memory of torch's own: aligned, and free of the array
        # From pageable memory too CUDA returns once the numbers are staged, and waits for no work of the device.
        return on_host.to(device, non_blocking=True)


def offsets_from_counts(counts: torch.Tensor) -> torch.Tensor:
    """int32 ``[b + 1]`` from ``[b]`` numbers of rows, by operations on their device. No host sync."""
    with ordinary():
        sums = counts.cumsum(0, dtype=torch.int64).to(torch.int32)
        return torch.cat([sums.new_zeros(1), sums])


def integers(**sizes: SupportsIndex) -> list[int]:
    """The sizes as ``int``, symbols as they are. To take one from a tensor on a device is a host sync.

    Raises:
        ArgumentTypeError: a ``TypeError`` that names each one that is no integer. A bool is none.
    """
    found: list[int] = []
    faults: list[str] = []
    for name, size in sizes.items():
        if type(size) is int:
            found.append(size)
            continue
        if isinstance(size, torch.SymInt) or (isinstance(size, torch.Tensor) and _get_tracing_state() is not None):
            found.append(cast(int, size))  # a symbol; to ask for its value would fix it
            continue
        try:
            if isinstance(size, bool) or (isinstance(size, torch.Tensor) and size.dtype == torch.bool):
                raise TypeError
            found.append(int(operator.index(size)))
        except TypeError:
            faults.append(f"{name} must be an integer, got {size!r}")
    if faults:
        raise ArgumentTypeError("\n".join(faults))
    return found


def check_lengths(lengths: Iterable[SupportsIndex]) -> tuple[tuple[int, ...], list[str]]:
    """Numbers of rows as a tuple of ``int``, and the faults of their values.

    Raises:
        ArgumentTypeError: a ``TypeError`` that names each entry that is no integer.
    """
    found = cast("tuple[int, ...]", tuple(lengths))
    if not set(map(type, found)) <= {int}:
        found = tuple(integers(**{f"lengths[{i}]": length for i, length in enumerate(found)}))
    if not found or min(found) >= 0:
        return found, []
    return found, [f"lengths[{i}] is {length}, expected at least 0" for i, length in enumerate(found) if length < 0]


def check_offsets(
    cu_seqlens: torch.Tensor,
    cu_seqlens_padded: torch.Tensor | None,
    total_tokens: SupportsIndex | None,
    max_seqlen: SupportsIndex | None,
) -> CheckedOffsets:
    """Bring offsets and sizes into their one form, or name everything that is wrong with them.

    Offsets on a CUDA device are read once, together: one host sync. Where values may not be read, see
    :func:`why_unreadable`, only shapes, dtypes and devices are looked at, and both sizes must be given.

    Raises:
        ArgumentTypeError: a ``TypeError``; an argument is of a type that cannot be meant.
        LayoutError: a ``ValueError`` with every fault.
    """
    tensors = {"cu_seqlens": cu_seqlens}
    if cu_seqlens_padded is not None and cu_seqlens_padded is not cu_seqlens:
        tensors["cu_seqlens_padded"] = cu_seqlens_padded
    if not all(isinstance(tensor, torch.Tensor) for tensor in tensors.values()):
        raise ArgumentTypeError(
            "\n".join(
                f"{name} must be a tensor, got {tensor!r}; hint: from_lengths takes a list"
                for name, tensor in tensors.items()
                if not isinstance(tensor, torch.Tensor)
            )
        )
    reason = why_unreadable(*tensors.values())
    sizes = _sizes(reason, total_tokens=total_tokens, max_seqlen=max_seqlen)
    faults: list[str] = []
    sound = {name: tensor for name, tensor in tensors.items() if not _shape_faults(name, tensor, faults)}
    _partner_faults(sound, faults)
    if reason is not None:
        faults += [
            f"{name} is not given, expected an integer: values cannot be read, because {reason}"
            for name in ("total_tokens", "max_seqlen")
            if name not in sizes
        ]
        if faults:
            raise LayoutError(faults)
        stored = {name: _as_int32(tensor) for name, tensor in tensors.items()}
        cu = stored["cu_seqlens"]
        padded = stored.get("cu_seqlens_padded", cu)
        return CheckedOffsets(cu, padded, sizes["total_tokens"], sizes["max_seqlen"])

    values = _read(sound)
    for name, entries in values.items():
        faults += _offset_faults(name, entries)
    real, slots = values.get("cu_seqlens"), values.get("cu_seqlens_padded")
    if "cu_seqlens_padded" not in tensors:
        slots = real
    lengths = () if real is None else tuple(map(operator.sub, real[1:], real))
    if real is not None and slots is not None and slots is not real:
        faults += [
            f"cu_seqlens_padded: slot {i} holds {end - start} rows, sequence {i} has {length}, expected a slot at "
            "least as long as its sequence"
            for i, (length, start, end) in enumerate(zip(lengths, slots, slots[1:], strict=False))
            if 0 <= end - start < length
        ]
    if slots is not None:
        faults += _end_faults(slots[-1], sizes)
    if lengths:
        faults += _longest_faults(lengths, sizes)
    if faults or real is None or slots is None:
        raise LayoutError(faults)
    stored = {name: _as_int32(tensor) for name, tensor in tensors.items()}
    cu = stored["cu_seqlens"]
    return CheckedOffsets(
        cu,
        cu if slots == real else stored["cu_seqlens_padded"],
        sizes.get("total_tokens", slots[-1]),
        sizes.get("max_seqlen", max(lengths, default=0)),
        lengths,
        tuple(slots),
        real[-1],
    )


def _sizes(reason: str | None, **sizes: SupportsIndex | None) -> dict[str, int]:
    given = {name: size for name, size in sizes.items() if size is not None}
    if reason is not None and reason is not _TRACE:
        # `operator.index` of a tensor would be the very read that is forbidden.
        inside = [name for name, size in given.items() if isinstance(size, torch.Tensor)]
        if inside:
            raise LayoutError(
                f"{name} is a tensor, expected an integer: values cannot be read, because {reason}" for name in inside
            )
    return dict(zip(given, integers(**given), strict=True))


def _shape_faults(name: str, tensor: torch.Tensor, faults: list[str]) -> bool:
    before = len(faults)
    if tensor.ndim != 1:
        faults.append(f"{name} is {tensor.ndim}-D with shape {list(tensor.shape)}, expected 1-D [b + 1]")
    elif tensor.shape[0] == 0:
        faults.append(f"{name} is empty, expected [b + 1] entries, the first 0")
    if tensor.is_floating_point():
        faults.append(f"{name} is floating point ({tensor.dtype}), expected int32 or int64")
    elif tensor.dtype not in (torch.int32, torch.int64):
        faults.append(f"{name} is {tensor.dtype}, expected int32 or int64")
    return len(faults) > before


def _partner_faults(sound: dict[str, torch.Tensor], faults: list[str]) -> None:
    if len(sound) < 2:
        return
    cu, padded = sound["cu_seqlens"], sound["cu_seqlens_padded"]
    if padded.device != cu.device:
        faults.append(f"cu_seqlens_padded is on {padded.device}, expected {cu.device} as cu_seqlens")
    if padded.shape[0] != cu.shape[0]:
        faults.append(f"cu_seqlens_padded has {padded.shape[0]} entries, expected {cu.shape[0]} as cu_seqlens")


def _read(tensors: dict[str, torch.Tensor]) -> dict[str, list[int]]:
    if len({tensor.device for tensor in tensors.values()}) < len(tensors):  # on one device: one read for all
        entries = torch.cat(list(tensors.values())).tolist()
        found = {}
        for name, tensor in tensors.items():
            found[name], entries = entries[: len(tensor)], entries[len(tensor) :]
        return found
    return {name: tensor.tolist() for name, tensor in tensors.items()}


def _offset_faults(name: str, entries: Sequence[int]) -> list[str]:
    faults = []
    if entries[0] != 0:
        faults.append(f"{name} does not start at 0: entry 0 is {entries[0]}, expected 0")
    if not all(map(operator.le, entries, entries[1:])):
        faults += [
            f"{name} decreases at entry {i}: {entry} after {before}, expected at least {before}"
            for i, (before, entry) in enumerate(zip(entries, entries[1:], strict=False), start=1)
            if entry < before
        ]
    if max(entries) > INT32_MAX:
        i, entry = next((i, entry) for i, entry in enumerate(entries) if entry > INT32_MAX)
        faults.append(f"{name} is beyond int32 at entry {i}: {entry}, expected at most {INT32_MAX}")
    return faults


def _end_faults(end: int, sizes: dict[str, int]) -> list[str]:
    total = sizes.get("total_tokens", end)
    if total < end:
        return [f"total_tokens {total} is less than {end}, where the last slot ends"]
    if total > INT32_MAX >= end:
        return [f"total_tokens {total} is beyond int32, expected at most {INT32_MAX}"]
    return []


def _longest_faults(lengths: tuple[int, ...], sizes: dict[str, int]) -> list[str]:
    longest = max(lengths)
    bound = sizes.get("max_seqlen", longest)
    if bound >= longest:
        return []
    return [f"max_seqlen {bound} is less than {longest}, the length of sequence {lengths.index(longest)}"]


def _as_int32(offsets: torch.Tensor) -> torch.Tensor:
    with ordinary():
        if not is_compiling() and offsets.is_inference():
            offsets = offsets.clone()
        return offsets.to(torch.int32).contiguous()
