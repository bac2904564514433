"""Rows seen as integers, so that one kernel moves and fills every dtype.

A row is moved as it is, bit for bit, and 0 is all bits 0 in every dtype (in ``float8_e8m0fnu``, which has no 0, that is
the least number). So a kernel need not know the dtype: it sees words of 1, 2, 4, 8 or 16 bytes, the wider the fewer.
"""

from __future__ import annotations

import math

import torch
from torch.compiler import is_compiling

from te_pkg.attention.errors import ArgumentTypeError
from te_pkg.attention.kernels import Fill

__all__ = ["as_integers", "as_words", "check_fill", "count_write", "fill_with", "fill_word", "in_words"]

# No integer has 16 bytes. A complex number that is only ever moved is as good.
_WORDS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64, 16: torch.complex128}

_INT64 = torch.iinfo(torch.int64)

# Torch puts the greatest number or NaN in the place of an infinity. By name, because not every torch has them all.
_WITHOUT_INFINITY = {"float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2fnuz", "float8_e8m0fnu"}

_PLAIN = {torch.bfloat16, torch.float16, torch.float32, torch.float64, torch.int32, torch.int64}


def in_words(*tensors: torch.Tensor, widest: int = 16) -> list[torch.Tensor]:
    """Views of tensors ``[t_i, ...]`` of one dtype and row shape, in the widest word that fits them all.

    What lies side by side in a row of each is one dimension of words, the last: ``[t_i, n]`` for contiguous rows.

    >>> [words.shape for words in in_words(torch.zeros(3, 4, 8), torch.zeros(5, 4, 8))]
    [torch.Size([3, 8]), torch.Size([5, 8])]
    >>> in_words(torch.zeros(3, 5, dtype=torch.bfloat16))[0].dtype
    torch.int16
    >>> in_words(torch.zeros(3, 4, 8)[:, ::2])[0].shape
    torch.Size([3, 2, 2])

    Args:
        tensors: each with at least one element, and none conjugated or negated lazily.
        widest: bytes of the widest word.
    """
    first = tensors[0]
    row = first.nbytes // first.shape[0]
    if not row % widest and row > first.itemsize:  # mostly; a single element may have any stride
        for tensor in tensors:
            if not tensor.is_contiguous() or tensor.data_ptr() % widest:
                break
        else:
            word, views = _WORDS[widest], []
            for tensor in tensors:
                flat = tensor if tensor.ndim == 2 else tensor.view(tensor.shape[0], -1)
                views.append(flat.view(word))
            return views
    merged = first.ndim  # dimensions from here on lie side by side
    length = 1
    while merged > 1:
        size = first.shape[merged - 1]
        if size != 1 and any(tensor.stride(merged - 1) != length for tensor in tensors):
            break
        length *= size
        merged -= 1
    distances = [length * first.itemsize]
    for tensor in tensors:
        distances.append(tensor.data_ptr())
        distances += (tensor.stride(i) * first.itemsize for i in range(merged) if tensor.shape[i] > 1)
    common = math.gcd(*distances)
    # Memory that another library brought may not even be aligned for its elements, which torch takes as it is.
    word = _WORDS[max(min(first.itemsize, widest), *(size for size in _WORDS if size <= widest and common % size == 0))]
    if length > 1:
        return [_seen_as(tensor.flatten(merged), word) for tensor in tensors]
    # A dimension of one element may have any stride, and narrower words need 1.
    alone = tuple(range(merged, first.ndim))
    return [tensor.squeeze(alone).unsqueeze(-1).view(word) for tensor in tensors]


def _seen_as(rows: torch.Tensor, word: torch.dtype) -> torch.Tensor:
    """The last dimension in words; a dimension of one element has any stride, also one that no word fits."""
    alone = [i for i, size in enumerate(rows.shape[:-1]) if size == 1]
    words = rows.squeeze(alone).view(word)
    for i in alone:
        words = words.unsqueeze(i)
    return words


def as_words(tensor: torch.Tensor) -> torch.Tensor:
    """:func:`in_words` of one tensor, for which it does not matter how the words of a row are arranged.

    >>> as_words(torch.zeros(3, 4, 8)).shape, as_words(torch.zeros(3, 4, 5)).shape
    (torch.Size([3, 4, 2]), torch.Size([3, 5]))
    """
    shape = tensor.shape
    if (
        len(shape) > 1
        and not shape[-1] * tensor.itemsize % 16
        and tensor.is_contiguous()
        and not tensor.data_ptr() % 16
        and tensor.itemsize < 16
    ):
        return tensor.view(torch.complex128)  # one view in the place of two
    (words,) = in_words(tensor)
    return words


def as_integers(tensor: torch.Tensor) -> torch.Tensor:
    """The same shape, elements of the same size; itself if torch can copy its dtype as it is.

    >>> as_integers(torch.zeros(2, dtype=torch.float8_e5m2)).dtype
    torch.uint8
    """
    return tensor if tensor.dtype in _PLAIN else tensor.view(_WORDS[tensor.itemsize])


def check_fill(fill: Fill, dtype: torch.dtype) -> Fill:
    """``fill`` as torch takes it. Refuses what is no number, and what ``dtype`` could only hold in part.

    >>> check_fill(2**70, torch.float32)
    1.1805916207174113e+21

    Raises:
        ArgumentTypeError: a ``TypeError``.
    """
    if is_compiling() and isinstance(fill, (bool, int, float, complex)):
        return fill  # perhaps a symbol: the operator looks at its value when the program runs
    if isinstance(fill, complex):
        fits = dtype.is_complex and _holds(dtype, fill.real) and _holds(dtype, fill.imag)
    elif isinstance(fill, (torch.SymInt, torch.SymFloat)):
        return fill  # likewise
    else:
        fits = isinstance(fill, (int, float)) and _holds(dtype, fill)
    if not fits:
        raise ArgumentTypeError(f"fill is {fill!r}, expected a number that {dtype} can hold")
    if isinstance(fill, int) and not _INT64.min <= fill <= _INT64.max and dtype != torch.uint64:
        return float(fill)
    return fill


def fill_word(fill: Fill, dtype: torch.dtype, words: torch.Tensor) -> torch.Tensor | None:
    """``fill`` in ``dtype``, as so many of these words as it takes, ``[1]`` at least; None where all its bits are 0.

    >>> hex(fill_word(1.0, torch.bfloat16, torch.zeros(1, dtype=torch.int32)).item())
    '0x3f803f80'
    >>> fill_word(0.0, torch.bfloat16, torch.zeros(1, dtype=torch.int32)) is None
    True
    """
    if (type(fill) is int and fill == 0) or _is_zero(fill):
        return None
    repeats = max(words.itemsize // dtype.itemsize, 1)
    return torch.full((repeats,), fill, dtype=dtype, device=words.device).view(words.dtype)


def fill_with(words: torch.Tensor, word: torch.Tensor | None) -> None:
    """Write what :func:`fill_word` gave everywhere."""
    if word is None:
        words.zero_()
    else:
        words.copy_(word)  # not `fill_`, which reads a tensor from its device


def count_write(x: torch.Tensor) -> None:
    """Count that ``x`` was written in words: under inference mode a view of another dtype does not."""
    if torch.is_inference_mode_enabled() and not x.is_inference():
        torch.autograd.graph.increment_version(x)


def _is_zero(fill: Fill) -> bool:
    # -0.0 is 0 and has a bit set.
    return fill == 0 and all(math.copysign(1, part) > 0 for part in (complex(fill).real, complex(fill).imag))


def _holds(dtype: torch.dtype, number: float) -> bool:
    """Whether a number keeps its value, but for rounding. 0 is all bits 0, and fits everywhere."""
    if number == 0:
        return True
    is_float = dtype.is_floating_point or dtype.is_complex
    if dtype == torch.bool:
        least, greatest = 0.0, 1.0
    else:
        try:
            limits = torch.finfo(dtype) if is_float else torch.iinfo(dtype)
            least, greatest = limits.min, limits.max
        except (NotImplementedError, TypeError):
            return False  # bits without a meaning, and parts of bytes: torch cannot fill them
    if isinstance(number, float) and not math.isfinite(number):
        return is_float and (math.isnan(number) or str(dtype).removeprefix("torch.") not in _WITHOUT_INFINITY)
    return least <= number <= greatest and (is_float or number == int(number))
