"""Questions to a memory of padding decisions, in eager, under capture, and in a graph that is replayed."""

from __future__ import annotations

import torch

from te_pkg.attention import PaddingDecisions, resolve_pad_between_seqs
from te_pkg.attention.capture import mark_capturing
from tests.attention.no_sync import forbid_sync
from tests.attention.recorded_graph import RecordedGraph

__all__ = ["ask", "ask_captured", "capture", "offsets"]


def offsets(*values: int, dtype: torch.dtype = torch.int32) -> torch.Tensor:
    return torch.tensor(values, dtype=dtype)


def ask(memory: PaddingDecisions, cu: torch.Tensor, padded: torch.Tensor, cp_size: int = 1) -> bool:
    return resolve_pad_between_seqs(cu, cu, padded, padded, cp_size=cp_size, decisions=memory)


def ask_captured(memory: PaddingDecisions, cu: torch.Tensor, padded: torch.Tensor, cp_size: int = 1) -> bool:
    with mark_capturing(), forbid_sync(uploads=False):
        return ask(memory, cu, padded, cp_size)


def capture(memory: PaddingDecisions, *tensors: torch.Tensor, cp_size: int = 1) -> tuple[RecordedGraph, bool]:
    """Warm up, then capture."""
    resolve_pad_between_seqs(*tensors, cp_size=cp_size, decisions=memory)
    with RecordedGraph() as graph, forbid_sync(uploads=False):
        answer = resolve_pad_between_seqs(*tensors, cp_size=cp_size, decisions=memory)
    return graph, answer
