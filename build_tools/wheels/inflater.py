"""The program that inflates and sums: zlib, or a faster one that is installed.

python-isal and zlib-ng give the same bytes in half the time. Neither is needed, and none is
imported before data is read by the gigabyte.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from importlib import import_module
from typing import Any, NamedTuple

_FASTER = ("isal.isal_zlib", "zlib_ng.zlib_ng")


class Inflater(NamedTuple):
    """What is needed of one program.

    Attributes:
        name: the module.
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
    """The fastest inflater that is installed."""
    for name in _FASTER:
        try:
            module = import_module(name)
        except ImportError:
            continue
        return Inflater(name, module.decompressobj, module.crc32, module.error)
    return ZLIB
