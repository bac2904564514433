"""A layout as a node of ``torch.utils._pytree``, so that functional torch can take it apart and build it again.

Leaves are the offsets, one or two of them, ``total_tokens`` and ``max_seqlen``. What the host knows is no leaf: it goes
along with the very same tensors, is read again from other ones on the CPU, and is left behind with other ones on a
device, or where tensors stand for others. So no exported program holds the lengths of its example, and each takes
layouts of any values; and whatever a function makes of the leaves, no layout is built that knows what is not true.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import torch
from torch.compiler import is_compiling
from torch.utils import _pytree as pytree

from te_pkg.attention.errors import LayoutError
from te_pkg.attention.layout_checks import CheckedOffsets, check_offsets, size_faults
from te_pkg.attention.offsets import is_traced

if TYPE_CHECKING:
    from te_pkg.attention.layout import PackedLayout

__all__ = ["register"]


class _HostFacts:
    """What the host knows of certain offsets. Any two are equal: trees are alike whatever their layouts hold.

    The offsets are held weakly: a tree's structure may be kept for long.
    """

    __slots__ = ("facts", "offsets", "sizes")

    def __init__(self, layout: PackedLayout | None = None) -> None:
        self.facts: tuple[Any, ...] = ()
        self.sizes: tuple[int, int] | None = None
        self.offsets: tuple[weakref.ref[torch.Tensor], ...] = ()
        if layout is None or is_compiling():
            return
        offsets = layout.cu_seqlens_padded, layout.cu_seqlens
        if all(isinstance(tensor, torch.Tensor) for tensor in offsets):  # else one that was built of placeholders
            self.facts = layout.lengths, layout.slot_offsets, layout.real_tokens
            self.sizes = layout.total_tokens, layout.max_seqlen
            self.offsets = tuple(map(weakref.ref, offsets))

    def are_of(self, offsets: list[Any]) -> bool:
        return bool(self.offsets) and self.offsets[0]() is offsets[0] and self.offsets[1]() is offsets[-1]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _HostFacts)

    def __hash__(self) -> int:
        return hash(_HostFacts)

    def __reduce__(self) -> tuple[type[_HostFacts], tuple[()]]:
        return _HostFacts, ()  # elsewhere the tensors are others

    def __repr__(self) -> str:
        return "host facts"


def register(layout_type: type[PackedLayout], make: Callable[[CheckedOffsets], PackedLayout]) -> None:
    """Make ``layout_type`` a node; ``make`` builds one without a check."""
    pytree.register_pytree_node(
        layout_type,
        lambda layout: ([leaf for _, leaf in _leaves(layout)], _HostFacts(layout)),
        lambda leaves, context: make(_checked(leaves, context)),
        serialized_type_name=f"{layout_type.__module__}.{layout_type.__qualname__}",
        to_dumpable_context=lambda context: None,
        from_dumpable_context=lambda dumped: _HostFacts(),
        flatten_with_keys_fn=lambda layout: (
            [(pytree.GetAttrKey(name), leaf) for name, leaf in _leaves(layout)],
            _HostFacts(layout),
        ),
    )


def _leaves(layout: PackedLayout) -> list[tuple[str, Any]]:
    # This one first: `torch.export` 2.13 puts inputs for names in its guards by their text, one after the other, and a
    # name that is the beginning of another would spoil it.
    names = ["cu_seqlens_padded", "cu_seqlens", "total_tokens", "max_seqlen"]
    if layout.cu_seqlens_padded is layout.cu_seqlens:
        names.remove("cu_seqlens_padded")  # one leaf, so that they come out as one object
    return [(name, getattr(layout, name)) for name in names]


def _checked(leaves: Iterable[Any], context: _HostFacts) -> CheckedOffsets:
    """Nothing is read on a device: no host sync.

    Raises:
        LayoutError: a ``ValueError``; real tensors and numbers that are no layout.
    """
    *offsets, total_tokens, max_seqlen = leaves
    made = CheckedOffsets(offsets[-1], offsets[0], total_tokens, max_seqlen)
    if not (
        type(total_tokens) is type(max_seqlen) is int
        and all(isinstance(leaf, torch.Tensor) for leaf in offsets)
        and not is_traced(*offsets)
    ):
        return made  # functional torch builds trees of placeholders too
    if context.are_of(offsets):
        lengths, slot_offsets, real_tokens = context.facts
        known = made._replace(lengths=lengths, slot_offsets=slot_offsets, real_tokens=real_tokens)
        if context.sizes == (total_tokens, max_seqlen):
            return known
        if slot_offsets is not None:
            sizes = {"total_tokens": total_tokens, "max_seqlen": max_seqlen}
            faults = size_faults(slot_offsets[-1], lengths, sizes)
            if faults:
                raise LayoutError(faults)
            return known
    unread = None if made.cu_seqlens.device.type == "cpu" else "the device would have to be waited for"
    return check_offsets(*made[:4], unread=unread)
