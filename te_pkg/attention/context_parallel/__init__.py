"""Context parallelism: the rows of each sequence lie on several ranks, and attention is what it is on one.

``b`` sequences, ``c`` ranks. Lengths are exact on every rank, for every layout whose slots are multiples of ``2 * c``.

    torchrun --nproc_per_node 2 -m te_pkg.attention.context_parallel --demo
"""

from te_pkg.attention.context_parallel.attention import context_parallel_attention
from te_pkg.attention.context_parallel.merge import merge_attention, merge_attention_
from te_pkg.attention.context_parallel.partition import (
    get_cu_seqlens_on_cp_rank,
    inverse_partition_indices,
    partition_indices,
    rank_cu_seqlens,
    rank_half_lengths,
)
from te_pkg.attention.context_parallel.token_batch import (
    generate_positional_ids_for_cp,
    get_batch_on_this_cp_rank,
    pad_thd_sequences_for_cp,
)
from te_pkg.attention.errors import RankError

__all__ = [
    "RankError",
    "context_parallel_attention",
    "generate_positional_ids_for_cp",
    "get_batch_on_this_cp_rank",
    "get_cu_seqlens_on_cp_rank",
    "inverse_partition_indices",
    "merge_attention",
    "merge_attention_",
    "pad_thd_sequences_for_cp",
    "partition_indices",
    "rank_cu_seqlens",
    "rank_half_lengths",
]
