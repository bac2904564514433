"""Requires-Dist values that name the wheel's own distribution.

``demo[gpu]; extra == "all"`` in the wheel ``demo`` is how extras are built from other extras. When
the distribution is renamed the name follows; when its version changes, an exact pin on the old
version follows. Everything else of the value stays as it is written.
"""

from __future__ import annotations

import re

from packaging.version import Version

from build_tools.wheels.name import NormalizedName, normalize_name

_NAME = r"\s*[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?"
_PIN = r"(?<![=!<>~])(==\s*)([^\s,;()=*]+)(?=\s*(?:[,;)]|\Z))"


def follow(value: str, own: NormalizedName, name: str | None, old: Version, new: Version) -> str:
    """The Requires-Dist ``value`` after the wheel's own name and version have changed.

    Args:
        value: as it stands, folds included.
        own: the normalised name that the wheel had.
        name: the new name as the user spells it, or ``None`` where it stays.
        old, new: the versions before and after.

    >>> follow('demo[gpu]; extra == "all"', normalize_name("demo"), "demo-cu12", Version("1"), Version("1"))
    'demo-cu12[gpu]; extra == "all"'
    """
    # The name is looked at first: few wheels name themselves, and parsing is costly to import.
    match = re.match(_NAME, value)
    if match is None or normalize_name(match[0].strip()) != own:
        return value
    from packaging.requirements import Requirement

    one_line = " ".join(value.split())
    try:
        requirement = Requirement(one_line)
    except ValueError:
        return value
    followed = one_line
    if name is not None:
        followed = re.sub(_NAME, name, followed, count=1)
    if requirement.url is None and old != new:
        head, semicolon, marker = followed.partition(";")
        followed = re.sub(_PIN, lambda match: match[1] + _pin(match[2], old, new), head) + semicolon + marker
    return value if followed == one_line else followed


def _pin(text: str, old: Version, new: Version) -> str:
    """The version of an exact pin: the new public one where it pinned the old version.

    A pin without a local label admits every local label, so it changes with the public version
    alone; one with the old local label would admit nothing any more.
    """
    try:
        pinned = Version(text)
    except ValueError:
        return text
    if (pinned == old and pinned.local is not None) or (pinned == Version(old.public) and old.public != new.public):
        return new.public
    return text
