"""Whether a packed batch has padding between its sequences: asked by value once, remembered for CUDA graphs.

``b`` sequences. Padding *between* is a slot before the last that is longer than its sequence; with context parallelism
the last slot counts as well, because every slot is cut in chunks there.

To compare values on a device the host must wait for it, which a CUDA graph capture forbids. So an answer that was found
in eager is remembered for the very tensors that were asked about:

- by weak reference, because an ``id`` is given again as soon as a tensor is freed;
- together with their mutation version, their address and their shape;
- not for inference tensors, which count no version, and never for fake ones.

Some writes count no version, and go unseen: through ``.data``, numpy, DLPack or a kernel of one's own, those of
``torch.distributed`` (torch 2.13), and those of a graph that is replayed. After one, call
``torch.autograd.graph.increment_version(tensor)``.

Source: the reports in Transformer Engine issues 3487, 3331 and 1930.
"""

from __future__ import annotations

import itertools
import weakref
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch.compiler import is_compiling

from te_pkg.attention import capture
from te_pkg.attention.caching import CacheInfo, Kept, lock
from te_pkg.attention.errors import ArgumentTypeError, HostReadError, LayoutError
from te_pkg.attention.offset_pairs import (
    Pair,
    check_cp_size,
    check_format,
    check_tensors,
    classify,
    faults_of,
    without_modes,
)
from te_pkg.attention.offsets import is_traced, why_unreadable
from te_pkg.attention.padding import Padding
from te_pkg.attention.replay_checks import ReplayCheck, StalePaddingDecision, read_checks

__all__ = ["PaddingDecisions", "default_padding_decisions", "resolve_pad_between_seqs", "verify_replay"]

_Q = ("cu_seqlens_q", "cu_seqlens_q_padded")
_KV = ("cu_seqlens_kv", "cu_seqlens_kv_padded")

_numbers = itertools.count(1)
_left_behind_by_fork: list[object] = []


def resolve_pad_between_seqs(
    cu_seqlens_q: torch.Tensor | None,
    cu_seqlens_kv: torch.Tensor | None,
    cu_seqlens_q_padded: torch.Tensor | None = None,
    cu_seqlens_kv_padded: torch.Tensor | None = None,
    *,
    qkv_format: str = "thd",
    pad_between_seqs: bool | None = None,
    cp_size: int = 1,
    decisions: PaddingDecisions | None = None,
) -> bool:
    """Whether attention must expect padding between sequences. True is always right, and only slower.

    1. An explicit ``pad_between_seqs`` wins. A format other than ``thd`` has none.
    2. A side (queries, or keys and values) without padded offsets, or whose padded offsets are the same object, has
       none.
    3. In eager the values decide: True if a slot before the last is longer than its sequence, on either side; with
       ``cp_size > 1`` also if the last one is. The answer is remembered. Host sync: one for each pair of tensors that
       is new or was changed.
    4. While a CUDA graph captures, the remembered answer for the same unchanged tensors counts, and is checked again in
       each replay, see :func:`verify_replay`; where there is none, True. No host sync.

    Under ``torch.compile``, ``torch.export`` and any other tracing, and for fake tensors, nothing is read or
    remembered: where 1 and 2 do not settle it the answer is True, without a graph break. Ask outside, and pass it in.

    Each call under capture adds two small kernels for each side to the graph: ask once for all layers.

    >>> cu = torch.tensor([0, 3, 8], dtype=torch.int32)
    >>> equal, gap = cu.clone(), torch.tensor([0, 4, 9], dtype=torch.int32)
    >>> resolve_pad_between_seqs(cu, cu, equal, equal)
    False
    >>> resolve_pad_between_seqs(cu, cu, equal, gap)
    True
    >>> whole, slot = torch.tensor([0, 698]), torch.tensor([0, 704])
    >>> [resolve_pad_between_seqs(whole, whole, slot, slot, cp_size=c) for c in (1, 4)]
    [False, True]

    Args:
        cu_seqlens_q: int32 or int64 ``[b + 1]``, offsets of the sequences without padding. Only a side with padded
            offsets needs them.
        cu_seqlens_kv: likewise, of keys and values.
        cu_seqlens_q_padded: int32 or int64 ``[b + 1]``, offsets of the slots, on the same device.
        cu_seqlens_kv_padded: likewise, of keys and values.
        qkv_format: ``thd``, ``bshd``, ``sbhd``, or two of them as in ``thd_2bshd``.
        pad_between_seqs: the answer, where the caller knows it.
        cp_size: ``c``, number of context-parallel ranks, at least 1.
        decisions: the memory; one for the process where it is None.

    Raises:
        ArgumentTypeError: a ``TypeError``; an argument is of a type that cannot be meant.
        ArgumentError: a ``ValueError``; the format is unknown, or ``cp_size`` is less than 1.
        LayoutError: a ``ValueError`` with every fault; offsets that were read are no layout.
    """
    if pad_between_seqs is not None:
        if isinstance(pad_between_seqs, bool):
            return pad_between_seqs
        raise ArgumentTypeError(f"pad_between_seqs must be a bool or None, got {pad_between_seqs!r}")
    if qkv_format != "thd":
        check_format(qkv_format)
        return False
    open_q = cu_seqlens_q_padded is not None and cu_seqlens_q_padded is not cu_seqlens_q
    open_kv = cu_seqlens_kv_padded is not None and cu_seqlens_kv_padded is not cu_seqlens_kv
    if not (open_q or open_kv):
        return False
    if is_compiling():  # Dynamo follows this line and must not see a lock or a weak reference
        return True
    if type(cp_size) is not int or cp_size < 1:
        cp_size = check_cp_size(cp_size)
    memory = _memory_of(decisions)
    if not open_kv:
        return memory._ask(((_Q, cu_seqlens_q, cu_seqlens_q_padded),), cp_size > 1)
    if not open_q:
        return memory._ask(((_KV, cu_seqlens_kv, cu_seqlens_kv_padded),), cp_size > 1)
    if cu_seqlens_q is cu_seqlens_kv and cu_seqlens_q_padded is cu_seqlens_kv_padded:
        return memory._ask((((*_Q, *_KV), cu_seqlens_q, cu_seqlens_q_padded),), cp_size > 1)
    return memory._ask(
        ((_Q, cu_seqlens_q, cu_seqlens_q_padded), (_KV, cu_seqlens_kv, cu_seqlens_kv_padded)), cp_size > 1
    )


def verify_replay(decisions: PaddingDecisions | None = None) -> None:
    """Raise if a CUDA graph was replayed with padding between sequences that its capture had ruled out.

    Host sync: waits for all work on each device that has a check, on whatever stream. Call it as seldom as you like:
    what any replay met since the last call is still known. What it raises for is cleared, and the answers forgotten.

    >>> verify_replay()

    Args:
        decisions: the memory that :func:`resolve_pad_between_seqs` was given; the default one where it is None.

    Raises:
        StalePaddingDecision: a ``RuntimeError`` that names the buffers which were refilled.
        HostReadError: a ``RuntimeError``; a CUDA graph is being captured.
    """
    _memory_of(decisions).verify_replay()


class PaddingDecisions(Kept):
    """What :func:`resolve_pad_between_seqs` found for tensors that are still alive and unchanged.

    Kept for a pair of offsets are the kinds of its padding, so an answer found with one ``cp_size`` serves another.
    Threads may share it. An entry goes with the first of its tensors, and the least recently used goes where there are
    too many.

    >>> decisions = PaddingDecisions()
    >>> cu, padded = torch.tensor([0, 8, 16]), torch.tensor([0, 8, 16])
    >>> resolve_pad_between_seqs(cu, cu, padded, padded, decisions=decisions)  # warm-up: read by value
    False
    >>> with capture.mark_capturing():  # remembered
    ...     resolve_pad_between_seqs(cu, cu, padded, padded, decisions=decisions)
    False
    >>> _ = padded.copy_(torch.tensor([0, 9, 17]))
    >>> with capture.mark_capturing():  # changed since
    ...     resolve_pad_between_seqs(cu, cu, padded, padded, decisions=decisions)
    True

    Args:
        max_entries: pairs of offsets that are remembered; an ``ArgumentError`` where less than 1.
    """

    def __init__(self, max_entries: int = 256) -> None:
        number = next(_numbers)
        self._entries: OrderedDict[tuple[int, int], _Entry] = OrderedDict()
        self._recorded: dict[ReplayCheck, None] = {}
        self._hits = self._misses = self._bypasses = self._replaced = 0
        super().__init__("padding_decisions" if number == 1 else f"padding_decisions {number}", max_entries)

    def clear(self) -> None:
        """Forget the answers and set the counts to 0. Checks that graphs recorded stay: a graph may be replayed."""
        with lock:
            forgotten, self._entries = self._entries, OrderedDict()
            self._hits = self._misses = self._bypasses = self._replaced = 0
        forgotten.clear()

    def info(self) -> CacheInfo:
        """The counts, taken at one moment; a question about one pair of offsets is one call."""
        with lock:
            entries = list(self._entries.values())
            checks = {*self._recorded, *(entry.check for entry in entries if entry.check is not None)}
            return CacheInfo(
                hits=self._hits,
                misses=self._misses,
                bypasses=self._bypasses,
                replaced=self._replaced,
                entries=len(entries),
                max_entries=self.max_entries,
                bytes=sum(check.nbytes for check in checks),
            )

    def verify_replay(self) -> None:
        """The method behind :func:`te_pkg.attention.verify_replay`: the same host sync, the same errors."""
        if capture.is_capturing():
            raise HostReadError(
                "verify_replay() waits for the device, and a CUDA graph is being captured; hint: call it after replays"
            )
        with lock:
            checks = list(self._recorded)
        stale = read_checks(checks)
        if not stale:
            return
        with lock:
            for entry in list(self._entries.values()):
                if entry.check in stale:
                    entry.marks = None
        raise StalePaddingDecision(stale.values())

    def forget_graphs(self) -> None:
        """Let go of all checks that graphs recorded, and of the memory of the offsets in them.

        Only where those graphs are never replayed again: a replay would write to memory that is no longer theirs. It
        is needed only where graphs are captured over ever new offsets: a check takes about three times their size.
        """
        with lock:
            forgotten, self._recorded = self._recorded, {}
            for key, entry in list(self._entries.items()):
                if entry.check in forgotten:
                    self._entries.pop(key, None)
            _needed_by_graphs.discard(self)
        forgotten.clear()

    def _ask(self, pairs: tuple[Pair, ...], with_last: bool) -> bool:
        if is_traced():  # fake tensors too: the passes of an export must not find different answers
            return self._give_up()
        capturing = capture.is_capturing()
        relied_on = []
        for i, pair in enumerate(pairs):
            entry = self._recall(pair)
            if entry is None:
                check_tensors(pairs)
                if capturing or why_unreadable(*pair[1:]) is not None:
                    return self._give_up()
                try:
                    entry = self._read(pair)
                except LayoutError as error:
                    others = [fault for other in pairs[i + 1 :] for fault in faults_of(other)]
                    raise LayoutError([*error.faults, *others]) from None
            if entry.between or (with_last and entry.last):
                return True
            relied_on.append((pair, entry.check))
        if capturing:
            self._record(relied_on, with_last)
        return False

    def _give_up(self) -> bool:
        with lock:
            self._bypasses += 1
        return True

    def _recall(self, pair: Pair) -> _Entry | None:
        _, cu, padded = pair
        key = id(cu), id(padded)
        with lock:
            entry = self._entries.get(key)
            if entry is None or not entry.is_of(cu, padded) or entry.marks != _marks(cu, padded):
                return None
            self._entries.move_to_end(key)
            self._hits += 1
            return entry

    def _read(self, pair: Pair) -> _Entry:
        _, cu, padded = pair
        to_keep = not (cu.is_inference() or padded.is_inference())
        marks = _marks(cu, padded) if to_keep else None  # taken first: who writes meanwhile makes them old
        with without_modes():
            kinds = classify(pair)
            between = Padding.BETWEEN in kinds
            check = ReplayCheck(cu, padded) if to_keep and not between else None
        key = id(cu), id(padded)
        forget = _forgetter(self._entries, key)
        entry = _Entry(
            weakref.ref(cu, forget), weakref.ref(padded, forget), marks, between, Padding.LAST in kinds, check
        )
        dropped = []  # freed after the lock is
        with lock:
            if not to_keep:
                self._bypasses += 1
                return entry
            self._misses += 1
            present = self._entries.pop(key, None)
            if present is not None and present.is_of(cu, padded):
                self._replaced += 1
                # Graphs may have recorded it: they and those to come then share one, unless the memory is another now.
                if present.check is not None and present.check.fits(cu, padded):
                    entry.check = present.check
            dropped.append(present)
            self._entries[key] = entry
            while len(self._entries) > self.max_entries:
                dropped.append(self._entries.popitem(last=False)[1])
        return entry

    def _record(self, relied_on: list[tuple[Pair, ReplayCheck | None]], with_last: bool) -> None:
        for (names, cu, padded), check in relied_on:
            if check is not None:
                with lock:
                    self._recorded[check] = None
                    _needed_by_graphs.add(self)
                check.record(cu, padded, names, with_last=with_last)

    def _leave_behind(self) -> None:
        _left_behind_by_fork.append((list(self._entries.values()), self._recorded))
        self._entries, self._recorded = OrderedDict(), {}


@dataclass(slots=True, eq=False)
class _Entry:
    """The padding of a pair of offsets, and what the two were when they were read."""

    cu: weakref.ref[torch.Tensor]
    padded: weakref.ref[torch.Tensor]
    marks: tuple[object, ...] | None
    between: bool
    last: bool
    check: ReplayCheck | None
    """None where there is padding between: True needs no check."""

    def is_of(self, cu: torch.Tensor, padded: torch.Tensor) -> bool:
        return self.cu() is cu and self.padded() is padded


def _marks(cu: torch.Tensor, padded: torch.Tensor) -> tuple[object, ...]:
    return cu._version, padded._version, cu.data_ptr(), padded.data_ptr(), cu.shape, padded.shape


def _forgetter(
    entries: OrderedDict[tuple[int, int], _Entry], key: tuple[int, int]
) -> Callable[[weakref.ref[torch.Tensor]], None]:
    held = lock  # the module may be gone when the last tensors are

    def forget(dead: weakref.ref[torch.Tensor]) -> None:
        with held:
            entries.pop(key, None)

    return forget


def _memory_of(decisions: PaddingDecisions | None) -> PaddingDecisions:
    if decisions is None:
        return default_padding_decisions
    if isinstance(decisions, PaddingDecisions):
        return decisions
    raise ArgumentTypeError(f"decisions must be PaddingDecisions or None, got {decisions!r}")


# A graph that recorded a check writes to its memory in each replay, also when nobody holds the decisions any more.
_needed_by_graphs: set[PaddingDecisions] = set()

default_padding_decisions = PaddingDecisions()
