"""A layout drawn with letters."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from te_pkg.attention.layout import PackedLayout

__all__ = ["draw"]


def draw(layout: PackedLayout) -> str:
    return repr(layout)
