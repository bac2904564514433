"""Times of archive members, as MS-DOS date (upper 16 bits) and time (lower 16 bits).

Source: SOURCE_DATE_EPOCH specification, <https://reproducible-builds.org/specs/source-date-epoch/>.
"""

from __future__ import annotations

import os
import time

from build_tools.errors import EditError

DOS_1980 = 1 << 21 | 1 << 16
"""1980-01-01 00:00:00, the first moment that a zip archive can hold."""
_DOS_2107 = 127 << 25 | 12 << 21 | 31 << 16 | 23 << 11 | 59 << 5 | 29
FIRST_SECOND, LAST_SECOND = 315_532_800, 4_354_819_198
"""1980-01-01 00:00:00 and 2107-12-31 23:59:58 UTC, in seconds since 1970."""


def epoch_seconds() -> int | None:
    """SOURCE_DATE_EPOCH, clamped to what MS-DOS time can hold; ``None`` where it is not set.

    Raises:
        EditError: it is no whole number of seconds from 0 on.
    """
    text = os.environ.get("SOURCE_DATE_EPOCH")
    if text is None:
        return None
    if not (text.isascii() and text.isdigit()):
        raise EditError(
            f"SOURCE_DATE_EPOCH is {text!r}, expected a whole number of seconds since 1970, such as '1767225600'",
            hint="unset it to keep the times that the members have",
        )
    return min(max(int(text), FIRST_SECOND), LAST_SECOND) if len(text) < 20 else LAST_SECOND


def epoch_dos_time() -> int | None:
    """:func:`epoch_seconds` as MS-DOS time in UTC."""
    seconds = epoch_seconds()
    return None if seconds is None else dos_time(seconds)


def dos_time(seconds: int) -> int:
    """MS-DOS time of a Unix time in UTC, clamped to 1980-01-01 00:00:00 .. 2107-12-31 23:59:58."""
    if seconds >= LAST_SECOND:
        return _DOS_2107
    year, month, day, hour, minute, second, *_ = time.gmtime(max(seconds, FIRST_SECOND))
    return (year - 1980) << 25 | month << 21 | day << 16 | hour << 11 | minute << 5 | second // 2
