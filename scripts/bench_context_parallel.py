"""Time what context parallelism does around attention: merging, the offsets of ranks, padding of token ids.

    python scripts/bench_context_parallel.py                everything, on two threads
    python scripts/bench_context_parallel.py --only merge   comparisons whose name holds a word
    python scripts/bench_context_parallel.py --strict       exit 1 where a goal is missed

Results are compared first: what is wrong is not timed. Then both sides of a comparison run in turn in this process, and
the median of the ratios of all rounds counts; see `bench_padding.py`, whose clock this is. What ring-flash-attention's
update takes hangs on luck: its temporaries are of 16 MiB, and whether the allocator gives these back to the system, to
be faulted in again, is settled early in a process. So it is timed in several fresh ones. The peers are written here in
torch: ring-flash-attention's update of output and log-sum-exp, and what Transformer Engine does for the offsets of a
rank and for padding.
"""

from __future__ import annotations

import importlib.util
import statistics
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch.nn.functional import logsigmoid

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from te_pkg.attention import PackedLayout  # noqa: E402
from te_pkg.attention.context_parallel import (  # noqa: E402
    merge_attention,
    merge_attention_,
    pad_thd_sequences_for_cp,
    rank_cu_seqlens,
)


def _clock() -> ModuleType:
    spec = importlib.util.spec_from_file_location("bench_padding", Path(__file__).with_name("bench_padding.py"))
    if spec is None or spec.loader is None:
        raise SystemExit("bench_padding.py does not lie beside this script")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses ask for it
    spec.loader.exec_module(module)
    return module


clock = _clock()

ROWS, HEADS, SIZE = 4096, 16, 64
RANKS = 8
SEQUENCES = 256
PROCESSES = 9
MERGE_ONCE = "--merge-once"  # how this script calls itself


def ring_flash_update(
    out: torch.Tensor, lse: torch.Tensor, block_out: torch.Tensor, block_lse: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """``lse`` is ``[t, h, 1]``; that of the block comes from the kernel as ``[h, t]``."""
    block = block_lse.transpose(0, 1).unsqueeze(-1)
    out = out - torch.sigmoid(block - lse) * (out - block_out)
    lse = lse - logsigmoid(lse - block)
    return out, lse


def merging() -> Iterator[Any]:
    out, block = torch.randn(ROWS, HEADS, SIZE), torch.randn(ROWS, HEADS, SIZE)
    lse, block_lse = torch.randn(HEADS, ROWS), torch.randn(HEADS, ROWS)
    theirs_lse = lse.T.unsqueeze(-1).contiguous()
    expected, expected_lse = ring_flash_update(out, theirs_lse, block, block_lse)
    total, total_lse = out.clone(), lse.clone()
    merge_attention_(total, total_lse, block, block_lse)
    for found, found_lse in (merge_attention(out, lse, block, block_lse), (total, total_lse)):
        agree("merging", found, expected)
        agree("merging", found_lse, expected_lse.squeeze(-1).T)
    share = (block_lse - lse).sigmoid().T.contiguous().unsqueeze(-1)
    yield clock.Comparison(
        "merge_attention_",
        lambda: merge_attention_(total, total_lse, block, block_lse),
        out.clone,
        "clone of the output",
        1.5,
        compared=False,
    )
    yield clock.FreshProcesses("merge_attention_", merging_apart, "ring-flash-attention's formula", 1 / 4)
    yield clock.Comparison(
        "merge_attention",
        lambda: merge_attention(out, lse, block, block_lse),
        lambda: torch.lerp(out, block, share),
        "lerp of both outputs, weights given",
        1.5,
        compared=False,
    )


def merging_apart(rounds: int) -> list[tuple[float, float]]:
    sizes = (rounds, torch.get_num_threads(), ROWS, HEADS, SIZE)
    command = [sys.executable, __file__, MERGE_ONCE, *map(str, sizes)]
    printed = (subprocess.run(command, check=True, capture_output=True, text=True).stdout for _ in range(PROCESSES))
    return [(float(ours), float(peer)) for ours, peer in map(str.split, printed)]


def merge_once(rounds: int, threads: int, rows: int, heads: int, size: int) -> None:
    """In a process of its own: seconds of both sides, medians."""
    torch.set_num_threads(threads)
    torch.manual_seed(0)
    out, block = torch.randn(rows, heads, size), torch.randn(rows, heads, size)
    lse, block_lse = torch.randn(heads, rows), torch.randn(heads, rows)
    total, total_lse, theirs_lse = out.clone(), lse.clone(), lse.T.unsqueeze(-1).contiguous()
    both = clock.Comparison(
        "merge_attention_",
        lambda: merge_attention_(total, total_lse, block, block_lse),
        lambda: ring_flash_update(out, theirs_lse, block, block_lse),
        "ring-flash-attention's formula",
        1 / 4,
    )
    kept = clock.undisturbed(clock.rounds_of(both, rounds))
    print(*(statistics.median(side) for side in zip(*((one.ours, one.peer) for one in kept), strict=True)))


def one_half(cu_seqlens: torch.Tensor, stored: torch.Tensor, nth: int) -> torch.Tensor:
    """The offsets of one chunk of each sequence on one rank."""
    lengths, chunks = cu_seqlens[1:] - cu_seqlens[:-1], (stored[1:] - stored[:-1]) // 2
    offsets = torch.zeros_like(cu_seqlens)
    offsets[1:].add_((lengths - nth * chunks).clamp(torch.zeros_like(lengths), chunks))
    return offsets.cumsum_(dim=0)


def offsets_of_ranks() -> Iterator[Any]:
    lengths = torch.randint(1, 2000, (SEQUENCES,)).tolist()
    layout = PackedLayout.from_lengths(lengths, pad_to_multiple=2 * RANKS)

    def each_half() -> torch.Tensor:
        stored = layout.cu_seqlens_padded // RANKS
        halves = [
            [one_half(layout.cu_seqlens, stored, nth) for nth in (rank, 2 * RANKS - 1 - rank)] for rank in range(RANKS)
        ]
        return torch.stack([torch.stack([first + second, stored]) for first, second in halves])

    yield clock.Comparison(
        f"rank_cu_seqlens, {SEQUENCES} sequences, {RANKS} ranks",
        lambda: rank_cu_seqlens(layout, RANKS),
        each_half,
        f"{2 * RANKS} calls, one for each half",
        1 / 5,
    )


def pad_each(ids: torch.Tensor, labels: torch.Tensor, cu_seqlens: torch.Tensor, multiple: int) -> tuple[Any, ...]:
    """Sequence by sequence, each number read by itself and as often as they read it."""
    lengths = cu_seqlens[1:] - cu_seqlens[:-1]
    missing = [-(-length.item() // multiple) * multiple - length.item() for length in lengths]
    results = []
    for x, fill in ((ids, 0), (labels, -100)):
        begins, ends = cu_seqlens[:-1], cu_seqlens[1:]
        parts = [x[begin.item() : end.item()] for begin, end in zip(begins, ends, strict=True)]
        padded = [
            torch.cat([part, torch.full((more,), fill, dtype=x.dtype)]) if more else part
            for part, more in zip(parts, missing, strict=True)
        ]
        results.append(torch.cat(padded))
    stored = lengths + torch.tensor(missing, dtype=lengths.dtype)
    return *results, torch.cat([torch.zeros(1, dtype=stored.dtype), stored]).cumsum(0)


def padding(longest: int) -> Iterator[Any]:
    lengths = torch.randint(1, longest, (SEQUENCES,))
    cu_seqlens = torch.cat([torch.zeros(1, dtype=lengths.dtype), lengths]).cumsum(0)
    ids = torch.randint(0, 50_000, (int(cu_seqlens[-1]),))
    labels = ids.roll(-1)
    for found, expected in zip(
        pad_thd_sequences_for_cp(ids, labels, cu_seqlens, 2 * RANKS),
        pad_each(ids, labels, cu_seqlens, 2 * RANKS),
        strict=True,
    ):
        agree("padding", found, expected)
    yield clock.Comparison(
        f"pad_thd_sequences_for_cp, {SEQUENCES} sequences below {longest}",
        lambda: pad_thd_sequences_for_cp(ids, labels, cu_seqlens, 2 * RANKS),
        lambda: pad_each(ids, labels, cu_seqlens, 2 * RANKS),
        "Transformer Engine's formula",
        1 / 20,
        repeat=20,  # whoever allocates next sorts the thousands of small blocks that theirs frees
        compared=False,
    )


def comparisons() -> Iterator[Any]:
    yield from merging()
    yield from offsets_of_ranks()
    for longest in (20, 100, 600):
        yield from padding(longest)


def agree(what: str, found: torch.Tensor, expected: torch.Tensor) -> None:
    """Refuse to time what is wrong."""
    exact = not found.is_floating_point()
    same = torch.equal(found, expected) if exact else torch.allclose(found, expected, rtol=1e-5, atol=1e-5)
    if not same:
        raise SystemExit(f"{what}: the results differ")


def main(argv: list[str] | None = None) -> int:
    return int(clock.run_all(argv, comparisons, __doc__ or ""))


if __name__ == "__main__":
    if sys.argv[1:2] == [MERGE_ONCE]:
        merge_once(*map(int, sys.argv[2:]))
    else:
        sys.exit(main())
