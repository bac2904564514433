"""One wheel: its name, archive, headers and RECORD; read, rewritten, checked.

>>> from build_tools.wheels import WheelEdit, repack
>>> repack("demo-1.0-py3-none-any.whl", "out", WheelEdit(name="demo-cu12")).path  # doctest: +SKIP
PosixPath('out/demo_cu12-1.0-py3-none-any.whl')
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from build_tools.wheels.change import Change
    from build_tools.wheels.check import check_wheel
    from build_tools.wheels.diff import diff_wheels
    from build_tools.wheels.edit import WheelEdit
    from build_tools.wheels.finding import Finding
    from build_tools.wheels.index import Index, make_index
    from build_tools.wheels.limits import Limits
    from build_tools.wheels.name import WheelName
    from build_tools.wheels.repacked import Repacked, repack
    from build_tools.wheels.rules import Severity
    from build_tools.wheels.unpacked import Packed, pack, unpack
    from build_tools.wheels.wheel import Wheel

__all__ = [
    "Change", "Finding", "Index", "Limits", "Packed", "Repacked", "Severity", "Wheel", "WheelEdit", "WheelName",
    "check_wheel", "diff_wheels", "make_index", "pack", "repack", "unpack",
]  # fmt: skip

# Imported when they are asked for: a command line that starts often pays for what it uses.
_HOMES = {
    "Change": "change", "Finding": "finding", "Index": "index", "Limits": "limits", "Packed": "unpacked",
    "Repacked": "repacked", "Severity": "rules", "Wheel": "wheel", "WheelEdit": "edit", "WheelName": "name",
    "check_wheel": "check", "diff_wheels": "diff", "make_index": "index", "pack": "unpacked",
    "repack": "repacked", "unpack": "unpacked",
}  # fmt: skip


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
