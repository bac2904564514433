"""A wheel that installers refuse or install wrongly is one that they take, once it is synced or repaired."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from build_tools.wheels import WheelEdit, check_wheel, repack
from tests.acceptance.judges import INSTALLER, JUDGES, PIP, UV, Verdict, import_from, require, run, run_script
from tests.build_tools.wheel_factory import PACKAGE, Archive, Member, make_wheel, metadata_text, wheel_text

HELLO = Member("#!python\nprint('hello')\n", mode=0o755)
SCRIPTED = {**PACKAGE, "demo-1.0.data/scripts/hello": HELLO}


@dataclass(frozen=True, slots=True)
class Mended:
    """A wheel that is not sound and the edit that mends it.

    Attributes:
        refused_by: the judges that do not take it as it is. What no judge minds is not worth less: the
            others install what RECORD or the file name do not tell.
    """

    id: str
    edit: Mapping[str, Any]
    refused_by: frozenset[str]
    wheel: Mapping[str, Any] = field(default_factory=dict)


def _case(id: str, edit: Mapping[str, Any], refused_by: str, **wheel: Any) -> Mended:
    return Mended(id, edit, frozenset(refused_by.split()), {"files": SCRIPTED, **wheel})


RENAMED = {"filename": "demo-1.0+cu130-py3-none-any.whl"}
FILENAME, METADATA, REPAIR = {"sync": "filename"}, {"sync": "metadata"}, {"repair": True}
CASES = [
    _case("renamed, the file name wins", FILENAME, "", **RENAMED),
    _case("renamed, METADATA wins", METADATA, "", **RENAMED),
    _case("another project's name", FILENAME, "pip uv installer", filename="other-1.0-py3-none-any.whl"),
    _case("other tags", FILENAME, "", wheel=wheel_text("cp310-cp310-any")),
    _case("a build tag", FILENAME, "", filename="demo-1.0-1-py3-none-any.whl"),
    _case("no RECORD", REPAIR, "pip uv installer", omit=["RECORD"]),
    _case("a member without a row", REPAIR, "installer", record=lambda rows: rows[1:]),
    _case(
        "rows by md5", REPAIR, "installer", record=lambda rows: [[row[0], row[1] and "md5=x", row[2]] for row in rows]
    ),
    _case("a prefix", REPAIR, "", archive=Archive(prefix=b"#!/bin/sh\n")),
    _case("trailing data", REPAIR, "uv", archive=Archive(trailing=b"\n\n")),
    _case("a member twice", REPAIR, "installer", files=[*SCRIPTED.items(), *PACKAGE.items()]),
    _case("a .data of another version", REPAIR, "", files={**PACKAGE, "demo-0.9.data/scripts/hello": HELLO}),
    _case("two Names", REPAIR, "", metadata=metadata_text().replace("Name: demo", "Name: demo\nName: demo")),
]


@pytest.fixture(scope="module", params=CASES, ids=[case.id for case in CASES])
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Mended, Path, Path]:
    """The case, the wheel as it is, and mended."""
    folder = tmp_path_factory.mktemp("mended")
    case: Mended = request.param
    wheel = make_wheel(folder, **case.wheel)
    return case, wheel, repack(wheel, folder / "out", WheelEdit(**case.edit), verify="hashes").path


def test_check_finds_what_is_wrong_before_and_nothing_after(pair: tuple[Mended, Path, Path]) -> None:
    _, before, after = pair
    assert check_wheel(before)
    assert check_wheel(after, hashes=True) == []


@pytest.mark.parametrize("name", JUDGES)
def test_every_judge_takes_what_was_mended(name: str, pair: tuple[Mended, Path, Path], tmp_path: Path) -> None:
    if name == "auditwheel":
        pytest.skip("it looks at platform wheels alone")
    _, _, after = pair
    verdict = JUDGES[name].ask([after], tmp_path)
    assert verdict.accepted, verdict.said
    if name in ("pip", "uv"):
        assert import_from(tmp_path, "demo").accepted
        ran = run_script(tmp_path, "hello")
        assert ran.said.endswith("\nhello\n"), ran.said


def test_installers_refuse_what_was_not(pair: tuple[Mended, Path, Path], tmp_path: Path) -> None:
    case, before, _ = pair
    refused = set()
    for name, judge in (("pip", PIP), ("uv", UV), ("installer", INSTALLER)):
        (tmp_path / name).mkdir()
        if not judge.ask([before], tmp_path / name).accepted:
            refused.add(name)
    assert refused == case.refused_by


def test_pip_refuses_a_renamed_wheel_from_an_index_and_takes_the_synced_one(tmp_path: Path) -> None:
    wheel = make_wheel(tmp_path / "index", **RENAMED)
    options = ["--isolated", "--no-index", "--no-deps", "--no-compile", "--root-user-action", "ignore"]

    def install(folder: Path) -> Verdict:
        require("pip")
        target = tmp_path / f"from-{folder.name}"
        command = [sys.executable, "-m", "pip", "install", *options, "--find-links", str(folder)]
        return run([*command, "--target", str(target), "demo==1.0+cu130"])

    before = install(wheel.parent)
    assert not before.accepted
    assert "inconsistent version" in before.said
    after = install(repack(wheel, tmp_path / "synced", WheelEdit(sync="filename")).path.parent)
    assert after.accepted, after.said
