"""A pair of offsets as an argument of a question: real rows and slots, under the names that the caller gave them.

``b`` sequences; each of the two is int32 or int64 ``[b + 1]``.
"""

from __future__ import annotations

import re
from contextlib import AbstractContextManager, nullcontext
from typing import Any, TypeAlias

import torch
from torch._C import _len_torch_dispatch_stack
from torch.utils._python_dispatch import _disable_current_modes

from te_pkg.attention.errors import ArgumentError, ArgumentTypeError, LayoutError
from te_pkg.attention.layout_checks import classify_padding
from te_pkg.attention.offsets import integers
from te_pkg.attention.padding import Padding

__all__ = ["Pair", "check_cp_size", "check_format", "check_tensors", "classify", "faults_of", "without_modes"]

# The names of the two arguments, or of all four where both sides share them, and the two. Any: not checked yet.
Pair: TypeAlias = tuple[tuple[str, ...], Any, Any]

_FORMATS = ("thd", "bshd", "sbhd")


def without_modes() -> AbstractContextManager[Any]:
    """A block whose operations no dispatch mode sees.

    A mode that compares operations between two runs, as checkpointing does, would find ours in the first alone.
    """
    return _disable_current_modes() if _len_torch_dispatch_stack() else nullcontext()


def faults_of(pair: Pair) -> tuple[str, ...]:
    """What is wrong with the values of a pair. Host sync."""
    try:
        with without_modes():
            classify(pair)
    except LayoutError as error:
        return error.faults
    return ()


def classify(pair: Pair) -> Padding:
    """The padding of a pair by value. Host sync.

    Raises:
        LayoutError: a ``ValueError`` with every fault, under the names that the caller knows.
    """
    (cu_name, padded_name, *_), cu, padded = pair
    try:
        return classify_padding(cu, padded)
    except LayoutError as error:
        renamed = {"cu_seqlens": cu_name, "cu_seqlens_padded": padded_name}
        raise LayoutError(
            re.sub(r"\bcu_seqlens(_padded)?\b", lambda found: renamed[found.group()], fault) for fault in error.faults
        ) from None


def check_format(qkv_format: str) -> None:
    """Refuse what is no format of queries, keys and values.

    Raises:
        ArgumentTypeError: a ``TypeError``.
        ArgumentError: a ``ValueError``.
    """
    if not isinstance(qkv_format, str):
        raise ArgumentTypeError(f"qkv_format must be a str, got {qkv_format!r}")
    parts = qkv_format.split("_2")
    if len(parts) > 2 or not all(part in _FORMATS for part in parts):
        raise ArgumentError(f"qkv_format is {qkv_format!r}, expected 'thd', 'bshd', 'sbhd' or two as in 'thd_2bshd'")


def check_cp_size(cp_size: int) -> int:
    """The number of ranks as ``int``.

    Raises:
        ArgumentTypeError: a ``TypeError``.
        ArgumentError: a ``ValueError``; less than 1.
    """
    (cp_size,) = integers(cp_size=cp_size)
    if cp_size < 1:
        raise ArgumentError(f"cp_size is {cp_size!r}, expected at least 1")
    return cp_size


def check_tensors(pairs: tuple[Pair, ...]) -> None:
    """Refuse what is no tensor.

    Raises:
        ArgumentTypeError: a ``TypeError`` with every fault.
    """
    faults = [
        f"{name} must be a tensor, got {value!r}"
        for names, *values in pairs
        for name, value in zip(names, values, strict=False)
        if not isinstance(value, torch.Tensor)
    ]
    if faults:
        raise ArgumentTypeError("\n".join(faults))
