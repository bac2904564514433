"""Attention for packed (THD, varlen) sequences.

Letters: ``t`` rows of the packed buffer, ``b`` sequences, ``s`` longest sequence, ``h`` heads, ``d`` head size,
``c`` context-parallel ranks. Offsets are int32, ``[b + 1]``, and start at 0.

Names and argument order that Transformer Engine has too are drop-in: change the import only.
"""

from te_pkg.attention import capture, context_parallel
from te_pkg.attention.bert_padding import pad_input, unpad_input
from te_pkg.attention.caching import cache_info, clear_caches
from te_pkg.attention.cu_seqlens import (
    cu_seqlens_from_lengths,
    cu_seqlens_from_position_ids,
    cu_seqlens_from_token_mask,
    get_cu_seqlens,
    get_full_cu_seqlens,
)
from te_pkg.attention.errors import BackendUnavailableError
from te_pkg.attention.layout import PackedLayout, Padding, classify_padding
from te_pkg.attention.module import DotProductAttention
from te_pkg.attention.packed_attention import available_backends, packed_attention
from te_pkg.attention.padding_decisions import (
    PaddingDecisions,
    default_padding_decisions,
    resolve_pad_between_seqs,
    verify_replay,
)
from te_pkg.attention.relayout import pack, pad_rows, relayout, unpack, unpad_rows
from te_pkg.attention.replay_checks import StaleOffsets, StalePaddingDecision
from te_pkg.attention.zeroing import zero_padding, zero_padding_

__all__ = [
    "BackendUnavailableError",
    "DotProductAttention",
    "PackedLayout",
    "Padding",
    "PaddingDecisions",
    "StaleOffsets",
    "StalePaddingDecision",
    "available_backends",
    "cache_info",
    "capture",
    "classify_padding",
    "clear_caches",
    "context_parallel",
    "cu_seqlens_from_lengths",
    "cu_seqlens_from_position_ids",
    "cu_seqlens_from_token_mask",
    "default_padding_decisions",
    "get_cu_seqlens",
    "get_full_cu_seqlens",
    "pack",
    "packed_attention",
    "pad_input",
    "pad_rows",
    "relayout",
    "resolve_pad_between_seqs",
    "unpack",
    "unpad_input",
    "unpad_rows",
    "verify_replay",
    "zero_padding",
    "zero_padding_",
]
