"""Attention for packed (THD, varlen) sequences: safe caches, exact padding, exact context parallelism.

The work is in :mod:`te_pkg.attention`. Importing ``te_pkg`` itself imports no torch and reads no file, so that a tool
may ask for the version where torch is missing or slow to load:

>>> import te_pkg
>>> te_pkg.__version__  # doctest: +SKIP
'2.21.0.dev0'
"""

from __future__ import annotations

__version__: str

# `__version__` is made on demand, so it stays out of `__all__`: a star import should not have to look for it.
__all__: list[str] = []


def __getattr__(name: str) -> str:
    if name != "__version__":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from te_pkg._version import find_version

    version = find_version(__file__)
    globals()["__version__"] = version
    return version


def __dir__() -> list[str]:
    return sorted({*globals(), "__version__"})
