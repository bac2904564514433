"""A layout as a node of ``torch.utils._pytree``, so that functional torch can take it apart and build it again.

Leaves are the offsets, one or two of them, ``total_tokens`` and ``max_seqlen``. What the host knows is no leaf: it goes
along with real tensors, and is left behind where tensors stand for others. So no exported program holds the lengths of
its example, and each takes layouts of any values.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import torch
from torch.utils import _pytree as pytree

from te_pkg.attention.layout_checks import CheckedOffsets
from te_pkg.attention.offsets import is_traced

if TYPE_CHECKING:
    from te_pkg.attention.layout import PackedLayout

__all__ = ["register"]


class _HostFacts:
    """What the host knows of a layout. Any two are equal: trees are alike whatever their layouts hold."""

    __slots__ = ("facts",)

    def __init__(self, *facts: Any) -> None:
        self.facts = facts

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _HostFacts)

    def __hash__(self) -> int:
        return hash(_HostFacts)

    def __repr__(self) -> str:
        return "host facts"


def register(layout_type: type[PackedLayout], make: Callable[[CheckedOffsets], PackedLayout]) -> None:
    """Make ``layout_type`` a node; ``make`` builds one without a check."""
    pytree.register_pytree_node(
        layout_type,
        lambda layout: ([leaf for _, leaf in _leaves(layout)], _facts_of(layout)),
        lambda leaves, context: make(_checked(leaves, context)),
        serialized_type_name=f"{layout_type.__module__}.{layout_type.__qualname__}",
        to_dumpable_context=lambda context: None,
        from_dumpable_context=lambda dumped: _HostFacts(),
        flatten_with_keys_fn=lambda layout: (
            [(pytree.GetAttrKey(name), leaf) for name, leaf in _leaves(layout)],
            _facts_of(layout),
        ),
    )


def _leaves(layout: PackedLayout) -> list[tuple[str, Any]]:
    # This one first: `torch.export` 2.13 puts inputs for names in its guards by their text, one after the other, and a
    # name that is the beginning of another would spoil it.
    names = ["cu_seqlens_padded", "cu_seqlens", "total_tokens", "max_seqlen"]
    if layout.cu_seqlens_padded is layout.cu_seqlens:
        names.remove("cu_seqlens_padded")  # one leaf, so that they come out as one object
    return [(name, getattr(layout, name)) for name in names]


def _facts_of(layout: PackedLayout) -> _HostFacts:
    return _HostFacts(layout.lengths, layout.slot_offsets, layout.real_tokens)


def _checked(leaves: Iterable[Any], context: _HostFacts) -> CheckedOffsets:
    *offsets, total_tokens, max_seqlen = leaves
    real = (
        type(total_tokens) is type(max_seqlen) is int
        and all(isinstance(leaf, torch.Tensor) for leaf in offsets)
        and not is_traced(*offsets)
    )
    return CheckedOffsets(offsets[-1], offsets[0], total_tokens, max_seqlen, *(context.facts if real else ()))
