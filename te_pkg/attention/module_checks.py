"""Whether what :class:`~te_pkg.attention.DotProductAttention` is given is of a type that can be meant. No host sync."""

from __future__ import annotations

import math
from typing import Any

import torch

from te_pkg.attention.masks import window_faults
from te_pkg.attention.offsets import as_integers

__all__ = ["call_type_faults", "constructor_type_faults", "is_plainly", "number_faults"]


def constructor_type_faults(
    num_attention_heads: Any,
    kv_channels: Any,
    num_gqa_groups: Any,
    attn_mask_type: Any,
    tp_size: Any,
    window_size: Any,
    bottom_right_diagonal: Any,
) -> list[str]:
    """What is wrong with the types of the arguments of the constructor.

    >>> constructor_type_faults(8, 64, None, "padding", "2", None, None)
    ["tp_size must be an integer, got '2'"]
    """
    sizes = {"num_attention_heads": num_attention_heads, "tp_size": tp_size}
    if num_gqa_groups is not None:
        sizes["num_gqa_groups"] = num_gqa_groups
    faults = []
    if isinstance(kv_channels, (tuple, list)):
        if len(kv_channels) == 2:
            sizes |= {f"kv_channels[{i}]": size for i, size in enumerate(kv_channels)}
        else:
            faults.append(f"kv_channels must be an integer or a pair (d, d_v), got {kv_channels!r}")
    else:
        sizes["kv_channels"] = kv_channels
    return as_integers(sizes)[1] + faults + _shared(attn_mask_type, window_size, bottom_right_diagonal)


def call_type_faults(
    attn_mask_type: Any,
    window_size: Any,
    bottom_right_diagonal: Any,
    pad_between_seqs: Any,
    max_seqlen_q: Any,
    max_seqlen_kv: Any,
) -> list[str]:
    """What is wrong with the types of the arguments of a call; None is what the constructor was given.

    >>> call_type_faults(None, None, None, "no", None, None)
    ["pad_between_seqs must be a bool or None, got 'no'"]
    """
    faults = [] if attn_mask_type is None else _shared(attn_mask_type, None, None)
    faults += _shared("", window_size, bottom_right_diagonal)
    if pad_between_seqs is not None and not isinstance(pad_between_seqs, bool):
        faults.append(f"pad_between_seqs must be a bool or None, got {pad_between_seqs!r}")
    # A tensor is left to those who know whether it may be read.
    sizes = {
        name: size
        for name, size in (("max_seqlen_q", max_seqlen_q), ("max_seqlen_kv", max_seqlen_kv))
        if size is not None and not isinstance(size, torch.Tensor)
    }
    return faults + as_integers(sizes)[1]


def number_faults(**numbers: Any) -> tuple[list[str], list[str]]:
    """What is wrong with the types of numbers, and with their values; None is left to a default.

    >>> number_faults(attention_dropout=1.5)
    ([], ['attention_dropout is 1.5, expected at least 0 and less than 1'])
    """
    strange, faults = [], []
    for name, value in numbers.items():
        is_share = name == "attention_dropout"
        if value is None and not is_share:
            continue
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            strange.append(f"{name} must be a number{'' if is_share else ' or None'}, got {value!r}")
        elif is_share and not 0 <= value < 1:
            faults.append(f"{name} is {value!r}, expected at least 0 and less than 1")
        elif not is_share and not -math.inf < value < math.inf:
            faults.append(f"{name} is {value!r}, expected a finite number")
    return strange, faults


def is_plainly(value: Any, expected: Any) -> bool:
    """Whether ``value`` equals ``expected``; a tensor does not, because one of several elements has no truth.

    >>> is_plainly(1, 1), is_plainly(torch.ones(2), 1)
    (True, False)
    """
    return not isinstance(value, torch.Tensor) and bool(value == expected)


def _shared(attn_mask_type: Any, window_size: Any, bottom_right_diagonal: Any) -> list[str]:
    faults = []
    if not isinstance(attn_mask_type, str):
        faults.append(f"attn_mask_type must be a str, got {attn_mask_type!r}")
    faults += window_faults(window_size, "window_size")[0]
    if bottom_right_diagonal is not None and not isinstance(bottom_right_diagonal, bool):
        faults.append(f"bottom_right_diagonal must be a bool or None, got {bottom_right_diagonal!r}")
    return faults
