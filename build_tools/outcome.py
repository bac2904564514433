"""What a command leaves to its caller: an exit code, and facts for programs."""

from __future__ import annotations

DONE, FINDINGS, COULD_NOT = 0, 1, 2
"""Exit codes."""


def print_json(value: object) -> None:
    """Print ``value`` as JSON, whatever paths it holds and whatever the encoding of stdout."""
    import json
    import sys

    text = json.dumps(value, indent=2, ensure_ascii=False)
    try:
        text.encode(sys.stdout.encoding or "utf-8")
    except UnicodeEncodeError:  # a path that is no UTF-8, a stdout that is not: JSON has escapes of its own
        text = json.dumps(value, indent=2)
    print(text)
