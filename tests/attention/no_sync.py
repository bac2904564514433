"""Proof without a GPU that a path never waits for the device: everything that would wait raises."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest import mock

import torch
from torch._library.custom_ops import OPDEFS
from torch.utils._python_dispatch import TorchDispatchMode

# What a dispatch mode cannot see: on the CPU `tolist` and `cpu` never dispatch, and a custom op hides its body.
_FUNCTIONS = [
    "allclose",
    "argwhere",
    "bincount",
    "equal",
    "is_nonzero",
    "masked_select",
    "nonzero",
    "unique",
    "unique_consecutive",
]
_METHODS = [
    "__array__",
    "__bool__",
    "__complex__",
    "__contains__",
    "__float__",
    "__index__",
    "__int__",
    "cpu",
    "item",
    "numpy",
    "tolist",
    *_FUNCTIONS,
]
_UPLOADS = ["as_tensor", "asarray", "from_numpy", "frombuffer", "tensor"]

# By name, because not all of them carry a tag. Those with a tag are found by it.
_OPERATIONS = frozenset({*_FUNCTIONS, "_local_scalar_dense", "_unique", "_unique2", "unique_dim"})
_TAGS = frozenset({torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape})


class SyncError(AssertionError):
    """The host would have waited for the device."""


@contextmanager
def forbid_sync(*, mode: bool = True, uploads: bool = True) -> Iterator[None]:
    """Raise :class:`SyncError` wherever a CUDA tensor would make the host wait, or have a shape that its data decides.

    Seen are Tensor methods and torch functions wherever they are called from, and every operation that is dispatched,
    in bodies of custom ops too.

    Args:
        mode: watch operations by a dispatch mode. Code that takes another way under a mode (``is_tracing``) is watched
            on its usual way with ``mode=False``, by methods and functions alone.
        uploads: allow tensors made of data on the host, which under CUDA graph capture is forbidden too.
    """
    with ExitStack() as stack:
        for owner, names in ((torch.Tensor, _METHODS), (torch, _FUNCTIONS), (torch, () if uploads else _UPLOADS)):
            for name in names:
                if hasattr(owner, name):
                    stack.enter_context(mock.patch.object(owner, name, _raiser(name)))
        for name in ("__getitem__", "__setitem__"):
            stack.enter_context(mock.patch.object(torch.Tensor, name, _watch_index(getattr(torch.Tensor, name))))
        stack.enter_context(mock.patch.object(torch.Tensor, "to", _watch_to(torch.Tensor.to)))
        stack.enter_context(mock.patch.object(torch.Tensor, "copy_", _watch_copy(torch.Tensor.copy_)))
        for owner in (torch, torch.Tensor):
            stack.enter_context(mock.patch.object(owner, "repeat_interleave", _watch_repeat(owner.repeat_interleave)))
        stack.enter_context(mock.patch.object(torch, "where", _watch_where(torch.where)))
        if mode:
            watch = _Watch(uploads)
            for definition in OPDEFS.values():
                bodies = {device: _watch_body(watch, body) for device, body in definition._backend_fns.items()}
                stack.enter_context(mock.patch.dict(definition._backend_fns, bodies))
            stack.enter_context(watch)
        yield


class _Watch(TorchDispatchMode):
    def __init__(self, uploads: bool) -> None:
        super().__init__()
        self.uploads = uploads

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        name = func._schema.name.removeprefix("aten::")
        if func._schema.name == "aten::repeat_interleave":
            if kwargs.get("output_size") is None:
                raise SyncError("repeat_interleave without output_size reads the sum of its repeats")
        elif name in ("index", "index_put", "index_put_", "_index_put_impl_", "_unsafe_index"):
            for index in args[1]:
                _check_index(index)
        elif name in _OPERATIONS or (func.namespace == "aten" and _TAGS & set(func.tags)):
            raise SyncError(f"{func} reads values")
        elif name in ("_to_copy", "copy_"):
            target = args[0].device if name == "copy_" else kwargs.get("device")
            source = args[1] if name == "copy_" else args[0]
            _check_copy(source, target)
        elif name == "lift_fresh" and not self.uploads:
            raise SyncError("a tensor made of data on the host is a copy from pageable memory")
        return func(*args, **kwargs)


def _watch_body(watch: _Watch, body: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(body)
    def watched(*args: Any, **kwargs: Any) -> Any:
        with watch:
            return body(*args, **kwargs)

    return watched


def _raiser(name: str) -> Callable[..., Any]:
    def forbidden(*args: Any, **kwargs: Any) -> Any:
        raise SyncError(f"{name} reads values, or copies data between host and device")

    return forbidden


def _watch_index(original: Callable[..., Any]) -> Callable[..., Any]:
    def watched(self: torch.Tensor, key: Any, *value: Any) -> Any:
        for index in key if isinstance(key, tuple) else (key,):
            _check_index(index)
        return original(self, key, *value)

    return watched


def _watch_to(original: Callable[..., Any]) -> Callable[..., Any]:
    def watched(self: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        for target in (*args[:1], kwargs.get("device")):
            if isinstance(target, (str, torch.device)):
                _check_copy(self, torch.device(target))
        return original(self, *args, **kwargs)

    return watched


def _watch_copy(original: Callable[..., Any]) -> Callable[..., Any]:
    def watched(self: torch.Tensor, source: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        _check_copy(source, self.device)
        return original(self, source, *args, **kwargs)

    return watched


def _watch_repeat(original: Callable[..., Any]) -> Callable[..., Any]:
    def watched(*args: Any, **kwargs: Any) -> Any:
        repeats = kwargs.get("repeats", args[1] if len(args) > 1 else args[0])
        if isinstance(repeats, torch.Tensor) and kwargs.get("output_size") is None:
            raise SyncError("repeat_interleave without output_size reads the sum of its repeats")
        return original(*args, **kwargs)

    return watched


def _watch_where(original: Callable[..., Any]) -> Callable[..., Any]:
    def watched(*args: Any, **kwargs: Any) -> Any:
        if len(args) + len(kwargs) == 1:
            raise SyncError("where of a condition alone is nonzero")
        return original(*args, **kwargs)

    return watched


def _check_index(index: Any) -> None:
    if isinstance(index, torch.Tensor) and index.dtype in (torch.bool, torch.uint8):
        raise SyncError("an index of bools is nonzero")


def _check_copy(source: Any, target: torch.device | None) -> None:
    if target is not None and isinstance(source, torch.Tensor) and target.type == "cpu" != source.device.type:
        raise SyncError(f"a copy from {source.device} to the host waits for {source.device}")
