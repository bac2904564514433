"""What the host knows of a layout, for kernels that are faster with it.

It is left out where it would outlive the call: under CUDA graph capture, whose graph runs again after the offsets were
refilled, and under ``torch.compile`` and the like, where each length would become a constant of the program.
"""

from __future__ import annotations

import operator
from typing import NamedTuple

import torch
from torch._C import (
    _dispatch_keys,
    _functorch,
    _get_tracing_state,
    _is_torch_function_mode_enabled,
    _len_torch_dispatch_stack,
)
from torch.autograd import forward_ad
from torch.compiler import is_compiling, is_dynamo_compiling

from te_pkg.attention import capture
from te_pkg.attention.caching import is_tracing
from te_pkg.attention.kernels import is_asked_for
from te_pkg.attention.layout import PackedLayout
from te_pkg.attention.offsets import why_unreadable

__all__ = ["HostRows", "host_rows", "is_common", "is_common_memory", "is_plain"]

# Offsets of more sequences take longer to read and check than they help.
_READ_SEQUENCES = 256

_PLAIN_TYPES = (torch.Tensor, torch.nn.Parameter)


def _keys_of_memory() -> list[object]:
    """What torch dispatches by for dense memory on the CPU: one set for ordinary tensors, one for inference tensors.

    Every other kind of tensor has other keys: sparse, quantized, nested, batched, fake, on a device, or with a
    conjugation or negation that has yet to be done.
    """
    keys: list[object] = []
    for mode in (False, True):
        with torch.inference_mode(mode):
            keys.append(_dispatch_keys(torch.empty(0, device="cpu")))
    return keys


_MEMORY = _keys_of_memory()


class HostRows(NamedTuple):
    """A layout on the host: ``b`` lengths, ``b + 1`` slot offsets, and the number of real rows."""

    lengths: tuple[int, ...]
    slots: tuple[int, ...]
    real: int


def is_plain(*tensors: torch.Tensor) -> bool:
    """Whether nothing records or intercepts what is done to ``tensors``, and each is memory with values.

    Takes a third of a microsecond, where to tell why not takes two.
    """
    if (
        is_compiling()
        or _len_torch_dispatch_stack()
        or _functorch.peek_interpreter_stack() is not None
        or _get_tracing_state() is not None
    ):
        return False
    for tensor in tensors:
        if (
            type(tensor) not in _PLAIN_TYPES
            or torch._is_functional_tensor(tensor)
            or _functorch.is_legacy_batchedtensor(tensor)  # a batch of gradients: no functorch transform is active
        ):
            return False
    return True


def is_common(x: torch.Tensor, layout: PackedLayout) -> bool:
    """Whether this is the usual case, of which most questions need not be asked: what is done to ``x`` just happens.

    Then ``x`` is dense memory on the CPU, ``layout`` is there too, the host knows its lengths and may rely on them,
    nothing is recorded for a gradient, and the kernel is that of the CPU unless another is given. False says nothing.
    Takes one microsecond, and anything for its arguments.

    >>> layout = PackedLayout.from_lengths([3, 2])
    >>> is_common(torch.zeros(5), layout), is_common(torch.zeros(5, requires_grad=True), layout), is_common([], layout)
    (True, False, False)
    """
    return (
        not is_dynamo_compiling()  # first, so that no length becomes a guard; all else that traces is a mode
        and type(layout) is PackedLayout
        and layout.lengths is not None
        and not _len_torch_dispatch_stack()
        and _functorch.peek_interpreter_stack() is None
        and _get_tracing_state() is None
        and not _is_torch_function_mode_enabled()
        and is_common_memory(x)
        and layout.cu_seqlens.is_cpu
        and forward_ad._current_level < 0
        and not capture.is_capturing()
        and not is_asked_for()
    )


def is_common_memory(x: torch.Tensor) -> bool:
    """Whether ``x`` is dense memory on the CPU, and what is done to it is not recorded for a gradient."""
    return (
        type(x) in _PLAIN_TYPES and _dispatch_keys(x) in _MEMORY and not (x.requires_grad and torch.is_grad_enabled())
    )


def host_rows(layout: PackedLayout, x: torch.Tensor, *, most: int = _READ_SEQUENCES) -> HostRows | None:
    """What the host knows, or finds in its own memory; None where that is nothing, or may not be relied on.

    Offsets on the CPU are read where the layout does not know them and has few sequences. Those on another device are
    not: no host sync.

    >>> host_rows(PackedLayout.from_lengths([3, 2], pad_to_multiple=4), torch.zeros(8))
    HostRows(lengths=(3, 2), slots=(0, 4, 8), real=5)

    Args:
        layout: the layout.
        x: what is to be moved.
        most: sequences that offsets on the CPU are read of.

    Raises:
        LayoutError: a ``ValueError``; the offsets were not checked when the layout was made, and are wrong.
    """
    if is_compiling():  # first, so that no length becomes a guard
        return None
    if is_plain(x):
        if capture.is_capturing() or x.is_meta:
            return None
    elif why_unreadable(layout.cu_seqlens, x) is not None:
        return None
    lengths, slots, real = layout.lengths, layout.slot_offsets, layout.real_tokens
    if lengths is None:
        # Whoever watches operations, under a mode, is to see those that run on a device too.
        if (
            layout.device.type != "cpu"
            or layout.num_sequences > most
            or is_tracing()
            or not is_plain(layout.cu_seqlens)
        ):
            return None
        lengths, slots = _read(layout)
        real = sum(lengths)
    return None if lengths is None or slots is None or real is None else HostRows(lengths, slots, real)


def _read(layout: PackedLayout) -> tuple[tuple[int, ...], tuple[int, ...]]:
    real: list[int] = layout.cu_seqlens.tolist()
    slots: list[int] = layout.cu_seqlens_padded.tolist()
    lengths = tuple(map(operator.sub, real[1:], real))
    if (
        real[0] != 0
        or slots[0] != 0
        or slots[-1] > layout.total_tokens
        or min(lengths, default=0) < 0
        or any(map(operator.gt, lengths, map(operator.sub, slots[1:], slots)))
    ):
        # Says what is wrong.
        PackedLayout.from_cu_seqlens(
            layout.cu_seqlens, layout.cu_seqlens_padded, layout.total_tokens, layout.max_seqlen
        )
    return lengths, tuple(slots)
