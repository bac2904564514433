"""Which broken rules a rewrite can mend when it is asked to, and by which option.

Everything else needs a decision that the wheel itself does not hold, so it is never mended.
"""

from __future__ import annotations

SIDES = ("filename", "metadata")
"""What may win where the parts of a wheel disagree: the file name, or METADATA with WHEEL."""

DISAGREEMENTS = frozenset(
    {"filename", "dist-info-name", "data-name", "metadata-name", "metadata-version-field", "wheel-tags", "wheel-build"}
)
"""What ``--sync`` settles."""

REWRITTEN = frozenset({"zip-trailing-data", "zip-prefix", "zip-gap", "zip-flags", "zip-extra", "zip-version"})
"""What is gone once the archive is written anew, without a look at its members."""

REPAIRABLE = REWRITTEN | {
    "zip-duplicate", "data-name", "record-invalid", "record-path", "record-duplicate", "record-missing-row",
    "record-missing-member", "record-directory", "record-no-digest", "record-weak-digest", "record-digest-form",
    "record-size", "record-own-row", "record-digest",
}  # fmt: skip
"""What ``--repair`` mends, unless a look at the members tells that it takes a guess."""
