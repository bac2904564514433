"""Row kernels: move the real rows of packed sequences between two layouts, and fill what is left.

``b`` sequences, ``t`` rows. Each kernel is a module with the functions of :class:`RowKernel`:

=========== ============================================ ============================================================
kernel      works on                                     how
=========== ============================================ ============================================================
reference   any device                                   a loop over sequences; reads the offsets on the host
cpu         any device                                   slices where the host knows the rows, else row indices; no
                                                         host sync, safe under capture
triton      CUDA; the CPU under ``TRITON_INTERPRET=1``   one launch, binary search in the offsets; no host sync, safe
                                                         under capture
=========== ============================================ ============================================================

:func:`choose` takes the one that was asked for, by argument or by the environment variable ``TE_PKG_KERNELS``; else
``triton`` for CUDA where Triton is installed, and ``cpu`` everywhere else.

All of them take every dtype, because they move bytes, and stay inside the buffers whatever the offsets hold: a sequence
is cut where its slot in either layout or a buffer ends.
"""

from __future__ import annotations

import importlib
import os
from dataclasses import dataclass
from functools import cache
from typing import Protocol, TypeAlias, cast

import torch

from te_pkg.attention.errors import AttentionError

__all__ = [
    "ENVIRONMENT_VARIABLE",
    "KERNELS",
    "Fill",
    "KernelUnavailableError",
    "PaddingRows",
    "RowKernel",
    "RowMove",
    "choose",
    "why_unavailable",
]

KERNELS = ("reference", "cpu", "triton")
ENVIRONMENT_VARIABLE = "TE_PKG_KERNELS"

Fill: TypeAlias = bool | int | float | complex

_MODULES = {"reference": "reference", "cpu": "cpu", "triton": "triton_rows"}


class KernelUnavailableError(AttentionError, RuntimeError):
    """The kernel that was asked for does not exist or cannot run here.

    Attributes:
        kernel: its name, as asked for.
        reason: why not.
    """

    def __init__(self, kernel: str, reason: str) -> None:
        self.kernel, self.reason = kernel, reason
        super().__init__(f"kernel {kernel!r} is not available: {reason}")

    def __reduce__(self) -> tuple[type[KernelUnavailableError], tuple[str, str]]:
        return type(self), (self.kernel, self.reason)


@dataclass(frozen=True, slots=True)
class RowMove:
    """Which row goes where: row ``p`` of sequence ``i``, from ``source[i] + p`` to ``target[i] + p``.

    Attributes:
        cu_seqlens: int32 or int64 ``[b + 1]``; real rows without gaps.
        source: likewise; where the slots of the source begin, and where the last one ends.
        target: likewise, of the target.
        rows: rows of the target.
        spans: what the host knows of all this: ``source row, target row, number of rows``, again and again, ascending
            in both; or None. To be trusted, so never given where a graph that is captured may outlive it.
        full: the host knows that every row of the target is a real one.
    """

    cu_seqlens: torch.Tensor
    source: torch.Tensor
    target: torch.Tensor
    rows: int
    spans: list[int] | None = None
    full: bool = False


@dataclass(frozen=True, slots=True)
class PaddingRows:
    """The rows of a layout that belong to no sequence.

    Attributes:
        cu_seqlens: int32 or int64 ``[b + 1]``; real rows without gaps.
        slots: likewise; where the slots begin, and where the last one ends.
        gaps: what the host knows: ``first row, number of rows``, again and again, ascending; or None.
        count: number of padding rows, where the host knows it; else None.
    """

    cu_seqlens: torch.Tensor
    slots: torch.Tensor
    gaps: list[int] | None = None
    count: int | None = None


class RowKernel(Protocol):
    """What each kernel module offers. None of it is recorded by autograd."""

    def why_unavailable(self, device: torch.device) -> str | None:
        """None, or the reason why the kernel cannot work on tensors of ``device`` now."""

    def move_rows(self, x: torch.Tensor, move: RowMove, fill: Fill, out: torch.Tensor | None = None) -> torch.Tensor:
        """Rows of ``x`` ``[t_source, ...]`` in their places; every row of the result ``[t_target, ...]`` is written.

        ``out`` has the right shape, dtype and device, and shares no memory with ``x``.
        """

    def fill_padding_(self, x: torch.Tensor, padding: PaddingRows, fill: Fill) -> None:
        """Write ``fill`` to the padding rows of ``x`` ``[t, ...]``, and nothing elsewhere that changes a value."""


def why_unavailable(kernel: str, device: torch.device) -> str | None:
    """None, or the reason why ``kernel`` cannot work on tensors of ``device`` now.

    >>> why_unavailable("cpu", torch.device("cpu")) is None
    True
    >>> why_unavailable("cuda", torch.device("cpu"))
    "there is no such kernel, expected one of 'reference', 'cpu', 'triton'"
    """
    if kernel not in _MODULES:
        return f"there is no such kernel, expected one of {', '.join(map(repr, KERNELS))}"
    if kernel == "triton" and not _has_triton():
        return "Triton is not installed; hint: pip install 'te-pkg[triton]'"
    return _load(kernel).why_unavailable(device)


def choose(device: torch.device, kernel: str | None = None) -> RowKernel:
    """The kernel for tensors of ``device``.

    >>> choose(torch.device("cpu"), "reference").__name__
    'te_pkg.attention.kernels.reference'

    Args:
        device: where the rows and the offsets are.
        kernel: a name in :data:`KERNELS`; None or empty: the environment variable, else the best for the device.

    Raises:
        KernelUnavailableError: a ``RuntimeError``; the kernel that was asked for cannot run, and why.
    """
    asked = kernel or os.environ.get(ENVIRONMENT_VARIABLE)
    if asked:
        reason = why_unavailable(asked, device)
        if reason is not None:
            by = "" if kernel else f" (asked for by the environment variable {ENVIRONMENT_VARIABLE})"
            raise KernelUnavailableError(asked, reason + by)
        return _load(asked)
    if device.type == "cuda" and _has_triton() and _load("triton").why_unavailable(device) is None:
        return _load("triton")
    return _load("cpu")


@cache
def _has_triton() -> bool:
    try:
        importlib.import_module("triton")
    except ImportError:
        return False
    return True


@cache
def _load(kernel: str) -> RowKernel:
    return cast(RowKernel, importlib.import_module(f"{__name__}.{_MODULES[kernel]}"))
