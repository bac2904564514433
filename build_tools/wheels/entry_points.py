"""entry_points.txt: which names and objects it gives, and what is wrong with it.

Source: Entry points specification, <https://packaging.python.org/specifications/entry-points/>.
"""

from __future__ import annotations

import configparser
import keyword
import re

from build_tools.wheels.name import shorten

SCRIPT_GROUPS = ("console_scripts", "gui_scripts")
_OBJECT = re.compile(r"(?P<module>[\w.]+)\s*(?::\s*(?P<attribute>[\w.]+)\s*)?(?:\[(?P<extras>[^\[\]]*)\]\s*)?\Z")
_SCRIPT = re.compile(r"[\w.-]+\Z")


class _Parser(configparser.ConfigParser):
    optionxform = staticmethod(str)  # type: ignore[assignment]  # names keep their case


def entry_point_faults(data: bytes) -> list[str]:
    """Everything that is wrong with the bytes of an entry_points.txt."""
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        return [f"not UTF-8: {error.reason} at byte {error.start}"]
    parser = _Parser(delimiters=("=",), strict=True, interpolation=None, default_section="\0")
    try:
        parser.read_string(text)
    except configparser.Error as error:
        return [shorten(" ".join(str(error).replace("'<string>'", "it").split()))]
    return [
        fault
        for group in parser.sections()
        for name, value in parser.items(group)
        for fault in _faults(group, name, value)
    ]


def _faults(group: str, name: str, value: str) -> list[str]:
    shown = f"[{shorten(group, 60)}] {shorten(name, 60)!r}"
    faults = []
    if group in SCRIPT_GROUPS and not _SCRIPT.match(name):
        # It becomes a file name: a path would be written to wherever it leads.
        faults.append(f"{shown} is no name of a script: expected letters, digits, '.', '-' and '_'")
    match = _OBJECT.match(value)
    if not match:
        faults.append(f"{shown} is {shorten(value)!r}: expected 'module:object'")
    elif group in SCRIPT_GROUPS:
        if not match["attribute"]:
            faults.append(f"{shown} is {shorten(value)!r}: a script needs an object, as in 'module:main'")
        parts = f"{match['module']}.{match['attribute'] or 'main'}".split(".")
        if not all(part.isidentifier() and not keyword.iskeyword(part) for part in parts):
            faults.append(f"{shown} is {shorten(value)!r}, which no Python can import")
    return faults
