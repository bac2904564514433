"""What a user would notice between two wheels: names, headers, files.

Times, compression, order, the form of the archive and RECORD do not count: where RECORD is wrong about a file, its
data decides. What `repack` says that it changes is what :func:`diff_wheels` finds between its input and its output, but
for what `--repair` did to the archive and to RECORD.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterator
from contextlib import ExitStack

from build_tools.wheels.change import Change, WheelFile, file_change, header_changes
from build_tools.wheels.headers import Headers
from build_tools.wheels.member import Member
from build_tools.wheels.wheel import Wheel

_HEADERS = (".dist-info/METADATA", ".dist-info/WHEEL", ".dist-info/RECORD")


def diff_wheels(a: str | os.PathLike[str], b: str | os.PathLike[str]) -> tuple[Change, ...]:
    """What differs between the wheels ``a`` and ``b``, ``a`` being the old one.

    Args:
        a: a wheel. It may break rules, so long as its parts can be read.
        b: another.

    Returns:
        File name, folders, fields of METADATA and WHEEL, the description, then the files: removed ones in the order
        of ``a``, others in the order of ``b``. Files in ``.dist-info`` and ``.data`` are the same file whatever these
        folders are called. Empty where a user would notice nothing.

    Raises:
        WheelError: a file is no wheel, or its METADATA, WHEEL or RECORD cannot be read: each breach is named.
        FileError: a file cannot be read.

    >>> diff_wheels("demo-1.0-py3-none-any.whl", "demo-1.0+cpu-py3-none-any.whl")[0].new  # doctest: +SKIP
    'demo-1.0+cpu-py3-none-any.whl'
    """
    with ExitStack() as stack:
        old, new = (_Side(stack.enter_context(Wheel.open(path))) for path in (a, b))
        changes = [
            Change("filename", "name", old.wheel.path.name, new.wheel.path.name),
            Change("folder", "dist-info", old.wheel.dist_info, new.wheel.dist_info),
        ]
        if new.wheel.data:
            changes += [Change("folder", "data", folder, new.wheel.data[0]) for folder in old.wheel.data]
        changes += header_changes("METADATA", old.metadata, new.metadata)
        changes.append(Change("METADATA", "description", _summary(old.metadata.body), _summary(new.metadata.body)))
        changes += header_changes("WHEEL", old.headers, new.headers)
        changes += [
            file_change(old.shown(name), file, None) for name, file in old.files.items() if name not in new.files
        ]
        for name, file in new.files.items():
            before, after = old.files.get(name), file
            if before is not None and before.contradicts(after):
                before, after = old.read(name), new.read(name)
            changes.append(file_change(new.shown(name), before, after))
    return tuple(change for change in changes if change.old != change.new)


def _summary(body: bytes) -> str | None:
    return f"{len(body)} bytes crc32={zlib.crc32(body):08x}" if body.strip() else None


class _Side:
    """One of the two wheels, with names that do not depend on its own."""

    def __init__(self, wheel: Wheel) -> None:
        if wheel.metadata is None or wheel.wheel is None or wheel.record is None:
            wheel.refuse(wheel.findings)
        assert wheel.metadata
        assert wheel.wheel
        self.wheel = wheel
        self.metadata: Headers = wheel.metadata
        self.headers: Headers = wheel.wheel
        self._members: dict[str, Member] = {}
        self.files = dict(self._files())

    def _files(self) -> Iterator[tuple[str, WheelFile]]:
        digests = {row.path: row.digest for row in self.wheel.record} if self.wheel.record else {}
        for member in self.wheel.archive.members:
            top, slash, rest = member.name.partition("/")
            if top == self.wheel.dist_info:
                top = ".dist-info"
            elif top in self.wheel.data:
                top = ".data"
            name = top + slash + rest
            if not member.is_dir and name not in _HEADERS:
                self._members[name] = member
                yield name, WheelFile.of(member.entry, digests.get(member.name, ""))

    def shown(self, name: str) -> str:
        """How the archive itself spells ``name``."""
        return self._members[name].name

    def read(self, name: str) -> WheelFile:
        """The file as its data says."""
        return WheelFile.read(self.wheel.archive, self._members[name])
