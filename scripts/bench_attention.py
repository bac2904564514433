"""Time attention over packed sequences against what else does it.

    python scripts/bench_attention.py                   everything, on two threads
    python scripts/bench_attention.py --only backward   comparisons whose name holds a word
    python scripts/bench_attention.py --strict          exit 1 where a goal is missed

Results are compared first: what is wrong is not timed. Then both sides of a comparison run in turn in this process, and
the median of the ratios of all rounds counts; see `bench_padding.py`, whose clock this is.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import torch
from torch.nn.functional import scaled_dot_product_attention

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from te_pkg.attention import PackedLayout, packed_attention, unpack  # noqa: E402


def _clock() -> ModuleType:
    spec = importlib.util.spec_from_file_location("bench_padding", Path(__file__).with_name("bench_padding.py"))
    if spec is None or spec.loader is None:
        raise SystemExit("bench_padding.py does not lie beside this script")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses ask for it
    spec.loader.exec_module(module)
    return module


clock = _clock()

LENGTHS = [1024, 37, 512, 800, 64, 300, 950, 5]
HEADS, SIZE = 8, 64


class Work(NamedTuple):
    """One way: its name, how it computes, and what its gradients are taken of."""

    name: str
    forward: Callable[[], Any]
    inputs: tuple[torch.Tensor, ...]


def ours(layout: PackedLayout, rows: tuple[torch.Tensor, ...]) -> Work:
    q, k, v = (x.clone().requires_grad_() for x in rows)
    return Work("packed_attention", lambda: packed_attention(q, k, v, layout, causal=True), (q, k, v))


def padded_batch(layout: PackedLayout, rows: tuple[torch.Tensor, ...]) -> Work:
    """Every sequence as long as the longest, and a mask of what is real."""
    q, k, v = (unpack(x, layout).transpose(1, 2).contiguous().requires_grad_() for x in rows)
    longest = layout.max_seqlen
    real = torch.arange(longest) < torch.tensor(layout.lengths)[:, None]
    mask = (real[:, None, :] & torch.ones(longest, longest, dtype=torch.bool).tril())[:, None]
    return Work("SDPA on the padded batch", lambda: scaled_dot_product_attention(q, k, v, attn_mask=mask), (q, k, v))


def bare_kernels(layout: PackedLayout, rows: tuple[torch.Tensor, ...]) -> Work:
    """Each sequence by itself, in memory of its own: the kernels, and nothing around them."""
    starts, lengths = layout.slot_offsets or (), layout.lengths or ()
    inputs = tuple(
        x[start : start + length].transpose(0, 1)[None].contiguous().requires_grad_()
        for start, length in zip(starts, lengths, strict=False)
        for x in rows
    )
    parts = [inputs[i : i + 3] for i in range(0, len(inputs), 3)]

    def forward() -> list[torch.Tensor]:
        return [scaled_dot_product_attention(q, k, v, is_causal=True) for q, k, v in parts]

    return Work("its kernels, one by one", forward, inputs)


def packed(result: Any, layout: PackedLayout) -> torch.Tensor:
    """A result of any of them as the rows of ``layout``."""
    if isinstance(result, list):
        return torch.cat([part[0].transpose(0, 1) for part in result])
    if result.ndim == 4:
        return torch.cat([one[:, :n].transpose(0, 1) for one, n in zip(result, layout.lengths or (), strict=True)])
    return result


def gradients(work: Work, layout: PackedLayout, d_out: torch.Tensor) -> Callable[[], tuple[torch.Tensor, ...]]:
    """Forward and backward; the incoming gradient lies as the output does."""
    out = work.forward()
    if isinstance(out, list):
        given = [part[None].transpose(1, 2) for part in d_out.split(list(layout.lengths or ()))]
    else:
        given = [d_out if out.ndim == 3 else unpack(d_out, layout).transpose(1, 2)]

    def both() -> tuple[torch.Tensor, ...]:
        out = work.forward()
        return torch.autograd.grad(out if isinstance(out, list) else [out], work.inputs, given)

    return both


def comparisons() -> Iterator[Any]:
    layout = PackedLayout.from_lengths(LENGTHS)
    rows = tuple(torch.randn(layout.total_tokens, HEADS, SIZE) for _ in range(3))
    d_out = torch.randn(layout.total_tokens, HEADS, SIZE)
    mine = ours(layout, rows)
    both = gradients(mine, layout, d_out)
    for peer, goal in ((padded_batch(layout, rows), 1 / 3), (bare_kernels(layout, rows), 1.15)):
        check(mine, peer, layout, d_out)
        alone = [torch.no_grad()(work.forward) for work in (mine, peer)]
        yield clock.Comparison("attention, forward", *alone, peer.name, goal, compared=False)
        yield clock.Comparison(
            "attention, forward and backward", both, gradients(peer, layout, d_out), peer.name, goal, compared=False
        )


def check(mine: Work, peer: Work, layout: PackedLayout, d_out: torch.Tensor) -> None:
    """Refuse to time what is wrong: results and gradients agree to the rounding of float32."""
    found, expected = packed(mine.forward(), layout), packed(peer.forward(), layout)
    results = [(found, expected)]
    here, there = gradients(mine, layout, d_out)(), gradients(peer, layout, d_out)()
    for i in range(3):
        whole: Any = there[i] if len(there) == 3 else list(there[i::3])
        results.append((here[i], packed(whole, layout)))
    for a, b in results:
        if not torch.allclose(a, b, rtol=1e-4, atol=1e-4):
            raise SystemExit(f"{peer.name}: the results differ by {(a - b).abs().max():.2e}")


def main(argv: list[str] | None = None) -> int:
    return int(clock.run_all(argv, comparisons, __doc__ or "", rounds=21))


if __name__ == "__main__":
    sys.exit(main())
