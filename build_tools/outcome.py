"""What a command leaves to its caller: an exit code, and facts for programs."""

from __future__ import annotations

DONE, FINDINGS, COULD_NOT = 0, 1, 2
"""Exit codes."""


def print_json(value: object) -> None:
    """Print ``value`` as JSON."""
    import json

    print(json.dumps(value, indent=2, ensure_ascii=False))
