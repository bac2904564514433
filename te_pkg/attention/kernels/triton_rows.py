"""The row kernel in Triton: one launch, in which every row finds its sequence by binary search in the offsets.

Reads nothing on the host and allocates nothing but its result: safe under CUDA graph capture. A program moves a tile of
rows and words, so that short rows share a program and a long one is shared by many.

Runs on CUDA, and on the CPU under Triton's interpreter, where ``TRITON_INTERPRET=1`` was set before the import.
"""

# A kernel is no Python, and Triton may be missing.
# mypy: disable-error-code="no-untyped-def,untyped-decorator,import-not-found,import-untyped"

from __future__ import annotations

import math
from contextlib import AbstractContextManager, nullcontext
from itertools import pairwise
from typing import Any

import torch
import triton
import triton.language as tl
from triton.runtime.interpreter import InterpretedFunction

from te_pkg.attention.kernels import Fill, PaddingRows, RowMove
from te_pkg.attention.kernels.words import fill_word, in_words

__all__ = ["fill_padding_", "move_rows", "why_unavailable"]

_WIDEST_WORD = 8  # bytes; where two lie aligned, Triton makes one access of them
_TILE_WORDS = 2048
_ROW_WORDS = 512  # of one row in a tile, at most

# Sizes that change from batch to batch, and would be compiled for anew.
_UNSPECIALISED = ["batch", "steps", "source_rows", "target_rows"]


def why_unavailable(device: torch.device) -> str | None:
    """None, or why it cannot run on tensors of ``device``."""
    if device.type == "cuda" or (device.type == "cpu" and isinstance(_move_kernel, InterpretedFunction)):
        return None
    return (
        f"Triton compiles for CUDA, and the tensors are on {str(device)!r}; hint: with TRITON_INTERPRET=1, set before "
        "Triton is imported, its interpreter runs on the CPU"
    )


def move_rows(x: torch.Tensor, move: RowMove, fill: Fill, out: torch.Tensor | None = None) -> torch.Tensor:
    """See :class:`te_pkg.attention.kernels.RowKernel`."""
    if out is None:
        out = x.new_empty((move.target.rows, *x.shape[1:]))
    if out.numel() == 0:
        return out
    source_rows = x.shape[0]
    source, target = in_words(x if source_rows else out, out, widest=_WIDEST_WORD)
    source_strides, target_strides = _strides(source), _strides(target)
    if target_strides is None:
        return out.copy_(move_rows(x, move, fill))
    if source_strides is None:
        return move_rows(x.contiguous(), move, fill, out)
    word = fill_word(fill, x.dtype, target)
    batch = move.cu_seqlens.shape[0] - 1
    grid, tile = _tiles(target)
    with _on(out.device):
        _move_kernel[grid](
            source,
            target,
            move.cu_seqlens,
            move.source.offsets,
            move.target.offsets,
            target if word is None else word,
            batch,
            batch.bit_length(),
            source_rows,
            move.target.rows,
            *source_strides,
            *target_strides,
            **tile,
            PERIOD=0 if word is None else word.numel(),
        )
    return out


def fill_padding_(x: torch.Tensor, padding: PaddingRows, fill: Fill) -> None:
    """See :class:`te_pkg.attention.kernels.RowKernel`."""
    if x.numel() == 0:
        return
    (target,) = in_words(x, widest=_WIDEST_WORD)
    strides = _strides(target)
    if strides is None:
        rows = x.contiguous()
        fill_padding_(rows, padding, fill)
        x.copy_(rows)
        return
    word = fill_word(fill, x.dtype, target)
    batch = padding.cu_seqlens.shape[0] - 1
    grid, tile = _tiles(target)
    with _on(x.device):
        _fill_kernel[grid](
            target,
            padding.cu_seqlens,
            padding.slots.offsets,
            target if word is None else word,
            batch,
            batch.bit_length(),
            x.shape[0],
            *strides,
            **tile,
            PERIOD=0 if word is None else word.numel(),
        )
    if not x.is_inference():
        torch.autograd.graph.increment_version(x)  # torch sees no write through a pointer


def _strides(words: torch.Tensor) -> tuple[int, int] | None:
    """From row to row and from run to run of words within a row; None where runs do not lie evenly."""
    sizes, strides = words.shape[1:-1], words.stride()[1:-1]
    runs = [(size, stride) for size, stride in zip(sizes, strides, strict=True) if size > 1]
    for (_, outer), (size, inner) in pairwise(runs):
        if outer != size * inner:
            return None
    return words.stride(0), runs[-1][1] if runs else 0


def _tiles(words: torch.Tensor) -> tuple[tuple[int], dict[str, Any]]:
    """The grid, and what a program takes of it."""
    length = words.shape[-1]
    row = math.prod(words.shape[1:])
    columns = min(triton.next_power_of_2(row), _ROW_WORDS)
    rows = min(triton.next_power_of_2(words.shape[0]), _TILE_WORDS // columns)
    across = triton.cdiv(row, columns)
    tile = {"row_words": row, "run_words": length, "across": across, "FLAT": length == row}
    # One dimension: the others end at 65,535.
    return (triton.cdiv(words.shape[0], rows) * across,), {**tile, "ROWS": rows, "COLUMNS": columns}


def _on(device: torch.device) -> AbstractContextManager[Any]:
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()


@triton.jit
def _find_slots(slots, rows, batch, steps):
    """The last slot that starts at a row or before it: ``batch`` beyond the last slot. Never leaves the offsets."""
    low = rows * 0
    high = low + batch
    for _ in range(steps):
        middle = (low + high + 1) // 2
        before = tl.load(slots + middle) <= rows
        low = tl.where(before, middle, low)
        high = tl.where(before, high, middle - 1)
    return low


@triton.jit
def _place_tile(row_words, run_words, across, FLAT: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """Rows of a program's tile, and for its words the run, the place in the run, and whether they exist."""
    program = tl.program_id(0).to(tl.int64)
    rows = program // across * ROWS + tl.arange(0, ROWS)
    columns = program % across * COLUMNS + tl.arange(0, COLUMNS)
    runs = columns * 0 if FLAT else columns // run_words
    return rows, runs, columns - runs * run_words, columns < row_words


@triton.jit(do_not_specialize=_UNSPECIALISED)
def _move_kernel(
    x,
    out,
    cu_seqlens,
    source,
    target,
    fill,
    batch,
    steps,
    source_rows,
    target_rows,
    x_row,
    x_run,
    out_row,
    out_run,
    row_words,
    run_words,
    across,
    FLAT: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    PERIOD: tl.constexpr,
):
    rows, runs, words, exist = _place_tile(row_words, run_words, across, FLAT, ROWS, COLUMNS)
    sequences = _find_slots(target, rows, batch, steps)
    found = sequences < batch
    positions = rows - tl.load(target + sequences)
    start = tl.load(source + sequences).to(tl.int64)
    stop = tl.load(source + sequences + 1, mask=found, other=0)
    length = tl.load(cu_seqlens + sequences + 1, mask=found, other=0) - tl.load(cu_seqlens + sequences)
    from_rows = start + positions
    real = found & (positions < length) & (from_rows < stop) & (from_rows >= 0) & (from_rows < source_rows)
    here = from_rows[:, None] * x_row + (runs * x_run + words)[None, :]
    values = tl.load(x + here, mask=real[:, None] & exist[None, :], other=0)
    if PERIOD:
        values = tl.where(real[:, None], values, tl.load(fill + words % PERIOD)[None, :])
    there = rows[:, None] * out_row + (runs * out_run + words)[None, :]
    tl.store(out + there, values, mask=(rows < target_rows)[:, None] & exist[None, :])


@triton.jit(do_not_specialize=_UNSPECIALISED)
def _fill_kernel(
    x,
    cu_seqlens,
    slots,
    fill,
    batch,
    steps,
    target_rows,
    x_row,
    x_run,
    row_words,
    run_words,
    across,
    FLAT: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    PERIOD: tl.constexpr,
):
    rows, runs, words, exist = _place_tile(row_words, run_words, across, FLAT, ROWS, COLUMNS)
    sequences = _find_slots(slots, rows, batch, steps)
    found = sequences < batch
    positions = rows - tl.load(slots + sequences)
    length = tl.load(cu_seqlens + sequences + 1, mask=found, other=0) - tl.load(cu_seqlens + sequences)
    padding = (rows < target_rows) & ((positions >= length) | (sequences == batch))
    there = rows[:, None] * x_row + (runs * x_run + words)[None, :]
    values = tl.load(fill + words % PERIOD)[None, :] if PERIOD else tl.full((1, COLUMNS), 0, x.dtype.element_ty)
    tl.store(x + there, tl.broadcast_to(values, (ROWS, COLUMNS)), mask=padding[:, None] & exist[None, :])
