"""The strings of a JSON text, each with its path and its place, so that one can be replaced and all else stays."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from typing import NamedTuple

MAX_DEPTH = 200
"""Arrays and objects within each other."""

_TOKEN = re.compile(
    r"""[ \t\r\n]*(?:([{}\[\]:,])|("(?:[^"\\\x00-\x1f]|\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4}))*")"""
    r"""|(-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?|true|false|null))"""
)

JsonPath = tuple[str | int, ...]


class JsonString(NamedTuple):
    """A string value of a JSON text.

    Attributes:
        path: the keys and indices that lead to it.
        value: what it says.
        start, end: where it stands in the text, quotes included.
    """

    path: JsonPath
    value: str
    start: int
    end: int


def read_strings(text: str) -> list[JsonString]:
    """Every string value of ``text``, in order. Keys are no values.

    >>> read_strings('{"a": ["x", 1]}')
    [JsonString(path=('a', 0), value='x', start=7, end=10)]

    Raises:
        ValueError: the text is no JSON (RFC 8259), repeats a key, or nests deeper than :data:`MAX_DEPTH`.
    """
    try:
        json.loads(text)  # the judge of what is JSON; the walk below only finds places
    except RecursionError:
        raise ValueError(f"it nests deeper than {MAX_DEPTH}") from None
    found: list[JsonString] = []
    path: list[str | int] = []
    seen: list[set[str] | None] = []
    wants_key = False
    for token, start, end in _tokens(text):
        if token in ("{", "["):
            if len(path) == MAX_DEPTH:
                raise ValueError(f"it nests deeper than {MAX_DEPTH}")
            seen.append(set() if token == "{" else None)
            path.append("" if token == "{" else 0)
            wants_key = token == "{"
        elif token in ("}", "]"):
            path.pop()
            seen.pop()
            wants_key = False
        elif token == ",":
            wants_key = seen[-1] is not None
            if not wants_key:
                path[-1] = int(path[-1]) + 1
        elif token == ":":
            wants_key = False
        elif token[0] == '"':
            value = json.loads(token)
            keys = seen[-1] if seen else None
            if not wants_key:
                found.append(JsonString(tuple(path), value, start, end))
            elif keys is not None:
                if value in keys:
                    raise ValueError(f"it gives the key {value!r} twice")
                keys.add(value)
                path[-1] = value
    return found


def replace_strings(text: str, replacements: Iterable[tuple[JsonString, str]]) -> str:
    """``text`` with other values for some of its strings; every other character stays."""
    parts: list[str] = []
    position = 0
    for string, value in sorted(replacements, key=lambda pair: pair[0].start):
        parts += [text[position : string.start], json.dumps(value, ensure_ascii=False)]
        position = string.end
    return "".join([*parts, text[position:]])


def _tokens(text: str) -> Iterator[tuple[str, int, int]]:
    position = 0
    while match := _TOKEN.match(text, position):
        group = match.lastindex or 0
        yield match[group], match.start(group), match.end(group)
        position = match.end()
