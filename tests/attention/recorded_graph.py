"""A CUDA graph's stand-in on the CPU: notes every operation, and does them all again on the same memory."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any, Self

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from te_pkg.attention.capture import mark_capturing


class RecordedGraph:
    """Captures the block that it is entered for; :meth:`replay` repeats its operations, never its Python."""

    def __init__(self) -> None:
        self.operations: list[tuple[Any, tuple[Any, ...], dict[str, Any], Any]] = []
        self._open = ExitStack()

    @property
    def names(self) -> list[str]:
        return [func._schema.name.removeprefix("aten::") for func, *_ in self.operations]

    def __enter__(self) -> Self:
        self._open.enter_context(mark_capturing())
        self._open.enter_context(_Recorder(self.operations))
        return self

    def __exit__(self, *error: object) -> None:
        self._open.close()

    @torch.inference_mode()  # where tensors of both kinds may be written
    def replay(self) -> None:
        for func, args, kwargs, outputs in self.operations:
            if func.is_view:
                continue  # no kernel: a graph knows addresses alone, whatever became of the tensor
            for old, new in zip(tree_leaves(outputs), tree_leaves(func(*args, **kwargs)), strict=True):
                # A view, or an operand that was written in place, is where it was.
                if isinstance(old, torch.Tensor) and old.data_ptr() != new.data_ptr():
                    old.copy_(new)


class _Recorder(TorchDispatchMode):
    def __init__(self, operations: list[tuple[Any, tuple[Any, ...], dict[str, Any], Any]]) -> None:
        super().__init__()
        self.operations = operations

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        outputs = func(*args, **kwargs)
        self.operations.append((func, args, kwargs, outputs))
        return outputs
