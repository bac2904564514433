"""What this package refuses to do: one family, and each kind is also the builtin that a caller expects."""

from __future__ import annotations


class AttentionError(Exception):
    """Root of the family."""


class ArgumentTypeError(AttentionError, TypeError):
    """An argument is of a type that cannot be meant."""


class SizeError(AttentionError, ValueError):
    """A size is negative."""


class OffsetOverflowError(AttentionError, OverflowError):
    """An offset does not fit into int32.

    Attributes:
        offset: the offset, in rows.
    """

    def __init__(self, message: str, offset: int) -> None:
        super().__init__(message)
        self.offset = offset
