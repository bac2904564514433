"""The one policy for every tensor that this package keeps.

A kept tensor must be right for whoever asks next, so:

- The key holds all that the content depends on, because the maker sees nothing but the key; the device is part of it,
  with its index.
- The tensor is ordinary, made with inference mode off: one serves inference and training.
- Where a call made now would not give an ordinary tensor, or where it must be recorded as an operation, nothing is
  read from the cache and nothing is stored: compile, export, ONNX, fake tensors, any other active mode, functorch
  transforms, CUDA graph capture.
- What a caller changed in place is replaced. Seen are torch's own operations on the tensor and on its views, and
  whatever moves its memory or shape. Not seen, because torch counts no version there: values written through
  ``.data``, ``.numpy()`` or the storage.
- The number of entries is bounded, the least recently used goes first; one lock guards all, also across a fork.

Source: the defects that Transformer Engine PR 2728 reports for a cache keyed by sizes alone.
"""

from __future__ import annotations

import os
import sys
import threading
import weakref
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any, NoReturn, Self, TypeAlias

import torch
from torch._C import (
    DisableTorchFunction,
    _functorch,
    _get_function_stack_at,
    _get_tracing_state,
    _is_torch_function_mode_enabled,
    _len_torch_dispatch_stack,
    _len_torch_function_stack,
)
from torch.compiler import is_compiling
from torch.utils._device import DeviceContext

from te_pkg.attention import capture
from te_pkg.attention.errors import ArgumentError, ArgumentTypeError
from te_pkg.attention.kept_tensor import KeptTensor

__all__ = ["CacheInfo", "Kept", "TensorCache", "cache_info", "clear_caches", "is_tracing", "lock", "resolve_device"]

Device: TypeAlias = torch.device | str | int | None

# Re-entrant, because freeing a tensor or collecting garbage while it is held may run a finaliser that asks a cache.
# One for all caches, so that a fork has one lock to take.
lock = threading.RLock()
_registry: weakref.WeakValueDictionary[str, Kept] = weakref.WeakValueDictionary()
_left_behind_by_fork: list[object] = []

# Spellings that always mean the same device. "cuda" is none of them: it means whichever is current.
_fixed_devices: dict[object, torch.device] = {}


@dataclass(frozen=True, slots=True)
class CacheInfo:
    """What a cache did since it was made or cleared. What it keeps are tensors, or answers about a caller's tensors.

    Attributes:
        hits: calls that were answered with what is kept.
        misses: calls that made something to keep it.
        bypasses: calls that neither read nor stored; those under ``torch.compile`` and ``torch.export`` do not count.
        replaced: things kept that were dropped because a caller had changed the tensor; each is a miss too.
        entries: things kept now.
        max_entries: the bound.
        bytes: memory that this takes.
    """

    hits: int
    misses: int
    bypasses: int
    replaced: int
    entries: int
    max_entries: int
    bytes: int


class Kept(ABC):
    """A bounded memory of the process, guarded by :data:`lock`: a model that holds one is copied without it."""

    def __init__(self, name: str, max_entries: int) -> None:
        if type(max_entries) is not int or max_entries < 1:
            refusal = ArgumentError if type(max_entries) is int else ArgumentTypeError
            raise refusal(f"max_entries must be an integer, at least 1, got {max_entries!r}")
        self.name = name
        self.max_entries = max_entries
        with lock:
            if name in _registry:
                raise ArgumentError(f"a cache named {name!r} exists already, expected a name of its own")
            _registry[name] = self

    @abstractmethod
    def clear(self) -> None:
        """Forget what is kept and set the counts to 0."""

    @abstractmethod
    def info(self) -> CacheInfo:
        """The counts, taken at one moment."""

    @abstractmethod
    def _leave_behind(self) -> None:
        """In the child of a fork: let go of what lies on a device, and free nothing."""

    def __copy__(self) -> Self:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return self

    def __reduce__(self) -> NoReturn:
        raise ArgumentTypeError(f"the cache {self.name!r} belongs to its process and cannot be pickled")


class TensorCache(Kept):
    """Keeps what ``make(*key, device=...)`` returns; ``make`` is a pure function of its arguments.

    >>> cache = TensorCache("doctest: squares", lambda n, *, device: torch.arange(n, device=device) ** 2, max_entries=2)
    >>> cache.get((4,)) is cache.get((4,), "cpu")
    True
    >>> cache.info().hits, cache.info().entries
    (1, 1)

    Equal keys are one key, so numbers are brought to one type before: ``(True,)``, ``(1,)`` and ``(1.0,)`` are equal.

    Args:
        name: names the cache in :func:`cache_info`; a ``ValueError`` where a living one has it.
        make: called without the lock, with inference and gradient mode off.
        max_entries: a ``ValueError`` where less than 1.
    """

    def __init__(self, name: str, make: Callable[..., torch.Tensor], *, max_entries: int) -> None:
        self._make = make
        self._entries: OrderedDict[Hashable, KeptTensor] = OrderedDict()
        self._hits = self._misses = self._bypasses = self._replaced = 0
        super().__init__(name, max_entries)

    def get(self, key: tuple[Hashable, ...], device: Device = None) -> torch.Tensor:
        """The tensor for ``key`` on ``device``; ``None`` means where ``torch.empty`` would put it.

        The caller must not change it. No host sync; on CUDA, a stream that meets the tensor for the first time is made
        to wait until it has been filled.
        """
        if is_compiling():  # first, and alone: Dynamo follows this line and must not see a lock or a count
            return self._make(*key, device=device)
        if _must_record() or capture.is_capturing():
            return self._bypass(key, device)
        if _is_torch_function_mode_enabled():
            if _is_function_watched():
                return self._bypass(key, device)
            # Left is the default device. It is settled here, or it would see every attribute of a tensor that is read.
            place = resolve_device(device)
            with DisableTorchFunction():
                return self.get(key, place)
        place = _fixed_devices.get(device) or resolve_device(device)
        full_key = (key, place)
        with lock:
            entry = self._entries.get(full_key)
            if entry is not None:
                tensor = entry.tensor
                if (
                    tensor._version == entry.version
                    and tensor.data_ptr() == entry.address
                    and tensor.shape == entry.shape
                ):
                    self._entries.move_to_end(full_key)
                    self._hits += 1
                    if entry.streams is not None:
                        entry.streams.admit_current(tensor)
                    return tensor
        return self._miss(key, place, full_key)

    def kept(self, key: tuple[Hashable, ...], place: torch.device) -> torch.Tensor | None:
        """What :meth:`get` would find on the CPU, at less cost, where nothing is compiled or captured; None: ask it."""
        # As `_must_record` and `is_intact`, written out: a call costs as much as what it asks.
        if (
            _len_torch_dispatch_stack()
            or _functorch.peek_interpreter_stack() is not None
            or _get_tracing_state() is not None
            or _is_torch_function_mode_enabled()
        ):
            return None
        full_key = (key, place)
        with lock:
            entry = self._entries.get(full_key)
            if entry is None or entry.streams is not None:
                return None
            tensor = entry.tensor
            if tensor._version != entry.version or tensor.data_ptr() != entry.address or tensor.shape != entry.shape:
                return None
            self._entries.move_to_end(full_key)
            self._hits += 1
            return tensor

    def clear(self) -> None:
        """Forget every tensor and set the counts to 0."""
        with lock:
            forgotten, self._entries = self._entries, OrderedDict()
            self._hits = self._misses = self._bypasses = self._replaced = 0
        forgotten.clear()

    def info(self) -> CacheInfo:
        """The counts, taken at one moment."""
        with lock:
            return CacheInfo(
                hits=self._hits,
                misses=self._misses,
                bypasses=self._bypasses,
                replaced=self._replaced,
                entries=len(self._entries),
                max_entries=self.max_entries,
                bytes=sum(entry.tensor.untyped_storage().nbytes() for entry in self._entries.values()),
            )

    def _bypass(self, key: tuple[Hashable, ...], device: Device) -> torch.Tensor:
        with lock:
            self._bypasses += 1
        # Under a mode the two guards below would be recorded as well; a capture records kernels only.
        return self._make(*key, device=device) if is_tracing() else self._make_ordinary(key, device)

    def _miss(self, key: tuple[Hashable, ...], place: torch.device, full_key: Hashable) -> torch.Tensor:
        tensor = self._make_ordinary(key, place)
        if not _may_be_kept(tensor, place):
            with lock:
                self._bypasses += 1
            return tensor
        entry = KeptTensor(tensor)
        dropped = []  # freed after the lock is
        with lock:
            self._misses += 1
            present = self._entries.pop(full_key, None)
            if present is not None and present.is_intact():
                # Another thread was faster, and its tensor is out already.
                dropped.append(tensor)
                tensor = present.tensor
                self._entries[full_key] = present
                if present.streams is not None:
                    present.streams.admit_current(tensor)
                return tensor
            if present is not None:
                self._replaced += 1
                dropped.append(present.tensor)
            self._entries[full_key] = entry
            while len(self._entries) > self.max_entries:
                dropped.append(self._entries.popitem(last=False)[1].tensor)
        return tensor

    def _make_ordinary(self, key: tuple[Hashable, ...], device: Device) -> torch.Tensor:
        if torch.is_inference_mode_enabled():
            with torch.inference_mode(False), torch.no_grad():  # leaving inference mode turns gradients on
                return self._make(*key, device=device)
        with torch.no_grad():
            return self._make(*key, device=device)

    def _leave_behind(self) -> None:
        # In the child of a fork a device's memory is out of reach, and freeing it may wait for an allocator lock that
        # a thread of the parent held. Torch says so itself as soon as the child makes a tensor there.
        _left_behind_by_fork.append(self._entries)
        self._entries = OrderedDict(
            (key, entry) for key, entry in self._entries.items() if entry.tensor.device.type == "cpu"
        )


def is_tracing() -> bool:
    """Whether operations are now recorded or intercepted instead of just run, so that values may not be relied on.

    True under ``torch.compile``, ``torch.export``, ONNX export, ``torch.jit.trace``, ``FakeTensorMode``, ``make_fx``,
    any other dispatch or function mode, and functorch transforms (``vmap``, ``grad``, ``jvp``, ``functionalize``).
    ``torch.device`` as a context and ``torch.set_default_device`` only choose a device: they do not count.

    >>> is_tracing()
    False
    """
    return is_compiling() or _must_record() or _is_function_watched()


def _must_record() -> bool:
    # Any mode, not only fake tensors: selective checkpointing, for one, replays the operations that it recorded, so a
    # miss in the first pass would not match a hit in the second. A depth costs 40 ns, `detect_fake_mode` 3500.
    if (
        _len_torch_dispatch_stack()
        or _functorch.peek_interpreter_stack() is not None
        or _get_tracing_state() is not None
    ):
        return True
    # An ONNX export always traces, by one of the ways above or by `torch.export`. Torch's own function says no more,
    # takes 1100 ns, and is asked before a tensor is stored; one put in its place is asked here. Unloaded: no export.
    onnx = sys.modules.get("torch.onnx")
    if onnx is None or getattr(onnx.is_in_onnx_export, "__globals__", None) is onnx.__dict__:
        return False
    return bool(onnx.is_in_onnx_export())


def _is_function_watched() -> bool:
    # A default device is a function mode too: always at the bottom, and the only one of its kind.
    return _is_torch_function_mode_enabled() and (
        _len_torch_function_stack() > 1 or type(_get_function_stack_at(0)) is not DeviceContext
    )


def _may_be_kept(tensor: torch.Tensor, place: torch.device) -> bool:
    onnx = sys.modules.get("torch.onnx")
    return (
        type(tensor) is torch.Tensor  # a fake tensor is a subclass, as every other wrapper in Python
        and tensor.device == place
        and tensor.layout == torch.strided
        and not tensor.requires_grad
        and not tensor.is_inference()
        and not _functorch.is_functorch_wrapped_tensor(tensor)
        and not torch._is_functional_tensor(tensor)
        and not (onnx is not None and onnx.is_in_onnx_export())
    )


def resolve_device(device: Device) -> torch.device:
    """``device`` with its index, as ``torch.empty`` would understand it: ``cuda`` is the current one.

    >>> resolve_device("cpu")
    device(type='cpu')

    Raises:
        RuntimeError, TypeError: torch's own, where it knows no such device.
    """
    fixed = _fixed_devices.get(device)
    if fixed is not None:
        return fixed
    if device is None:
        bottom = _get_function_stack_at(0) if _is_torch_function_mode_enabled() else None
        device = bottom.device if isinstance(bottom, DeviceContext) else torch._C._get_default_device()
        if device in _fixed_devices:
            return _fixed_devices[device]
    if isinstance(device, (str, torch.device)):
        parsed = torch.device(device)
        if parsed.type in ("cpu", "meta"):
            # An index means nothing there, and torch drops it.
            place = _fixed_devices[device] = torch.device(parsed.type)
            return place
        if parsed.index is not None:
            _fixed_devices[device] = parsed
            return parsed
        if parsed.type == "cuda":
            return torch.device("cuda", torch.cuda.current_device())
    return torch.empty(0, device=device).device


def clear_caches() -> None:
    """Forget all that this package keeps, and set all counts to 0. Tensors that callers hold stay valid."""
    for cache in _living():
        cache.clear()


def cache_info() -> dict[str, CacheInfo]:
    """What each cache of this package did, by name.

    >>> cache_info()["full_cu_seqlens"].max_entries
    256
    """
    return {cache.name: cache.info() for cache in _living()}


def _living() -> list[Kept]:
    with lock:
        return sorted(_registry.values(), key=lambda cache: cache.name)


def _after_fork_in_child() -> None:
    for cache in _living():
        cache._leave_behind()
    lock.release()


if hasattr(os, "register_at_fork"):
    # Taken before, so that no other thread is in the midst of a change when its memory is copied.
    os.register_at_fork(before=lock.acquire, after_in_parent=lock.release, after_in_child=_after_fork_in_child)
