"""The rows of `gpu_check.py` about attention: each backend that serves here, held against `dense`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from te_pkg.attention import PackedLayout

LENGTHS = [1024, 37, 512, 800, 64, 300, 950, 5]


def cases(make: Any, device: str, rows: int) -> Iterator[Any]:
    """Forward, and forward and backward, of about ``rows`` rows, but no more than `dense` has memory for.

    Args:
        make: the class of a row's case.
    """
    import torch

    from te_pkg.attention import PackedLayout, available_backends

    longest = max(LENGTHS)
    lengths = [max(length * min(rows, 2 * longest) // (2 * longest), 1) for length in LENGTHS]
    layout = PackedLayout.from_lengths(lengths, pad_to_multiple=16, device=device)
    dtype = torch.bfloat16 if device != "cpu" else torch.float32
    q, k, v = (torch.randn(layout.total_tokens, 8, 64, dtype=dtype, device=device) for _ in range(3))
    for name, reason in available_backends(q, k, v, layout, causal=True).items():
        if reason is None and name != "dense":
            yield _forward(make, name, layout, (q, k, v))
            yield _both(make, name, layout, (q, k, v))


def _forward(make: Any, name: str, layout: PackedLayout, inputs: tuple[Any, ...]) -> Any:
    from te_pkg.attention import packed_attention

    results: dict[str, Any] = {}

    def run(backend: str) -> Any:
        results[backend] = packed_attention(*inputs, layout, causal=True, backend=backend)
        return results[backend]

    return make(
        f"attention, forward, {name}",
        run=lambda: run(name),
        peer=lambda: run("dense"),
        is_right=lambda: name in results and close(results[name], run("dense")),
        bytes=4 * inputs[0].nbytes,
        goal=None,
        peer_name="dense",
    )


def _both(make: Any, name: str, layout: PackedLayout, inputs: tuple[Any, ...]) -> Any:
    import torch

    from te_pkg.attention import packed_attention

    leaves = [x.clone().requires_grad_() for x in inputs]
    results: dict[str, Any] = {}

    def run(backend: str) -> Any:
        with torch.enable_grad():
            out = packed_attention(*leaves, layout, causal=True, backend=backend)
            results[backend] = torch.autograd.grad(out, leaves, inputs[0])
        return results[backend]

    return make(
        f"attention, both ways, {name}",
        run=lambda: run(name),
        peer=lambda: run("dense"),
        is_right=lambda: name in results and all(map(close, results[name], run("dense"))),
        bytes=8 * inputs[0].nbytes,
        goal=None,
        peer_name="dense",
    )


def close(found: Any, expected: Any) -> bool:
    """Equal to the rounding of the dtype, of which `dense` keeps all in float32."""
    import torch

    tolerance = 0.03 if found.dtype == torch.bfloat16 else 1e-3
    return bool(torch.allclose(found.float(), expected.float(), rtol=tolerance, atol=tolerance))
