"""Time the moves between layouts, the clearing of padding and the caches against what else does it.

    python scripts/bench_padding.py                     everything, on two threads
    python scripts/bench_padding.py --only backward     comparisons whose name holds a word
    python scripts/bench_padding.py --strict            exit 1 where a goal is missed

Results are compared first: what is wrong is not timed. Then both sides of a comparison run in turn in this process, in
each round ours, the peer, the peer and ours, so that each runs once behind the other, which swept the caches, and once
behind itself. The median of the ratios of all rounds counts. A round in which the system took the processor away from
either side says more about the system: it is set aside where a quarter of the rounds remain, and the last column shows
how many did. The peers are written here in torch: flash-attention's `unpad_input` and `pad_input` (elements
gathered forwards and scattered backwards; the real ones where `flash_attn` can be imported), and Transformer Engine's
cache of full offsets.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch

try:
    import resource
except ImportError:  # on Windows nothing tells
    resource = None

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from te_pkg.attention import (  # noqa: E402
    PackedLayout,
    get_full_cu_seqlens,
    pack,
    resolve_pad_between_seqs,
    unpack,
    zero_padding_,
)
from te_pkg.attention.capture import mark_capturing  # noqa: E402

BATCH, LONGEST, HEADS, SIZE = 8, 1024, 16, 64
LENGTHS = [1024, 131, 707, 300, 893, 512, 64, 875]  # 55 % of the batch
PADDED_SLOTS = [round(length / 0.9) for length in LENGTHS]  # a tenth of all rows is padding


@dataclass(frozen=True)
class Comparison:
    """Two ways to one result, and what their times should be to each other.

    Attributes:
        name: what is done.
        ours: does it; its result is compared.
        peer: does it too.
        peer_name: how.
        at_most: the goal for ``ours / peer``.
        repeat: calls in one measurement, for what takes microseconds.
        compared: that both sides come to equal results; False where that was compared before.
    """

    name: str
    ours: Callable[[], Any]
    peer: Callable[[], Any]
    peer_name: str
    at_most: float
    repeat: int = 1
    compared: bool = True


class Round(NamedTuple):
    """Seconds of both sides, and whether the system took the processor away meanwhile."""

    ours: float
    peer: float
    interrupted: bool


@dataclass(frozen=True)
class Limit:
    """One way, and how long it may take."""

    name: str
    ours: Callable[[], Any]
    seconds: float
    repeat: int = 1


@dataclass(frozen=True)
class FreshProcesses:
    """A comparison whose figure hangs on the history of a process, such as what its allocator gives back and faults in.

    Attributes:
        name: what is done.
        measure: for a number of rounds, the seconds of both sides in each of several processes, medians.
        peer_name: how the other side does it.
        at_most: the goal for the median of ``ours / peer`` over the processes.
    """

    name: str
    measure: Callable[[int], list[tuple[float, float]]]
    peer_name: str
    at_most: float


class Gather(torch.autograd.Function):
    """flash-attention's `IndexFirstAxis`: elements are gathered, and their gradients scattered into zeros."""

    @staticmethod
    def forward(ctx: Any, rows: torch.Tensor, indices: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(indices)
        ctx.count = rows.shape[0]
        elements = rows.flatten(1)
        return elements.gather(0, indices[:, None].expand(-1, elements.shape[1])).view(-1, *rows.shape[1:])

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        (indices,) = ctx.saved_tensors
        elements = gradient.flatten(1)
        rows = elements.new_zeros((ctx.count, elements.shape[1]))
        rows.scatter_(0, indices[:, None].expand(-1, elements.shape[1]), elements)
        return rows.view(ctx.count, *gradient.shape[1:]), None


class Place(torch.autograd.Function):
    """flash-attention's `IndexPutFirstAxis`: rows are put into zeros, and their gradients taken."""

    @staticmethod
    def forward(ctx: Any, rows: torch.Tensor, indices: torch.Tensor, count: int) -> torch.Tensor:
        ctx.save_for_backward(indices)
        placed = rows.new_zeros((count, *rows.shape[1:]))
        placed[indices] = rows
        return placed

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        (indices,) = ctx.saved_tensors
        return gradient[indices], None, None


def flash_unpad_input(hidden: torch.Tensor, mask: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    lengths = mask.sum(-1, dtype=torch.int32)
    indices = mask.flatten().nonzero().flatten()
    lengths.max().item()
    torch.nn.functional.pad(lengths.cumsum(0, dtype=torch.int32), (1, 0))
    return Gather.apply(hidden.flatten(0, 1), indices), indices


def flash_pad_input(hidden: torch.Tensor, indices: torch.Tensor, batch: int, longest: int) -> torch.Tensor:
    return Place.apply(hidden, indices, batch * longest).view(batch, longest, *hidden.shape[1:])


try:
    from flash_attn.bert_padding import pad_input as flash_pad_input
    from flash_attn.bert_padding import unpad_input as flash_unpad_input

    FLASH = "flash_attn"
except ImportError:
    FLASH = "flash-attention's formula"


def moves(dtype: torch.dtype) -> Iterator[Comparison]:
    name = str(dtype).removeprefix("torch.")
    layout = PackedLayout.from_lengths(LENGTHS)
    batch = torch.randn(BATCH, LONGEST, HEADS, SIZE).to(dtype)
    rows = pack(batch, layout)
    clean = unpack(rows, layout, LONGEST)
    same = rows.clone()
    packed, other, unpacked, zeroed = (torch.empty_like(x) for x in (rows, rows, batch, batch))
    mask = torch.arange(LONGEST) < torch.tensor(LENGTHS)[:, None]
    indices = mask.flatten().nonzero().flatten()

    def zero_and_copy() -> torch.Tensor:
        zeroed.zero_()
        other.copy_(same)
        return clean

    def copy() -> torch.Tensor:
        return other.copy_(same)

    yield Comparison(
        f"pack, out=, {name}", lambda: pack(batch, layout, out=packed), copy, "copy_ of the same bytes", 1.15
    )
    yield Comparison(
        f"unpack, out=, {name}",
        lambda: unpack(rows, layout, LONGEST, out=unpacked),
        zero_and_copy,
        "zero_ and copy_ of the same bytes",
        1.15,
    )
    yield Comparison(
        f"pack, fresh, {name}", lambda: pack(batch, layout), lambda: flash_unpad_input(batch, mask)[0], FLASH, 1.0
    )
    yield Comparison(
        f"unpack, fresh, {name}",
        lambda: unpack(rows, layout, LONGEST),
        lambda: flash_pad_input(rows, indices, BATCH, LONGEST),
        FLASH,
        1.0,
    )


def gradients(dtype: torch.dtype) -> Iterator[Comparison]:
    name = str(dtype).removeprefix("torch.")
    layout = PackedLayout.from_lengths(LENGTHS)
    batch = torch.randn(BATCH, LONGEST, HEADS, SIZE).to(dtype).requires_grad_()
    rows = pack(batch.detach(), layout).requires_grad_()
    mask = torch.arange(LONGEST) < torch.tensor(LENGTHS)[:, None]
    starts = [sum(LENGTHS[:i]) for i in range(BATCH)]
    packed, unpacked = pack(batch, layout), unpack(rows, layout, LONGEST)
    flash_packed = flash_unpad_input(batch, mask)[0]
    row_gradient, batch_gradient = torch.randn_like(packed), torch.randn_like(unpacked)

    def gradient(of: torch.Tensor, to: torch.Tensor, incoming: torch.Tensor) -> Callable[[], torch.Tensor]:
        return lambda: torch.autograd.grad(of, to, incoming, retain_graph=True)[0]

    def zeros_and_rows() -> torch.Tensor:
        fresh = torch.zeros_like(batch_gradient)
        for i, (start, length) in enumerate(zip(starts, LENGTHS, strict=True)):
            fresh[i, :length].copy_(row_gradient[start : start + length])
        return fresh

    def zeros_and_batch() -> torch.Tensor:
        fresh = torch.zeros_like(row_gradient)
        for i, (start, length) in enumerate(zip(starts, LENGTHS, strict=True)):
            fresh[start : start + length].copy_(batch_gradient[i, :length])
        return fresh

    ours = gradient(packed, batch, row_gradient)
    plain = "fresh zeros, and the real rows"
    yield Comparison(f"backward of pack, {name}", ours, zeros_and_rows, plain, 1.1)
    yield Comparison(
        f"backward of unpack, {name}", gradient(unpacked, rows, batch_gradient), zeros_and_batch, plain, 1.1
    )
    flash = gradient(flash_packed, batch, row_gradient)
    goal = 1 / 8 if dtype == torch.bfloat16 else 1.0
    yield Comparison(f"backward of pack, {name}", ours, flash, FLASH, goal)


def clearing(dtype: torch.dtype) -> Iterator[Comparison]:
    name = str(dtype).removeprefix("torch.")
    slots = torch.tensor([0, *PADDED_SLOTS]).cumsum(0, dtype=torch.int32)
    offsets = torch.tensor([0, *LENGTHS]).cumsum(0, dtype=torch.int32)
    layout = PackedLayout.from_cu_seqlens(offsets, slots)
    with mark_capturing():
        unknown = PackedLayout.from_cu_seqlens(offsets, slots, layout.total_tokens, layout.max_seqlen)
    padding = layout.token_mask().logical_not()[:, None, None]
    x = torch.randn(layout.total_tokens, HEADS, SIZE).to(dtype)
    ours, peer = x.clone(), x.clone()

    def fill() -> torch.Tensor:
        return peer.masked_fill_(padding, 0)

    for known, what, at_least in ((layout, "lengths known", 50), (unknown, "lengths not known", 15)):
        yield Comparison(
            f"zero_padding_, {what}, {name}",
            lambda known=known: zero_padding_(ours, known),
            fill,
            "masked_fill_",
            1 / at_least,
            repeat=20,
        )


def many_short(row: int) -> Iterator[Comparison]:
    count, length, slot = 4096, 16, 24
    layout = PackedLayout.from_lengths([length] * count)
    batch = torch.randn(count, slot, row)
    flat, out, other = batch.flatten(0, 1), *(torch.empty(count * length, row) for _ in range(2))
    indices = (torch.arange(count)[:, None] * slot + torch.arange(length)).flatten()

    def slices() -> torch.Tensor:
        for i in range(count):
            other[i * length : (i + 1) * length].copy_(flat[i * slot : i * slot + length])
        return other

    def select() -> torch.Tensor:
        return torch.index_select(flat, 0, indices, out=other)

    better, how = min(((slices, "slices"), (select, "index_select, indices given")), key=lambda way: best(way[0]))
    name = f"pack, out=, {count} sequences of {length} rows of {row} float32"
    yield Comparison(name, lambda: pack(batch, layout, out=out), better, how, 1.3)


def best(call: Callable[[], Any]) -> float:
    return min(measure(call, 1) for _ in range(5))


EXPORTING = False


def exporting() -> bool:
    """Transformer Engine asks a flag of its own, which its context for ONNX export sets."""
    return EXPORTING


def caches() -> Iterator[Comparison | Limit]:
    kept: dict[tuple[int, int, torch.device, bool], torch.Tensor] = {}
    cpu = torch.device("cpu")  # as their callers pass that of a tensor

    def peer(batch: int, longest: int, device: torch.device) -> torch.Tensor:
        def make(batch: int, longest: int, device: torch.device) -> torch.Tensor:
            return torch.arange(0, (batch + 1) * longest, step=longest, dtype=torch.int32, device=device)

        if exporting():
            return make(batch, longest, device)
        if torch.compiler.is_compiling():
            return make(batch, longest, device)
        key = (batch, longest, device, torch.is_inference_mode_enabled())
        if key not in kept:
            kept[key] = make(batch, longest, device)
        return kept[key]

    def hit() -> torch.Tensor:
        return get_full_cu_seqlens(8, 1024, cpu)

    offsets = PackedLayout.from_lengths(LENGTHS, pad_to_multiple=16)
    real, slots = offsets.cu_seqlens, offsets.cu_seqlens_padded
    lengths = [16] * 4096
    yield Comparison(
        "get_full_cu_seqlens, hit", hit, lambda: peer(8, 1024, cpu), "Transformer Engine's formula", 4, repeat=2000
    )
    yield Limit("get_full_cu_seqlens, hit", hit, 3e-6, repeat=2000)
    yield Limit(
        "resolve_pad_between_seqs, hit", lambda: resolve_pad_between_seqs(real, real, slots, slots), 6e-6, repeat=2000
    )
    yield Limit("PackedLayout.from_lengths, 4096 numbers", lambda: PackedLayout.from_lengths(lengths), 1e-3, repeat=5)


def comparisons() -> Iterator[Comparison | Limit]:
    for dtype in (torch.float32, torch.bfloat16):
        yield from moves(dtype)
        yield from gradients(dtype)
        yield from clearing(dtype)
    yield from many_short(HEADS * SIZE)
    yield from many_short(64)
    yield from caches()


def measure(call: Callable[[], Any], repeat: int) -> float:
    start = time.perf_counter()
    for _ in range(repeat):
        call()
    return (time.perf_counter() - start) / repeat


def interruptions() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_nivcsw if resource else 0


def undisturbed(rounds: list[Round]) -> list[Round]:
    calm = [one for one in rounds if not one.interrupted]
    return calm if len(calm) >= max(5, len(rounds) // 4) else rounds


def compare(comparison: Comparison) -> None:
    """Refuse to time what is wrong."""
    if not torch.equal(comparison.ours(), comparison.peer()):
        raise SystemExit(f"{comparison.name}: the results differ")


def run(entry: Comparison | Limit | FreshProcesses, count: int) -> bool:
    """Time it and print a line; whether the goal is met."""
    if isinstance(entry, FreshProcesses):
        return run_apart(entry, count)
    if isinstance(entry, Comparison) and entry.compared:
        compare(entry)
    kept = undisturbed(rounds_of(entry, count))
    ours = 1e6 * statistics.median(one.ours for one in kept)
    if isinstance(entry, Limit):
        met = ours <= 1e6 * entry.seconds
        print(f"{entry.name:58}{ours:12,.1f}{'':21}  {verdict(met)}, goal {1e6 * entry.seconds:,.0f} us", end="")
    else:
        peer = 1e6 * statistics.median(one.peer for one in kept)
        ratio = statistics.median(one.ours / one.peer for one in kept)
        met = print_ratio(entry, ours, peer, ratio)
    print(f"; {len(kept)} of {count} rounds", flush=True)
    return met


def run_apart(entry: FreshProcesses, count: int) -> bool:
    """The same in fresh processes."""
    processes = entry.measure(count)
    ours, peer = (1e6 * statistics.median(side) for side in zip(*processes, strict=True))
    ratios = sorted(ours / peer for ours, peer in processes)
    met = print_ratio(entry, ours, peer, statistics.median(ratios))
    print(f"; {len(ratios)} fresh processes, from {ratios[0]:.3f} to {ratios[-1]:.3f}", flush=True)
    return met


def print_ratio(entry: Comparison | FreshProcesses, ours: float, peer: float, ratio: float) -> bool:
    """A line without its end; whether the goal is met."""
    met = ratio <= entry.at_most
    goal = f"at most {entry.at_most:g}" if entry.at_most >= 1 else f"at most 1/{1 / entry.at_most:g}"
    print(f"{entry.name:58}{ours:12,.1f}{peer:12,.1f}{ratio:9.3f}  {verdict(met)}, {goal}: {entry.peer_name}", end="")
    return met


def rounds_of(entry: Comparison | Limit, count: int) -> list[Round]:
    """Ours, the peer, the peer and ours in each; of a limit ours alone."""
    rounds = []
    entry.ours()
    for _ in range(count):
        before = interruptions()
        ours = measure(entry.ours, entry.repeat)
        peer = 0.0
        if isinstance(entry, Comparison):
            peer = (measure(entry.peer, entry.repeat) + measure(entry.peer, entry.repeat)) / 2
        ours = (ours + measure(entry.ours, entry.repeat)) / 2
        rounds.append(Round(ours, peer, interruptions() > before))
    return rounds


def verdict(met: bool) -> str:
    return "met" if met else "MISSED"


def run_all(
    argv: list[str] | None,
    comparisons: Callable[[], Iterator[Comparison | Limit | FreshProcesses]],
    about: str,
    rounds: int = 21,
) -> int:
    """Time what the command line asks for, line by line; the exit code."""
    parser = argparse.ArgumentParser(description=about.splitlines()[0])
    parser.add_argument("--only", default="", metavar="WORD", help="comparisons whose name holds this")
    parser.add_argument("--rounds", type=int, default=rounds)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--strict", action="store_true", help="exit 1 where a goal is missed")
    arguments = parser.parse_args(argv)
    torch.set_num_threads(arguments.threads)
    torch.manual_seed(0)
    print(f"torch {torch.__version__}, {arguments.threads} threads, {arguments.rounds} rounds, medians in microseconds")
    print(f"{'':58}{'ours':>12}{'peer':>12}{'ratio':>9}")
    met = [run(entry, arguments.rounds) for entry in comparisons() if arguments.only in entry.name]
    print(f"{sum(met)} of {len(met)} goals met")
    return 1 if arguments.strict and not all(met) else 0


def main(argv: list[str] | None = None) -> int:
    return run_all(argv, comparisons, __doc__ or "")


if __name__ == "__main__":
    sys.exit(main())
