"""Where the sequences of a packed buffer lie: :class:`PackedLayout`, a value that is checked once.

``t`` rows of the buffer, ``b`` sequences, ``s`` rows of the longest one. Sequence ``i`` is stored in its *slot*, the
rows from ``cu_seqlens_padded[i]`` up to ``cu_seqlens_padded[i + 1]``; the first ``cu_seqlens[i + 1] - cu_seqlens[i]``
of them are real. ``cu_seqlens`` counts real rows without gaps: it is no storage offset::

    a a a . | b b | c c c c .     cu_seqlens = [0, 3, 5, 9]   cu_seqlens_padded = [0, 4, 6, 11]   t = 11

A batch ``[b, s, ...]`` is the same thing, with slots of ``s`` rows.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, SupportsIndex

import torch

from te_pkg.attention import layout_picture, layout_tree
from te_pkg.attention.caching import Device
from te_pkg.attention.errors import HostReadError, LayoutError, PaddingError
from te_pkg.attention.layout_checks import (
    CheckedOffsets,
    check_offsets,
    classify_padding,
)
from te_pkg.attention.layout_rows import LayoutRows
from te_pkg.attention.length_checks import Slots, check_lengths, check_slots
from te_pkg.attention.offsets import (
    as_int32,
    integers,
    offsets_of_counts,
    offsets_of_positions,
    offsets_of_token_mask,
    ordinary,
    place_of,
    refuse_copy,
    why_unreadable,
)
from te_pkg.attention.padding import Padding

__all__ = ["PackedLayout", "Padding", "classify_padding"]


@dataclass(frozen=True, eq=False, repr=False)
class PackedLayout(LayoutRows):
    """Which rows of a packed buffer belong to which sequence, for packed, padded and batched buffers alike.

    >>> layout = PackedLayout.from_lengths([3, 2, 4], pad_to_multiple=4)
    >>> layout.cu_seqlens_padded
    tensor([ 0,  4,  8, 12], dtype=torch.int32)
    >>> print(layout)
    PackedLayout: 3 sequences, 9 real rows of 12, 75.0% full, longest 4, on cpu
    padding: 3 rows: 3 between sequences
    a a a . | b b . . | c c c c

    It was checked when it was made, and is proof of that from then on: nothing that is called per step looks again.
    What the host knew then travels along, so with ``lengths`` known no method waits for the device. They are known
    unless the layout was made where values may not be read: under CUDA graph capture, ``torch.compile`` or
    ``torch.export``, or of fake or meta tensors. There both sizes must be given.

    The tensors are not copied, and are ordinary ones even if made under inference mode. Who refills them, as for the
    replay of a CUDA graph, makes what the host knows untrue: make such a layout inside the capture, or make a new one.
    Two layouts are equal if they are one object, because to compare values would be a host sync.

    It pickles, deep-copies, and is a node for ``torch.utils._pytree``, so it may be an argument or a result of
    functions under ``torch.compile(fullgraph=True)`` and ``torch.export``. Exported programs take layouts of any
    values and of the same two sizes, unless these are dynamic too: what the host knows is left out of them.

    Attributes:
        cu_seqlens: int32 ``[b + 1]``, the real rows before each sequence; starts at 0.
        cu_seqlens_padded: int32 ``[b + 1]``, where each slot begins; the same object where no slot is longer than its
            sequence, if that is known.
        total_tokens: ``t``, rows of the buffer.
        max_seqlen: ``s``, rows of the longest sequence, or the upper bound that was given.
        lengths: ``b`` numbers of real rows on the host, or None.
        slot_offsets: ``cu_seqlens_padded`` on the host, ``b + 1`` numbers, or None; known if ``lengths`` is.
        real_tokens: ``cu_seqlens[-1]`` on the host, or None; known if ``lengths`` is.

    Raises:
        ArgumentTypeError: a ``TypeError``; an argument is of a type that cannot be meant.
        LayoutError: a ``ValueError``, from here and from every constructor. Names argument, entry, value and
            expectation of every fault: offsets that do not start at 0, decrease, differ in number or device, are
            beyond int32, empty, not 1-D or no integers; a slot shorter than its sequence; sizes too small.
    """

    cu_seqlens: torch.Tensor
    cu_seqlens_padded: torch.Tensor
    total_tokens: int
    max_seqlen: int
    lengths: tuple[int, ...] | None = None
    slot_offsets: tuple[int, ...] | None = field(init=False)
    real_tokens: int | None = field(init=False)
    _kinds: Padding | None = field(init=False)

    def __post_init__(self) -> None:
        self._set(
            check_offsets(self.cu_seqlens, self.cu_seqlens_padded, self.total_tokens, self.max_seqlen, self.lengths)
        )

    @classmethod
    def _trusted(cls, checked: CheckedOffsets) -> PackedLayout:
        self = object.__new__(cls)
        self._set(checked)
        return self

    def _set(self, checked: CheckedOffsets) -> None:
        for name, value in zip(CheckedOffsets._fields, checked, strict=True):
            object.__setattr__(self, name, value)
        object.__setattr__(self, "_kinds", checked.padding)

    @classmethod
    def from_lengths(
        cls,
        lengths: Iterable[SupportsIndex] | torch.Tensor,
        pad_to_multiple: SupportsIndex = 1,
        total_tokens: SupportsIndex | None = None,
        device: Device = None,
        *,
        max_seqlen: SupportsIndex | None = None,
    ) -> PackedLayout:
        """One sequence behind the other, each in a slot of its length rounded up.

        Numbers on the host never sync. A tensor on a CUDA device is read once: one host sync; under capture it is not,
        and both sizes must be given.

        >>> PackedLayout.from_lengths([3, 5], pad_to_multiple=4, total_tokens=16).padding()
        <Padding.LAST|BETWEEN|CAPACITY: 7>

        Args:
            lengths: ``b`` numbers of rows, or an integer tensor ``[b]``.
            pad_to_multiple: each slot is a multiple of it; at least 1. ``2 * c`` for context parallelism.
            total_tokens: ``t``; None: up to the end of the last slot.
            device: of the offsets; None: that of a tensor, else torch's current default.
            max_seqlen: an upper bound to use for ``s``; None: the longest.

        Raises:
            LayoutError: see the class.
            CaptureError: a ``RuntimeError``; lengths on the host for another device, or the other way round, under
                CUDA graph capture.
        """
        return cls._trusted(check_lengths(lengths, total_tokens, max_seqlen, device, pad_to_multiple=pad_to_multiple))

    @classmethod
    def from_cu_seqlens(
        cls,
        cu_seqlens: torch.Tensor,
        cu_seqlens_padded: torch.Tensor | None = None,
        total_tokens: SupportsIndex | None = None,
        max_seqlen: SupportsIndex | None = None,
    ) -> PackedLayout:
        """Of the offsets that other libraries pass around.

        Offsets on a CUDA device are read once, together: one host sync, which checks them and lets the host know the
        lengths. Under capture and the like they are not; both sizes must then be given.

        >>> layout = PackedLayout.from_cu_seqlens(torch.tensor([0, 3, 5, 9]), torch.tensor([0, 4, 6, 11]))
        >>> layout.lengths, layout.total_tokens, layout.max_seqlen
        ((3, 2, 4), 11, 4)

        Args:
            cu_seqlens: int32 or int64 ``[b + 1]``, real rows; int32 is used as it is, int64 converted.
            cu_seqlens_padded: likewise, the slots; None: no slot is longer than its sequence.
            total_tokens: ``t``; None: up to the end of the last slot.
            max_seqlen: an upper bound to use for ``s``; None: the longest.
        """
        return cls._trusted(check_offsets(cu_seqlens, cu_seqlens_padded, total_tokens, max_seqlen))

    @classmethod
    def from_token_mask(
        cls,
        mask: torch.Tensor,
        *,
        total_tokens: SupportsIndex | None = None,
        max_seqlen: SupportsIndex | None = None,
    ) -> PackedLayout:
        """The packed buffer of a batch: each sequence has as many rows as its row of the mask has True.

        One host sync for a mask on a CUDA device; none under capture, where both sizes must be given.

        >>> PackedLayout.from_token_mask(torch.tensor([[True, True, False], [True, False, False]])).lengths
        (2, 1)

        Args:
            mask: bool or integer ``[b, s]``, True or not 0 for a real token, wherever in its row.
            total_tokens: ``t``; None: no row more than there are tokens.
            max_seqlen: an upper bound to use for ``s``; None: the longest.
        """
        return cls.from_cu_seqlens(offsets_of_token_mask(mask, "mask"), None, total_tokens, max_seqlen)

    @classmethod
    def from_position_ids(cls, ids: torch.Tensor, *, max_seqlen: SupportsIndex | None = None) -> PackedLayout:
        """Of the position of each row: a sequence starts where it is not greater than the one before.

        Two host syncs for ids on a CUDA device: how many sequences there are, and their lengths.

        >>> PackedLayout.from_position_ids(torch.tensor([0, 1, 2, 0, 1, 0, 1, 2, 3])).lengths
        (3, 2, 4)

        Args:
            ids: integers ``[t]``, or ``[n, t / n]`` where each row starts a sequence too.
            max_seqlen: an upper bound to use for ``s``; None: the longest.

        Raises:
            HostReadError: a ``RuntimeError``; under CUDA graph capture, because the number of sequences is not known.
        """
        return cls.from_cu_seqlens(offsets_of_positions(ids, "ids"), None, ids.numel(), max_seqlen)

    @classmethod
    def padded_batch(cls, lengths: Iterable[SupportsIndex] | torch.Tensor, max_seqlen: SupportsIndex) -> PackedLayout:
        """A batch ``[b, s, ...]`` itself, seen as ``[b * s, ...]``: every slot has ``s`` rows.

        Numbers on the host never sync. A tensor on a CUDA device is read once: one host sync; under capture it is not.

        >>> print(PackedLayout.padded_batch([3, 1], 4))
        PackedLayout: 2 sequences, 4 real rows of 8, 50.0% full, longest 3, on cpu
        padding: 4 rows: 1 between sequences, 3 after the last sequence
        a a a . | b . . .

        Args:
            lengths: ``b`` numbers of real rows, or an integer tensor ``[b]``.
            max_seqlen: ``s``, rows of each slot.
        """
        return cls._trusted(check_lengths(lengths, None, max_seqlen, None, as_batch=True))

    def padding(self) -> Padding:
        """Where this layout has rows of no sequence.

        No host sync where the lengths are known. Otherwise the offsets are read each time: one host sync.

        >>> PackedLayout.from_cu_seqlens(torch.tensor([0, 698]), torch.tensor([0, 704])).padding()
        <Padding.LAST: 1>

        Raises:
            HostReadError: a ``RuntimeError``; the lengths are not known, and may not be read now.
        """
        kinds = self._kinds if self._kinds is not None else self._read("padding()").padding
        return kinds or Padding.NONE

    def padded_to(self, multiple: SupportsIndex) -> PackedLayout:
        """The same sequences, each in a slot of its length rounded up, and no row more.

        No host sync where the lengths are known, and then capture-safe; otherwise one.

        >>> PackedLayout.from_lengths([3, 2, 4]).padded_to(4).cu_seqlens_padded
        tensor([ 0,  4,  8, 12], dtype=torch.int32)

        Args:
            multiple: at least 1; ``2 * c`` for context parallelism, 16 or 32 for FP8.

        Raises:
            LayoutError: ``multiple`` is less than 1, or the slots end beyond int32.
            HostReadError: a ``RuntimeError``; the lengths are not known, and may not be read now.
        """
        (multiple,) = integers(multiple=multiple)
        if multiple < 1:
            raise LayoutError([f"multiple is {multiple}, expected at least 1"])
        lengths, real_tokens = self.lengths, self.real_tokens
        if lengths is None or real_tokens is None:
            lengths, real_tokens = (read := self._read("padded_to()")).lengths or (), read.real_tokens or 0
        rounded = Slots(multiple)
        slots = check_slots(lengths, rounded, {})
        # On the device, because under capture nothing can be copied there.
        stored = (
            self.cu_seqlens
            if slots[-1] == real_tokens
            else offsets_of_counts(rounded.of_tensor(self.cu_seqlens.diff()))
        )
        return PackedLayout._trusted(
            CheckedOffsets(self.cu_seqlens, stored, slots[-1], self.max_seqlen, lengths, slots, real_tokens)
        )

    def to(self, device: Device) -> PackedLayout:
        """This layout with its offsets on ``device``; itself if they are there.

        To another device than the CPU no host sync. To the CPU it is one, and the host knows the lengths from then on.

        Raises:
            CaptureError: a ``RuntimeError``; between the CPU and another device under CUDA graph capture.
        """
        place = place_of(device)
        if place == self.device:
            return self
        refuse_copy(self.device, place)
        with ordinary():
            # A copy to the CPU that nobody waits for would be read before it is there.
            cu = self.cu_seqlens.to(place, non_blocking=place.type != "cpu")
            padded = self.cu_seqlens_padded
            padded = cu if padded is self.cu_seqlens else padded.to(place, non_blocking=place.type != "cpu")
        if self.lengths is None and why_unreadable(cu) is None:
            return PackedLayout.from_cu_seqlens(cu, padded, self.total_tokens, self.max_seqlen)
        return PackedLayout._trusted(
            CheckedOffsets(
                cu, padded, self.total_tokens, self.max_seqlen, self.lengths, self.slot_offsets, self.real_tokens
            )
        )

    def flash_attn_kwargs(self, seqused: bool = False) -> dict[str, torch.Tensor | int]:
        """The arguments that say where sequences lie, for ``flash_attn_varlen_func`` and its kin.

        No host sync where the lengths are known. Otherwise whether there are gaps is read each time: one host sync,
        which ``seqused=True`` spares.

        >>> sorted(PackedLayout.from_lengths([3, 2]).flash_attn_kwargs())
        ['cu_seqlens_k', 'cu_seqlens_q', 'max_seqlen_k', 'max_seqlen_q']

        Args:
            seqused: for kernels with ``seqused_q`` and ``seqused_k``: the slots, and how much of each is used.

        Raises:
            PaddingError: a ``ValueError``; slots begin later than a kernel without ``seqused`` would look for them.
            HostReadError: a ``RuntimeError``; the lengths are not known, and may not be read now.
        """
        if seqused:
            with ordinary():
                used = self.cu_seqlens.diff()
            return self._for_flash_attn(self.cu_seqlens_padded) | {"seqused_q": used, "seqused_k": used}
        if self.cu_seqlens_padded is not self.cu_seqlens and Padding.BETWEEN in self.padding():
            raise PaddingError(
                "the kernel would look for each sequence right behind the one before, but this layout has padding "
                "between them; hint: flash_attn_kwargs(seqused=True) for a kernel that takes seqused_q and seqused_k, "
                "or relayout to PackedLayout.from_lengths(layout.lengths) before"
            )
        return self._for_flash_attn(self.cu_seqlens)

    def _for_flash_attn(self, offsets: torch.Tensor) -> dict[str, torch.Tensor | int]:
        return {
            "cu_seqlens_q": offsets,
            "cu_seqlens_k": offsets,
            "max_seqlen_q": self.max_seqlen,
            "max_seqlen_k": self.max_seqlen,
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        # Under inference mode, torch copies and unpickles tensors as inference tensors.
        cu, padded = state["cu_seqlens"], state["cu_seqlens_padded"]
        ours = as_int32(cu)
        self.__dict__.update(state, cu_seqlens=ours, cu_seqlens_padded=ours if padded is cu else as_int32(padded))

    def __str__(self) -> str:
        # One host sync where the lengths are not known, and may be read.
        lengths, slot_offsets = self.lengths, self.slot_offsets
        if lengths is None or slot_offsets is None:
            reason = why_unreadable(self.cu_seqlens, self.cu_seqlens_padded)
            if reason is not None:
                return f"{self!r}\nlengths: not known, because {reason}"
            try:
                read = self._read("str()")
            except LayoutError as error:  # made where nothing could be read
                more = f" (and {len(error.faults) - 1} more)" if len(error.faults) > 1 else ""
                return f"{self!r}\nlengths: none, because this is no layout: {error.faults[0]}{more}"
            lengths, slot_offsets = read.lengths or (), read.slot_offsets or (0,)
        return layout_picture.draw(lengths, slot_offsets, self.total_tokens, str(self.device))

    def __repr__(self) -> str:
        return (
            f"<PackedLayout: {self.num_sequences} sequences in {self.total_tokens} rows, max_seqlen {self.max_seqlen}, "
            f"on {self.device}>"
        )

    def _read(self, what: str) -> CheckedOffsets:
        reason = why_unreadable(self.cu_seqlens, self.cu_seqlens_padded)
        if reason is not None:
            raise HostReadError(
                f"{what} needs the lengths on the host, and they cannot be read, because {reason}; hint: make the "
                "layout before, of lengths that the host knows"
            )
        return check_offsets(self.cu_seqlens, self.cu_seqlens_padded, self.total_tokens, self.max_seqlen)


layout_tree.register(PackedLayout, PackedLayout._trusted)
