"""Make the sides of a wheel agree: file name against METADATA and WHEEL, where one of them wins.

The folders of the wheel bear no side of their own: a rewrite names them after the name that comes out.
"""

from __future__ import annotations

from typing import NamedTuple

from build_tools.errors import WheelNameError
from build_tools.version import parse_version
from build_tools.wheels.edit import WheelEdit
from build_tools.wheels.header_edit import edit_metadata, edit_wheel
from build_tools.wheels.headers import Headers
from build_tools.wheels.name import WheelName, check_build_tag, compress_tags


class Agreed(NamedTuple):
    """A name, and the METADATA and WHEEL that say the same."""

    name: WheelName
    metadata: Headers
    wheel: Headers


def follow_filename(name: WheelName, metadata: Headers, wheel: Headers) -> Agreed:
    """METADATA and WHEEL as the file name has it, requirements on the wheel itself included.

    ``Name:`` keeps its spelling where it means the same. Else it is the one of the file name, with the ``-``
    that a file name must write as ``_``.

    Args:
        metadata: with one valid Name and one valid Version.
    """
    old = WheelName(_value(metadata, "Name"), parse_version(_value(metadata, "Version")))
    renamed = name.project.replace("_", "-") if old.name != name.name else None
    return Agreed(name, edit_metadata(metadata, old, name, WheelEdit(name=renamed)), edit_wheel(wheel, name))


def follow_metadata(metadata: Headers, wheel: Headers, variant: str | None) -> Agreed:
    """The name that METADATA and WHEEL ask for, and WHEEL with one line for each of its tags.

    Args:
        metadata: with one valid Name and one valid Version.
        wheel: with one build tag at most, which :func:`stated_build` has read.
        variant: the label that the file name has, which stands in neither of the two.

    Raises:
        WheelNameError: no file name can hold the tags.
    """
    tags = compress_tags(value.strip() for value in wheel.get_all("Tag") if value.strip())
    version = parse_version(_value(metadata, "Version"))
    name = WheelName(_value(metadata, "Name"), version, stated_build(wheel), *tags, variant=variant)
    return Agreed(name, metadata, edit_wheel(wheel, name))


def stated_build(wheel: Headers) -> str:
    """The build tag of WHEEL, ``""`` for none.

    Raises:
        WheelNameError: it is none, or there are several.
    """
    builds = list(dict.fromkeys(value.strip() for value in wheel.get_all("Build") if value.strip()))
    if len(builds) > 1:
        raise WheelNameError(f"WHEEL has the build tags {', '.join(map(repr, builds))}, expected one")
    return check_build_tag(builds[0]) if builds else ""


def _value(headers: Headers, field: str) -> str:
    return (headers.get(field) or "").strip()
