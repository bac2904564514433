"""Properties of a repair, on right wheels that were damaged in ways that take no guess."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from build_tools.wheels import WheelEdit, check_wheel, repack
from tests.build_tools.test_properties import Wanted, edits, payload, wheels
from tests.build_tools.wheel_factory import (
    Archive,
    make_wheel,
    wheel_text,
)
from tests.build_tools.wheel_reader import read_any, read_right

Damage = Callable[[dict[str, Any], Wanted], None]


def _rows(change: Callable[[list[list[str]]], list[list[str]]]) -> Damage:
    def damage(made: dict[str, Any], _: Wanted) -> None:
        before = made.get("record", lambda rows: rows)
        made["record"] = lambda rows: change(before(rows))

    return damage


def _archive(**changes: Any) -> Damage:
    def damage(made: dict[str, Any], _: Wanted) -> None:
        made["archive"] = replace(made.get("archive") or Archive(), **changes)

    return damage


def _twice(made: dict[str, Any], _: Wanted) -> None:
    files = list(made["files"].items() if isinstance(made["files"], dict) else made["files"])
    made["files"] = [*files, files[0]]


def _other_data(made: dict[str, Any], wanted: Wanted) -> None:
    files = made["files"].items() if isinstance(made["files"], dict) else made["files"]
    made["files"] = [
        (f"Other-9.data/{path.partition('.data/')[2]}" if ".data/" in path else path, data) for path, data in files
    ]


def _other_info(made: dict[str, Any], wanted: Wanted) -> None:
    made["dist_info"] = "Other-9-dev0.dist-info"


def _metadata(made: dict[str, Any], _: Wanted) -> None:
    made["metadata"] = made["metadata"].replace("Name:", f"name: {made['name']}\nName:", 1)


def _wheel(made: dict[str, Any], _: Wanted) -> None:
    text = wheel_text(made["tags"], made["build"])
    made["wheel"] = (
        text.replace("Build:", "X-Build:").upper().replace("WHEEL-VERSION", "Wheel-Version: 1.0\nWheel-Version")
    )


def _escaped(made: dict[str, Any], _: Wanted) -> None:
    made["filename"] = made["filename"].replace("+", "%2B").replace("!", "%21")


def _each(change: Callable[[str, str, str], list[str]]) -> Damage:
    """Every row that is one, changed."""
    return _rows(lambda rows: [change(*row) if len(row) == 3 else row for row in rows])


ODD_ROWS = [[], ["/etc/x", "", ""], ["demo/gone", "md5=x", "ten"], ["demo", "", ""], ["x"]]

DAMAGES: list[Damage] = [
    _rows(lambda rows: rows[1:]),
    _rows(lambda rows: rows[:-1]),
    _rows(lambda rows: [*rows[:1], *ODD_ROWS, *rows]),
    _each(lambda path, digest, size: [path, "md5=x", size]),
    _each(lambda path, digest, size: [path, "", ""]),
    _each(lambda path, digest, size: [path, digest, size and f"9{size}"]),
    _each(lambda path, digest, size: [path, f"{digest}=", size]),
    _archive(prefix=b"#!/bin/sh\n"),
    _archive(prefix=b"x" * 99, prefix_counted=False),
    _archive(trailing=b"\0" * 40),
    _archive(comment=b"hello"),
    _archive(every={"streamed": True, "extra": b"\xfe\xca\x01\x00x"}),
    _twice,
    _other_data,
    _other_info,
    _metadata,
    _wheel,
    _escaped,
]


@settings(max_examples=150)
@given(wheels(clean=True), st.lists(st.sampled_from(DAMAGES), min_size=1, max_size=5, unique=True), st.booleans())
def test_a_wheel_damaged_in_any_ways_that_take_no_guess_is_whole_again(
    wanted: Wanted, damages: list[Damage], hashes: bool
) -> None:
    made = dict(wanted.description)
    for damage in damages:
        damage(made, wanted)
    verify = "hashes" if hashes else "structure"
    with tempfile.TemporaryDirectory() as folder:
        sound = repack(wanted.make(Path(folder) / "sound"), Path(folder) / "plain").path
        wheel = make_wheel(Path(folder) / "damaged", **made)
        before = wheel.read_bytes()
        mended = repack(wheel, Path(folder) / "mended", WheelEdit(repair=True), verify=verify).path
        assert mended.name == sound.name
        assert payload(list(read_right(mended).values())) == payload(read_any(sound))
        assert {finding.code for finding in check_wheel(mended, hashes=True)} <= {"zip-symlink", "zip-reserved-name"}
        assert wheel.read_bytes() == before
        again = repack(mended, Path(folder) / "again", WheelEdit(repair=True), verify=verify)
        assert (again.changes, again.path.read_bytes()) == ((), mended.read_bytes())


@settings(max_examples=60)
@given(
    wheels(), edits(), st.sampled_from([WheelEdit(repair=True), WheelEdit(sync="filename"), WheelEdit(sync="metadata")])
)
def test_a_sound_wheel_comes_out_as_by_the_same_edit_alone(wanted: Wanted, edit: WheelEdit, more: WheelEdit) -> None:
    with tempfile.TemporaryDirectory() as folder:
        wheel = wanted.make(Path(folder) / "in")
        plain = repack(wheel, Path(folder) / "plain", edit)
        made = repack(wheel, Path(folder) / "made", edit._replace(sync=more.sync, repair=more.repair), verify="hashes")
        assert (made.path.name, made.changes) == (plain.path.name, plain.changes)
        assert made.path.read_bytes() == plain.path.read_bytes()
