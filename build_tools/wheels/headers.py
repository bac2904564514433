"""The header block of METADATA and WHEEL, edited by splicing lines.

Only the lines that change are replaced; every other byte stays: order, folding, unknown headers,
line ends, the description. What a header *says* is what Python's ``email.parser`` (compat32
policy, the parser of record) says of the same bytes; a property test compares the two.

Source: Core metadata specification, <https://packaging.python.org/specifications/core-metadata/>.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple, Self

from build_tools.errors import EditError, WheelError
from build_tools.wheels.limits import MAX_FIELDS

# The line ends of email.parser's universal newlines: a lone CR ends a line too.
_LINE = re.compile(rb"[^\r\n]*(?:\r\n|\n|\r|\Z)")
_FIELD = re.compile(rb"[\x21-\x39\x3b-\x7e]+:")
_BREAKS = re.compile("[\x00-\x08\x0a-\x1f\x7f\x85\u2028\u2029]")


class Field(NamedTuple):
    """One header: its name as spelled, and its bytes with every continuation line and line end."""

    name: str
    raw: bytes

    @property
    def value(self) -> str:
        """The value as ``email.parser`` gives it: leading blanks off, folds kept."""
        text = self.raw.decode()
        return text.split(":", 1)[1].lstrip(" \t").rstrip("\r\n")

    def is_named(self, name: str) -> bool:
        """Whether this is the header ``name``; case does not count."""
        return self.name.lower() == name.lower()


class Headers(NamedTuple):
    """A header block and what follows it.

    Attributes:
        fields: the headers in order.
        body: the blank line and all bytes behind it (for METADATA the description).
    """

    fields: tuple[Field, ...]
    body: bytes

    @classmethod
    def parse(cls, data: bytes, where: str = "METADATA") -> Self:
        """Read ``data``, which must be UTF-8.

        Raises:
            WheelError: not UTF-8, or lines before the first blank one that are no header: each is named.
        """
        headers, faults = cls.read(data, where)
        if faults:
            raise WheelError(faults)
        return headers

    @classmethod
    def read(cls, data: bytes, where: str = "METADATA") -> tuple[Self, list[str]]:
        """As :meth:`parse`, but what can be read is read: the headers that are some, and every fault."""
        faults: list[str] = []
        try:
            data.decode()
        except UnicodeDecodeError as error:
            faults.append(f"{where} is not UTF-8: {error.reason} at byte {error.start}")
            data = data.decode(errors="replace").encode()
        found: list[Field] = []
        # A field reaches to where the next line that is no continuation starts: it may be folded over a million.
        name, start = "", 0
        position = number = 0
        while position < len(data):
            match = _LINE.match(data, position)
            line = match[0] if match else b""
            if not line.rstrip(b"\r\n"):
                break
            number += 1
            if name and line[:1] in (b" ", b"\t") and not line.endswith(b"\r"):
                position += len(line)
                continue
            if name:
                found.append(Field(name, data[start:position]))
            if len(found) == MAX_FIELDS or len(faults) == MAX_FIELDS:
                faults.append(f"{where} has more than {MAX_FIELDS} headers")
                name = ""
                break
            start = position
            position += len(line)
            field = _FIELD.match(line)
            name = ""
            if line.endswith(b"\r"):
                # email.parser ends a line here, other readers do not: they would see other headers.
                faults.append(f"{where} line {number} ends with a lone CR: {_shorten(line)!r}")
            elif field:
                name = field[0][:-1].decode()
            else:
                faults.append(f"{where} line {number} is no header: {_shorten(line)!r}")
        if name:
            found.append(Field(name, data[start:position]))
        return cls(tuple(found), data[position:]), faults

    def to_bytes(self) -> bytes:
        """The bytes: those that were read, where nothing was edited."""
        return b"".join(field.raw for field in self.fields) + self.body

    def get_all(self, name: str) -> list[str]:
        """The values of every header ``name`` (case does not count), in order."""
        return [field.value for field in self.fields if field.is_named(name)]

    def by_name(self) -> dict[str, list[str]]:
        """The values of every header, by its name in lower case, names in the order of their first header."""
        values: dict[str, list[str]] = {}
        for field in self.fields:
            values.setdefault(field.name.lower(), []).append(field.value)
        return values

    def get(self, name: str) -> str | None:
        """The value of the first header ``name``."""
        return next(iter(self.get_all(name)), None)

    @property
    def line_end(self) -> bytes:
        """The line end of the first header: what a new line gets."""
        raw = self.fields[0].raw if self.fields else b"\n"
        return b"\r\n" if raw.endswith(b"\r\n") else b"\n"

    def with_values(self, name: str, values: Sequence[str]) -> Headers:
        """``values`` in place of all that ``name`` has; none removes the field.

        The first values take the places of the old ones, further ones stand right behind them; a
        line whose value stays keeps its bytes. A field that is new stands last.
        """
        fields: list[Field] = []
        todo = list(values)
        last = None
        for field in self.fields:
            if not field.is_named(name):
                fields.append(field)
            elif todo:
                value = todo.pop(0)
                fields.append(field if field.value == value else self._field(field.name, value))
                last = len(fields)
        at = len(fields) if last is None else last
        fields[at:at] = [self._field(name, value) for value in todo]
        return self._ended(fields)

    def with_added(self, name: str, value: str) -> Headers:
        """One more line, behind the last of its field, else last; no change where it stands already."""
        values = self.get_all(name)
        return self if value in values else self.with_values(name, [*values, value])

    def _field(self, name: str, value: str) -> Field:
        check_value(name, value)
        return Field(name, f"{name}: {value}".rstrip(" ").encode() + self.line_end)

    def _ended(self, fields: list[Field]) -> Headers:
        """Give a last line that ended with the file a line end where something follows it now."""
        ended = [
            field if field.raw.endswith(b"\n") or (index == len(fields) - 1 and not self.body)
            else field._replace(raw=field.raw + self.line_end)
            for index, field in enumerate(fields)
        ]  # fmt: skip
        return Headers(tuple(ended), self.body)


def is_field_name(text: str) -> bool:
    """Whether ``text`` can be the name of a header: printable ASCII without blank and colon."""
    return _FIELD.fullmatch(f"{text}:".encode(errors="replace")) is not None


def check_value(name: str, value: str) -> None:
    """Refuse a value that would end its line and start another header.

    Raises:
        EditError: ``value`` holds a line break (CR, LF, VT, FF, NEL, U+2028, U+2029), another
            control character, or bytes that are no UTF-8.
    """
    match = _BREAKS.search(value)
    if match:
        raise EditError(f"{name}: {value!r} holds {match[0]!r}: a header value is one line without control characters")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise EditError(f"{name}: {value!r} is not valid Unicode") from None


def line_break(value: str) -> str | None:
    """The first character of ``value`` at which some reader ends a line, folds and tabs left out."""
    match = _BREAKS.search(value.replace("\r\n", " ").replace("\n", " "))
    return match[0] if match else None


def _shorten(line: bytes) -> str:
    text = line[:300].decode(errors="replace").rstrip("\r\n")
    return text if len(text) <= 60 else text[:57] + "..."
