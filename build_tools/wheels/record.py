"""RECORD: the list of a wheel's files with their digests and sizes.

A row that does not change keeps its bytes, so a rewrite changes the rows that it must and no
other.

Source: Recording installed projects, <https://packaging.python.org/specifications/recording-installed-packages/>.
"""

from __future__ import annotations

import base64
import csv
import hashlib
import io
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import NamedTuple, Self

from build_tools.wheels.finding import Finding, Findings
from build_tools.wheels.limits import LIMITS
from build_tools.wheels.member import Member

DIGEST_SIZES = {"sha256": 32, "sha384": 48, "sha512": 64, "sha3_256": 32, "sha3_384": 48, "sha3_512": 64,
                "blake2b": 64, "blake2s": 32}  # fmt: skip
"""Algorithms at least as strong as sha256, with the bytes of their digests."""

_BASE64 = re.compile(r"[A-Za-z0-9_-]+\Z")
_QUOTED = re.compile(r"[^A-Za-z0-9_./+ -]")
_SIZE = re.compile(r"[0-9]{1,20}\Z")
_USUAL_ROW = re.compile(
    rb"^([^\x00-\x1f\x7f,\"]*[^\x00-\x1f\x7f,\"/]),sha256=[A-Za-z0-9_-]{43},([0-9]{1,20})\r?\n", re.MULTILINE
)
_SHORT = 10_000
"""Characters of a line that no limit of the csv module concerns."""
_WEAK = {"md5", "sha1", "sha224"}
_UNSAFE = re.compile(r"\A/|\A[A-Za-z]:|\\|(?:\A|/)\.{0,2}(?:/|\Z)")


class Row(NamedTuple):
    """One row: a path, its digest as ``algorithm=text`` (or ``""``), its size (or ``None``).

    ``raw`` is the line as it was read, without its end, where this tooling would write another one.
    """

    path: str
    digest: str = ""
    size: int | None = None
    raw: str | None = None

    @classmethod
    def of(cls, path: str, data: bytes) -> Self:
        """The row of a file that holds ``data``."""
        return cls(path, digest_text("sha256", hashlib.sha256(data).digest()), len(data))

    @property
    def text(self) -> str:
        """The line, without its end."""
        if self.raw is not None:
            return self.raw
        if not _QUOTED.search(self.path):
            return f"{self.path},{self.digest},{'' if self.size is None else self.size}"
        line = io.StringIO()
        csv.writer(line, lineterminator="").writerow(
            [self.path, self.digest, "" if self.size is None else str(self.size)]
        )
        return line.getvalue()


class Record:
    """The rows of a RECORD in order, and how its lines end.

    It holds their bytes; a row is made when it is asked for, as there may be a hundred thousand.

    Args:
        rows: the rows.
        line_end: what ends each line.
    """

    __slots__ = ("_data", "line_end")

    def __init__(self, rows: Iterable[Row] = (), line_end: str = "\n") -> None:
        self.line_end = line_end
        self._data = b"".join(map(self.line, rows))

    @classmethod
    def _of_lines(cls, data: bytes, line_end: str) -> Self:
        record = cls((), line_end)
        record._data = data
        return record

    @classmethod
    def parse_faultless(
        cls, data: bytes, members: Mapping[str, Member], own: str, limit: int = LIMITS.rows
    ) -> Self | None:
        """The rows of a RECORD with which nothing is wrong, neither by itself nor beside ``members``.

        It looks for the usual alone: a row with sha256 and a size for each file, one for RECORD itself. ``None``
        says that :meth:`parse` and :meth:`compare` must tell.

        Args:
            data: the bytes of RECORD.
            members: the members of the archive, by their names, none of which is unsafe.
            own: the path of RECORD itself.
            limit: how many lines are read.
        """
        lines = data.count(b"\n")
        line_end = "\r\n" if b"\r" in data else "\n"
        returns = lines if line_end == "\r\n" else 0
        own_row = f"{own},,{line_end}".encode()
        if lines > limit or not data.endswith(b"\n") or {data.count(b"\r"), data.count(b"\r\n")} != {returns}:
            return None
        if own not in members or "," in own or '"' in own or not (data.startswith(own_row) or b"\n" + own_row in data):
            return None
        listed: set[str] = {own}
        rows = 1
        try:
            for match in _USUAL_ROW.finditer(data):
                member = members.get(match[1].decode())
                if member is None or member.size != int(match[2]):
                    return None
                listed.add(member.name)
                rows += 1
        except UnicodeDecodeError:
            return None
        files = len(members) - sum(name.endswith("/") for name in members)
        return cls._of_lines(data, line_end) if rows == lines == len(listed) == files else None

    @classmethod
    def parse(cls, data: bytes, member: str, limit: int = LIMITS.rows) -> tuple[Self, list[Finding]]:
        """Read RECORD; what is wrong with its form comes back as findings.

        Args:
            data: the bytes of RECORD.
            member: the member that they come from.
            limit: how many lines are read; of a RECORD that has more, none is.
        """
        found = Findings()
        find = found.add
        count = data.count(b"\n") + data.count(b"\r")
        if count > limit + data.count(b"\r\n"):
            find("limit-exceeded", f"it has more than {limit} lines", member)
            return cls(()), found.all()
        try:
            text = data.decode("utf-8")
        except UnicodeDecodeError as error:
            find("record-invalid", f"not UTF-8: {error.reason} at byte {error.start}", member)
            text = data.decode("utf-8", "replace")
        lines = re.split("\r\n|\n|\r", text)
        if not lines[-1]:
            lines.pop()
        kept: list[str] = []
        seen: set[str] = set()
        for number, line in enumerate(lines, 1):
            if not line:
                find("record-blank-line", f"row {number} is blank", member)
                continue
            try:
                cells = _cells(line)
            except csv.Error as error:
                find("record-invalid", f"row {number} is no CSV ({error}): {line[:200]!r}", member)
                continue
            if len(cells) != 3:
                find("record-invalid", f"row {number} has {len(cells)} fields, expected 3: {line[:200]!r}", member)
                continue
            path, _, size = cells
            if _UNSAFE.search(path.removesuffix("/")):
                message = f"row {number} is no relative path with '/' that stays inside: {path[:200]!r}"
                find("record-path", message, member)
                continue
            if size and not _SIZE.match(size):
                find("record-size", f"the size in row {number} is no number: {size[:30]!r}", path)
            if path in seen:
                find("record-duplicate", f"row {number} lists it again", path)
                continue
            seen.add(path)
            kept.append(line)
        line_end = "\r\n" if "\r\n" in text else "\n"
        return cls._of_lines("".join(line + line_end for line in kept).encode(), line_end), found.all()

    def __iter__(self) -> Iterator[Row]:
        """The rows, each made anew."""
        return map(self.row, self.lines())

    def lines(self) -> Iterator[bytes]:
        """The bytes of each row, with its line end: those that were read, blank lines and rows that are none apart."""
        return iter(io.BytesIO(self._data))

    def row(self, line: bytes) -> Row:
        """The row of one of :meth:`lines`."""
        text = line.decode().removesuffix(self.line_end)
        path, digest, size = _cells(text)
        row = Row(path, digest, int(size) if _SIZE.match(size) else None)
        return row if row.text == text else row._replace(raw=text)

    def line(self, row: Row) -> bytes:
        """The line of a row, as :meth:`lines` would give it."""
        return (row.text + self.line_end).encode()

    def to_bytes(self) -> bytes:
        """The bytes of all rows."""
        return self._data

    def compare(
        self, sizes: Mapping[str, int], folders: Iterable[str], own: str, unlisted: frozenset[str]
    ) -> list[Finding]:
        """Hold the rows against the members of the archive.

        Args:
            sizes: the size of each file of the archive.
            folders: the directory entries, without their ``/``.
            own: the path of RECORD itself.
            unlisted: files that need no row: RECORD and its signatures.
        """
        found = Findings()
        directories = set(folders)
        listed: set[str] = set()
        for row in self:
            listed.add(row.path)
            find = partial(found.add, member=row.path)
            if row.path == own:
                if row.digest or row.size is not None:
                    find("record-own-row", f"RECORD's own row holds {row.digest!r} and {row.size!r}, expected nothing")
                continue
            if row.path not in sizes:
                if row.path.rstrip("/") in directories:
                    find("record-directory", "RECORD lists a directory")
                else:
                    find("record-missing-member", "RECORD lists it, the archive does not hold it")
                continue
            _check_digest(row, find, needed=row.path not in unlisted)
            if row.size is None:
                if row.path not in unlisted:
                    find("record-no-size", "RECORD gives no size for it")
            elif row.size != sizes[row.path]:
                find("record-size", f"RECORD says {row.size} bytes, the file has {sizes[row.path]}")
        for path in sizes:
            if path not in listed and path not in unlisted:
                found.add("record-missing-row", "the archive holds it, RECORD does not list it", path)
        if own not in listed:
            found.add("record-missing-row", "RECORD does not list itself", own)
        return found.all()


def _cells(line: str) -> list[str]:
    """The fields of a line.

    Raises:
        csv.Error: it is no CSV.
    """
    if '"' not in line and len(line) < _SHORT:
        return line.split(",")
    (cells,) = csv.reader([line], strict=True)
    return cells


def digest_text(algorithm: str, digest: bytes) -> str:
    """``sha256=`` and the digest in url-safe base64 without padding, as RECORD writes it."""
    return f"{algorithm}={base64.urlsafe_b64encode(digest).rstrip(b'=').decode()}"


def is_sound_digest(text: str) -> bool:
    """Whether ``text`` is a digest of sha256 or stronger, in url-safe base64 of the right length."""
    algorithm, _, value = text.partition("=")
    size = DIGEST_SIZES.get(algorithm)
    return size is not None and len(value) == -(-size * 4 // 3) and _BASE64.match(value) is not None


def _check_digest(row: Row, find: Callable[[str, str], None], *, needed: bool) -> None:
    if not row.digest:
        if needed:
            find("record-no-digest", "RECORD gives no digest for it")
        return
    algorithm, equals, _ = row.digest.partition("=")
    if algorithm.lower() in _WEAK:
        find("record-weak-digest", f"its digest is {algorithm}, expected sha256 or stronger")
        return
    if not equals or algorithm not in DIGEST_SIZES:
        find("record-weak-digest", f"its digest {row.digest!r} is of an unknown kind, expected sha256=...")
        return
    if not is_sound_digest(row.digest):
        find(
            "record-digest-form", f"its digest {row.digest!r} is not url-safe base64 of {DIGEST_SIZES[algorithm]} bytes"
        )
