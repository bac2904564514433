"""Row kernels: move the real rows of packed sequences between two layouts, and fill what is left.

``b`` sequences, ``t`` rows. Each kernel is a module with the functions of :class:`RowKernel`:

=========== ============================================ ===============================================
kernel      works on                                     how
=========== ============================================ ===============================================
reference   any device                                   a loop over sequences; reads the offsets
cpu         any device                                   slices, or row indices
triton      CUDA; the CPU under ``TRITON_INTERPRET=1``   one launch, a binary search in the offsets
=========== ============================================ ===============================================

:func:`choose` takes the one that was asked for, by argument or by the environment variable ``TE_PKG_KERNELS``; else
``triton`` for CUDA where Triton is installed, and ``cpu`` everywhere else. But for the reference none syncs, and all
are safe under CUDA graph capture.

They take every dtype, because they move bytes, and stay inside the buffers whatever offsets on the device hold: a
sequence is cut where its slot in the source or a buffer ends.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Sequence
from functools import cache
from typing import NamedTuple, Protocol, TypeAlias, cast

import torch

from te_pkg.attention.errors import KernelUnavailableError

__all__ = [
    "ENVIRONMENT_VARIABLE",
    "KERNELS",
    "Fill",
    "PaddingRows",
    "RowKernel",
    "RowMove",
    "Slots",
    "check_kernel",
    "choose",
    "is_asked_for",
    "why_unavailable",
]

KERNELS = ("reference", "cpu", "triton")
ENVIRONMENT_VARIABLE = "TE_PKG_KERNELS"
_KEY = getattr(os.environ, "encodekey", str)(ENVIRONMENT_VARIABLE)

_NO_SUCH_KERNEL = f"there is no such kernel, expected one of {', '.join(map(repr, KERNELS))}"


Fill: TypeAlias = bool | int | float | complex

_CPU = torch.device("cpu")
_MODULES = {"reference": "reference", "cpu": "cpu", "triton": "triton_rows"}


class Slots:
    """Where the sequences of a buffer begin.

    Attributes:
        offsets: int32 or int64 ``[b + 1]``; the last entry is where the last slot ends.
        rows: of the buffer.
        on_host: the offsets as far as the host knows them, hashable; or None.
    """

    __slots__ = ("_offsets", "on_host", "rows")

    def __init__(
        self, offsets: torch.Tensor | Callable[[], torch.Tensor], rows: int, on_host: Sequence[int] | None = None
    ) -> None:
        self._offsets = offsets  # a function makes them when they are wanted: a kernel may do with those on the host
        self.rows = rows
        self.on_host = on_host

    @property
    def offsets(self) -> torch.Tensor:
        """Where the slots begin, ``[b + 1]`` on the device; made when first wanted."""
        if not isinstance(self._offsets, torch.Tensor):
            self._offsets = self._offsets()
        return self._offsets

    @property
    def given(self) -> torch.Tensor | None:
        """The offsets if they were a tensor from the start, which somebody may change."""
        return self._offsets if isinstance(self._offsets, torch.Tensor) else None


class RowMove(NamedTuple):
    """Which row goes where: row ``p`` of sequence ``i``, from ``source.offsets[i] + p`` to ``target.offsets[i] + p``.

    What the host knows is trusted, and so never given where a graph that is captured would outlive it.

    Attributes:
        cu_seqlens: int32 or int64 ``[b + 1]``; real rows without gaps.
        source: the buffer that is read.
        target: the buffer that is written.
        lengths: real rows of each sequence as far as the host knows them, or None.
        real: how many real rows there are together; -1 if the host does not know.
    """

    cu_seqlens: torch.Tensor
    source: Slots
    target: Slots
    lengths: tuple[int, ...] | None = None
    real: int = -1

    def back(self) -> RowMove:
        """The way from the target to the source."""
        return RowMove(self.cu_seqlens, self.target, self.source, self.lengths, self.real)


class PaddingRows(NamedTuple):
    """The rows of a buffer that belong to no sequence.

    Attributes:
        cu_seqlens: int32 or int64 ``[b + 1]``; real rows without gaps.
        slots: the buffer.
        lengths: real rows of each sequence as far as the host knows them, or None.
        real: how many real rows there are together; -1 if the host does not know.
    """

    cu_seqlens: torch.Tensor
    slots: Slots
    lengths: tuple[int, ...] | None = None
    real: int = -1


class RowKernel(Protocol):
    """What each kernel module offers. None of it is recorded by autograd."""

    def why_unavailable(self, device: torch.device) -> str | None:
        """None, or the reason why the kernel cannot work on tensors of ``device`` now."""

    def move_rows(self, x: torch.Tensor, move: RowMove, fill: Fill, out: torch.Tensor | None = None) -> torch.Tensor:
        """Rows of ``x`` ``[t_source, ...]`` in their places; every row of the result ``[t_target, ...]`` is written.

        ``out`` has the right shape, dtype and device, and shares no memory with ``x``.
        """

    def fill_padding_(self, x: torch.Tensor, padding: PaddingRows, fill: Fill) -> None:
        """Write ``fill`` to the padding rows of ``x`` ``[t, ...]``, and no other value to any other row."""


def why_unavailable(kernel: str, device: torch.device) -> str | None:
    """None, or the reason why ``kernel`` cannot work on tensors of ``device`` now.

    >>> why_unavailable("cpu", torch.device("cpu")) is None
    True
    >>> why_unavailable("cuda", torch.device("cpu"))
    "there is no such kernel, expected one of 'reference', 'cpu', 'triton'"
    """
    if kernel not in KERNELS:
        return _NO_SUCH_KERNEL
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
    asked = kernel or (os.environ[ENVIRONMENT_VARIABLE] if is_asked_for() else None)
    if not asked:
        # Equality first: to spell a type as a string takes longer than all of this.
        return _load("cpu" if device == _CPU or device.type != "cuda" or not _has_triton() else "triton")
    reason = why_unavailable(asked, device)
    if reason is not None:
        by = "" if kernel else f" (asked for by the environment variable {ENVIRONMENT_VARIABLE})"
        raise KernelUnavailableError(asked, reason + by)
    return _load(asked)


def is_asked_for() -> bool:
    """Whether the environment variable names a kernel."""
    # To find nothing, `os.environ` raises twice. Where that is asked in a step of a model, whose tensors have swept the
    # processor's caches, it takes as long as 100 kilobytes take to move; the dictionary inside says no at once.
    return _KEY in getattr(os.environ, "_data", (_KEY,)) and bool(os.environ.get(ENVIRONMENT_VARIABLE))


def check_kernel(kernel: str | None) -> None:
    """Refuse what is no kernel's name, also where none will run before the program that is traced does.

    Raises:
        KernelUnavailableError: a ``RuntimeError``.
    """
    if kernel is not None and kernel not in ("", *KERNELS):
        raise KernelUnavailableError(kernel, _NO_SUCH_KERNEL)


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
