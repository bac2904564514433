"""How much of a file is read at most, so that none takes all memory or never ends.

What a file system or a reader of names bounds anyway is a constant; the rest a caller may raise
with a :class:`Limits` of its own, and a user with ``te-wheel check --limit members=1000000``.
"""

from __future__ import annotations

from typing import NamedTuple, Self

from build_tools.errors import UsageError

MAX_NAME = 4096
"""Bytes of the whole name of a member; no file system takes longer ones."""
MAX_PART = 255
"""Bytes of one part of a name."""
MAX_DEPTH = 128
"""Parts of a name."""
MAX_SYMLINK = 4096
"""Bytes of the target of a symlink."""
MAX_SYMLINKS = 2_000
"""Symlinks of one archive."""
MAX_TAGS = 10_000
"""Tags that one wheel may stand for: a compressed set of a kilobyte can mean a million."""
MAX_FIELDS = 200_000
"""Headers of METADATA or WHEEL."""
MAX_SMALL = 1 << 20
"""Bytes of entry_points.txt, variant.json and the like."""
MAX_SBOM = 8 << 20
"""Bytes of one SBOM."""
MAX_FINDINGS = 10_000
"""Findings of one code in one part of a file; of further ones only the number is told."""
MAX_VALUE = 100_000
"""Characters of a header value that is parsed, such as a requirement: parsers take a long time over megabytes."""


class Limits(NamedTuple):
    """What is read at most of one file; a file that holds more is refused with ``limit-exceeded``.

    Attributes:
        members: members of the archive.
        directory: bytes of its central directory.
        metadata: bytes of METADATA, WHEEL, PKG-INFO and each other file that is read whole.
        record: bytes of RECORD.
        rows: lines of RECORD.
        unpacked: bytes that an sdist inflates to; a wheel's are bounded by what its headers say.
        ratio: how many times its own size a wheel may inflate to before ``--hashes`` reads it
            (what it inflates to within 1 GiB is always read).

    >>> Limits(members=1_000_000).members
    1000000
    """

    members: int = 500_000
    directory: int = 128 << 20
    metadata: int = 8 << 20
    record: int = 128 << 20
    rows: int = 1_000_000
    unpacked: int = 2 << 30
    ratio: int = 200

    @classmethod
    def parse(cls, texts: list[str]) -> Self:
        """The limits that ``NAME=NUMBER`` texts change.

        Raises:
            UsageError: with every text that is no such pair.
        """
        changes: dict[str, int] = {}
        faults = []
        for text in texts:
            name, equals, number = text.partition("=")
            if not equals or name not in cls._fields or not (number.isascii() and number.isdecimal()):
                faults.append(f"--limit {text!r}: expected NAME=NUMBER, with a name of {', '.join(cls._fields)}")
            else:
                changes[name] = int(number[:18])
        if faults:
            raise UsageError(faults, hint="see `te-wheel check --help`")
        return cls(**changes)


LIMITS = Limits()
"""What holds where nothing else is asked for."""
