"""Offsets of packed sequences: made of lengths, masks and positions, without a host sync that is not needed.

``b`` sequences. Offsets count rows, int32, ``[b + 1]``, and start at 0.
"""

from __future__ import annotations

import operator
from array import array
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any, SupportsIndex, cast

import torch
from torch._C import _functorch, _get_tracing_state, _len_torch_dispatch_stack
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch._subclasses.functional_tensor import FunctionalTensor, FunctionalTensorMode
from torch.compiler import is_compiling
from torch.fx.experimental.proxy_tensor import ProxyTorchDispatchMode
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

from te_pkg.attention import capture
from te_pkg.attention.caching import Device, resolve_device
from te_pkg.attention.errors import (
    ArgumentTypeError,
    CaptureError,
    HostReadError,
    LayoutError,
    OffsetOverflowError,
)

__all__ = [
    "INT32_MAX",
    "as_int32",
    "as_integers",
    "integers",
    "is_traced",
    "offsets_of_counts",
    "offsets_of_positions",
    "offsets_of_token_mask",
    "ordinary",
    "place_of",
    "refuse_copy",
    "shape_faults",
    "tensor_of",
    "why_unreadable",
]

INT32_MAX = 2**31 - 1
_HOST = torch.device("cpu")
_INTEGERS = (torch.int32, torch.int64, torch.int16, torch.int8, torch.uint8)


def why_unreadable(*tensors: torch.Tensor) -> str | None:
    """Why the values of ``tensors`` may not be read now, or None where they may. Reads nothing.

    >>> why_unreadable(torch.ones(2)), why_unreadable(torch.ones(2, device="meta"))
    (None, 'the tensors have no values')
    """
    if not is_compiling() and capture.is_capturing():
        return "a CUDA graph is being captured"
    if is_traced(*tensors):
        return "the program is being traced"
    for tensor in tensors:
        if tensor.is_meta:
            return "the tensors have no values"
    return None


def is_traced(*tensors: torch.Tensor) -> bool:
    """Whether ``tensors``, or those made now, stand for others that a later run will put in their place.

    A dispatch mode of somebody else's, such as one that counts operations, is no reason: the values are there.
    """
    if is_compiling() or _get_tracing_state() is not None:
        return True
    if _len_torch_dispatch_stack() and any(
        isinstance(mode, (FakeTensorMode, FunctionalTensorMode, ProxyTorchDispatchMode))
        for mode in _get_current_dispatch_mode_stack()
    ):
        return True
    for tensor in tensors:
        if (
            isinstance(tensor, (FakeTensor, FunctionalTensor))
            or _functorch.is_functorch_wrapped_tensor(tensor)
            or _functorch.is_legacy_batchedtensor(tensor)  # a batch of gradients of `torch.autograd.grad`
            or torch._is_functional_tensor(tensor)
        ):
            return True
    return False


def ordinary() -> AbstractContextManager[Any]:
    """A block whose tensors are ordinary ones also under inference mode."""
    if not is_compiling() and torch.is_inference_mode_enabled():
        return torch.inference_mode(False)
    return nullcontext()


def place_of(device: Device) -> torch.device:
    """``device`` with its index; None is torch's default."""
    if not is_compiling():
        return resolve_device(device)
    # Dynamo follows neither that nor `torch.get_default_device`.
    return torch.empty(0, device=device).device


def refuse_copy(source: torch.device, target: torch.device) -> None:
    """Data goes between the host and a device, which no capture records: from pageable memory, or to be read.

    Raises:
        CaptureError: a ``RuntimeError``.
    """
    if source.type == target.type or "cpu" not in (source.type, target.type):
        return
    if "meta" in (source.type, target.type) or is_compiling() or not capture.is_capturing():
        return
    what = "numbers on the host" if source.type == "cpu" else f"offsets on {source}"
    raise CaptureError(
        f"{what} cannot be copied to {target}, because a CUDA graph is being captured; hint: make the layout before "
        "the capture"
    )


def tensor_of(values: Iterable[int], device: torch.device) -> torch.Tensor:
    """int32 ``[n]`` of numbers on the host that fit, without a host sync.

    Raises:
        CaptureError: a ``RuntimeError``; ``device`` is another one, and a CUDA graph is being captured.
    """
    refuse_copy(_HOST, device)
    with ordinary():
        if is_compiling() or _len_torch_dispatch_stack():
            tensor = torch.tensor(list(values), dtype=torch.int32, device="cpu")
        else:
            # `torch.tensor` takes three times as long, because it asks each number for its type.
            buffer = array("i", values)
            if not buffer:
                return torch.empty(0, dtype=torch.int32, device=device)
            tensor = torch.frombuffer(buffer, dtype=torch.int32)
            if device.type == "cpu":
                return tensor.clone()  # aligned, and free of the array
        # From pageable memory too, CUDA returns once the numbers are staged, and waits for no work of the device.
        return tensor.to(device, non_blocking=True)


def as_int32(offsets: torch.Tensor) -> torch.Tensor:
    """The same tensor if it is an ordinary one of int32 without strides, else one like that."""
    with ordinary():
        if not is_compiling() and offsets.is_inference():
            offsets = offsets.clone()
        return offsets.to(torch.int32).contiguous()


def offsets_of_counts(counts: torch.Tensor) -> torch.Tensor:
    """int32 ``[b + 1]`` of ``[b]`` numbers of rows, by operations on their device. No host sync, no check."""
    with ordinary():
        sums = counts.cumsum(0, dtype=torch.int64).to(torch.int32)
        return torch.cat([sums.new_zeros(1), sums])


def offsets_of_token_mask(mask: torch.Tensor, name: str, *, real: bool = True) -> torch.Tensor:
    """int32 ``[b + 1]``: sequence ``i`` has as many rows as ``mask[i]`` has entries that are ``real``. No host sync.

    Raises:
        LayoutError: a ``ValueError``; ``mask`` is not ``[b, s]``, or neither bool nor integer.
        OffsetOverflowError: an ``OverflowError``; more tokens than int32 counts, known without a host sync.
    """
    faults = shape_faults(name, mask, "[b, s]", (torch.bool, *_INTEGERS))
    if faults:
        raise LayoutError(faults)
    with ordinary():
        counts = mask.count_nonzero(1)
        if not real:
            counts = mask.shape[1] - counts
        if not is_traced(mask) and mask.numel() > INT32_MAX:
            _refuse_overflow(name, counts)
        return offsets_of_counts(counts)


def offsets_of_positions(ids: torch.Tensor, name: str) -> torch.Tensor:
    """int32 ``[b + 1]``: a sequence begins where a position is not greater than the one before, and in each row.

    One host sync on a CUDA device, because the data decides how many sequences there are.

    Raises:
        LayoutError: a ``ValueError``; ``ids`` is neither ``[t]`` nor ``[n, t / n]``, or holds no integers.
        OffsetOverflowError: an ``OverflowError``; more rows than int32 counts.
        HostReadError: a ``RuntimeError``; a CUDA graph is being captured, or ``ids`` has no values.
    """
    two_dimensional = isinstance(ids, torch.Tensor) and ids.ndim == 2
    faults = shape_faults(name, ids, "[n, t / n]" if two_dimensional else "[t]", _INTEGERS)
    if faults:
        raise LayoutError(faults)
    reason = why_unreadable(ids)
    if reason is not None and not is_traced(ids):
        raise HostReadError(
            f"the values of {name} decide how many sequences there are, and they cannot be read, because {reason}"
        )
    rows = ids.numel()
    if not is_traced(ids) and rows > INT32_MAX:
        raise OffsetOverflowError(f"{rows} is beyond int32: rows of {name}, expected at most {INT32_MAX}", rows)
    with ordinary():
        begins = torch.ones_like(ids, dtype=torch.bool)
        begins[..., 1:] = ids[..., 1:] <= ids[..., :-1]
        starts = begins.flatten().nonzero().flatten().to(torch.int32)
        return torch.cat([starts, starts.new_full((1,), rows)])


def integers(**sizes: SupportsIndex) -> list[int]:
    """The sizes as ``int``, symbols as they are. To take one from a tensor on a device is a host sync.

    Raises:
        ArgumentTypeError: a ``TypeError`` that names each one that is no integer. A bool is none.
    """
    found, faults = as_integers(sizes)
    if faults:
        raise ArgumentTypeError("\n".join(faults))
    return list(found.values())


def as_integers(sizes: Mapping[str, SupportsIndex]) -> tuple[dict[str, int], list[str]]:
    """Likewise by name, and a fault for each that is no integer.

    >>> as_integers({"batch": 3, "seqlen": "4"})
    ({'batch': 3}, ["seqlen must be an integer, got '4'"])
    """
    found: dict[str, int] = {}
    faults: list[str] = []
    for name, size in sizes.items():
        if type(size) is int:
            found[name] = size
            continue
        if isinstance(size, torch.SymInt) or (isinstance(size, torch.Tensor) and _get_tracing_state() is not None):
            found[name] = cast(int, size)  # a symbol; to ask for its value would fix it
            continue
        try:
            if isinstance(size, bool) or (isinstance(size, torch.Tensor) and size.dtype == torch.bool):
                raise TypeError
            found[name] = int(operator.index(size))
        except TypeError:
            faults.append(f"{name} must be an integer, got {size!r}")
    return found, faults


def shape_faults(
    name: str, tensor: torch.Tensor, shape: str, dtypes: tuple[torch.dtype, ...] = (torch.int32, torch.int64)
) -> list[str]:
    """What is wrong with the number of dimensions and the dtype of ``tensor``, which should be like ``"[b, s]"``.

    Raises:
        ArgumentTypeError: a ``TypeError``; it is no tensor.
    """
    if not isinstance(tensor, torch.Tensor):
        raise ArgumentTypeError(f"{name} must be a tensor, got {tensor!r}")
    faults = []
    expected = shape.count(",") + 1
    if tensor.ndim != expected:
        faults.append(f"{name} is {tensor.ndim}-D with shape {list(tensor.shape)}, expected {expected}-D {shape}")
    if tensor.dtype in dtypes:
        return faults
    *names, last = (str(dtype).removeprefix("torch.") for dtype in dtypes)
    if tensor.is_floating_point():
        faults.append(f"{name} is floating point ({tensor.dtype}), expected {', '.join(names)} or {last}")
    else:
        faults.append(f"{name} is {tensor.dtype}, expected {', '.join(names)} or {last}")
    return faults


def _refuse_overflow(name: str, counts: torch.Tensor) -> None:
    """Where it is known without a host sync."""
    if counts.device.type != "cpu" or why_unreadable(counts) is not None:
        return
    rows = int(counts.sum())
    if rows > INT32_MAX:
        raise OffsetOverflowError(f"{rows} is beyond int32: tokens of {name}, expected at most {INT32_MAX}", rows)
