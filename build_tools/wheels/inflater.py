"""What inflates and what computes CRCs: zlib, or faster modules where they are installed.

python-isal and zlib-ng inflate to the same bytes, and faster. Neither is needed, and none is imported before data is
read by the gigabyte. One may inflate and the other sum.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from importlib import import_module
from typing import Any, NamedTuple

_INFLATERS = ("isal.isal_zlib", "zlib_ng.zlib_ng")
"""The fastest first."""
_SUMS = ("zlib_ng.zlib_ng", "isal.isal_zlib")
"""The fastest first; zlib-ng before isal, after whose CRC SHA-256 takes a third longer on some processors."""


class Inflater(NamedTuple):
    """A way to inflate and a way to sum, perhaps of two modules.

    Attributes:
        name: the module that inflates.
        decompressobj: makes an object with the methods of ``zlib.decompressobj``.
        crc32: as ``zlib.crc32``.
        error: what the first raises for data that is none.
    """

    name: str
    decompressobj: Callable[..., Any]
    crc32: Callable[[bytes, int], int]
    error: type[Exception]


ZLIB = Inflater("zlib", zlib.decompressobj, zlib.crc32, zlib.error)


def fastest() -> Inflater:
    """The fastest inflater and the fastest CRC that are installed."""
    inflates, sums = _first(_INFLATERS), _first(_SUMS)
    if inflates is None or sums is None:
        return ZLIB
    return Inflater(inflates.__name__, inflates.decompressobj, sums.crc32, inflates.error)


def _first(names: tuple[str, ...]) -> Any:
    for name in names:
        try:
            return import_module(name)
        except ImportError:
            continue
    return None
