"""What works on which backend of attention, as `available_backends` tells it, in a table for the README.

A backend is asked as if every device and package were here: tensors say that they are on CUDA, and what is not
installed is played. What then is refused is what the backend lacks.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest import mock

import torch

from te_pkg.attention import PackedLayout, available_backends, capture
from te_pkg.attention.backends import BACKENDS, load
from te_pkg.attention.layout_checks import CheckedOffsets

_SELF = PackedLayout.from_lengths([3, 5], pad_to_multiple=4)
_KEYS = PackedLayout.from_lengths([4, 6])
_TIGHT = PackedLayout.from_lengths([3, 5])

FEATURES: dict[str, dict[str, Any]] = {
    "bfloat16, float16": {"dtypes": (torch.bfloat16, torch.float16)},
    "float32": {"dtypes": (torch.float32,)},
    "float64": {"dtypes": (torch.float64,)},
    "padding between sequences": {"layout": _SELF},
    "grouped-query heads": {"heads_kv": 2},
    "values with heads of another size": {"size_v": 32},
    "causal": {"causal": True},
    "sliding window": {"window": (2, 1)},
    "cross attention": {"layout_kv": _KEYS},
    "cross attention, causal at the bottom right": {"layout_kv": _KEYS, "causal": True, "align": "bottom_right"},
    "cross attention, causal at the top left": {"layout_kv": _KEYS, "causal": True},
    "soft cap": {"softcap": 30.0},
    "dropout": {"dropout_p": 0.1},
    "a scale of 0 or less": {"scale": -1.0},
    "lengths that the layout does not know": {"unknown": True},
    "capture into a CUDA graph": {"unknown": True, "captured": True},
}


class OnCuda(torch.Tensor):
    """Says that it is on a GPU."""

    is_cuda = property(lambda self: True)
    is_cpu = property(lambda self: False)
    device = property(lambda self: torch.device("cuda", 0))


def features_table() -> str:
    """A row for each feature, with the devices on which each backend has it."""
    rows = ["| feature | " + " | ".join(f"`{name}`" for name in BACKENDS) + " |", "|---" * (len(BACKENDS) + 1) + "|"]
    for feature, asked in FEATURES.items():
        found = {device: serving(device, **asked) for device in ("cpu", "cuda")}
        cells = []
        for name in BACKENDS:
            devices = [device.upper() for device in ("cpu", "cuda") if name in found[device]]
            cells.append(", ".join(devices) or "-")
        rows.append(f"| {feature} | {' | '.join(cells)} |")
    return "\n".join(rows) + "\n"


def serving(
    device: str,
    *,
    dtypes: tuple[torch.dtype, ...] | None = None,
    layout: PackedLayout = _TIGHT,
    layout_kv: PackedLayout | None = None,
    heads_kv: int = 4,
    size_v: int = 64,
    unknown: bool = False,
    captured: bool = False,
    **options: Any,
) -> set[str]:
    """The backends that have it on ``device``."""
    if captured and device == "cpu":
        return set()
    found = set(BACKENDS)
    with everything_is_here():
        rows, keys = (_on(device, of, unknown) for of in (layout, layout_kv or layout))
        for dtype in dtypes or (torch.float32 if device == "cpu" else torch.bfloat16,):
            q, k, v = (
                _as_if_on(device, torch.zeros(of.total_tokens, heads, size, dtype=dtype))
                for of, heads, size in ((rows, 4, 64), (keys, heads_kv, 64), (keys, heads_kv, size_v))
            )
            with capture.mark_capturing() if captured else ExitStack():
                reasons = available_backends(q, k, v, rows, keys if layout_kv is not None else None, **options)
            found &= {name for name, reason in reasons.items() if reason is None}
    return found


@contextmanager
def everything_is_here() -> Iterator[None]:
    with ExitStack() as stack:
        for name in BACKENDS:
            stack.enter_context(mock.patch.object(load(name), "why_absent", return_value=None))
        stack.enter_context(mock.patch.object(torch.cuda, "get_device_capability", return_value=(9, 0)))
        yield


def _as_if_on(device: str, tensor: torch.Tensor) -> torch.Tensor:
    return tensor.as_subclass(OnCuda) if device == "cuda" else tensor


def _on(device: str, layout: PackedLayout, unknown: bool) -> PackedLayout:
    cu = _as_if_on(device, layout.cu_seqlens)
    padded = cu if layout.cu_seqlens_padded is layout.cu_seqlens else _as_if_on(device, layout.cu_seqlens_padded)
    known = () if unknown else (layout.lengths, layout.slot_offsets, layout.real_tokens)
    return PackedLayout._trusted(CheckedOffsets(cu, padded, layout.total_tokens, layout.max_seqlen, *known))


if __name__ == "__main__":
    sys.stdout.write(features_table())
