"""No damage to a wheel's records makes a traceback, a hang, or a wheel that two readers read differently."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from build_tools.errors import ReleaseError
from build_tools.wheels import check_wheel, repack, unpack
from build_tools.wheels.rules import Severity
from tests.build_tools.command_line import te_wheel
from tests.build_tools.damage import FORMS, damaged, read_by_zipfile, small_wheel
from tests.build_tools.wheel_reader import read_right

# By hand: TE_THOROUGH=1 tries more values of each byte, and many more wheels.
THOROUGH = bool(os.environ.get("TE_THOROUGH"))


def judge(wheel: Path, sound: dict[str, bytes], folder: Path) -> str:
    """Every command looks at ``wheel``; what they say, held against each other and against zipfile."""
    findings = check_wheel(wheel, hashes=True)
    errors = [finding for finding in findings if finding.severity is Severity.ERROR]
    if not errors:
        # Whatever passes is read the same by the reader behind pip: no byte of a file is another.
        assert read_by_zipfile(wheel) == sound
    try:
        output = repack(wheel, folder / "out").path
    except ReleaseError:
        assert errors
    else:
        assert not any(finding.blocks for finding in findings if finding.code not in ("zip-data", "record-digest"))
        if not errors:
            assert {name: read.data for name, read in read_right(output).items()} == read_by_zipfile(output)
    try:
        tree = unpack(wheel, folder / "tree")
    except ReleaseError:
        assert errors
    else:
        files = {str(path.relative_to(tree)): path.read_bytes() for path in tree.rglob("*") if path.is_file()}
        assert files == {name: data for name, data in sound.items() if not name.endswith("/")} or errors
    for left in ("out", "tree"):
        if (folder / left).exists():
            shutil.rmtree(folder / left)
    return "refused" if errors else "taken"


@pytest.mark.parametrize("form", FORMS)
def test_every_damage_to_every_byte_of_the_records_is_found_or_changes_nothing(form: str, tmp_path: Path) -> None:
    wheel = small_wheel(tmp_path / "in", form)
    data, sound = wheel.read_bytes(), read_by_zipfile(wheel)
    verdicts: Counter[str] = Counter()
    # Archives in clean form are what is mostly met; of the others every third damage is tried.
    step = 1 if THOROUGH or form == "clean" else 3
    for what, bytes_now in list(damaged(data, thorough=THOROUGH))[::step]:
        wheel.unlink()  # to cut a file that is there makes some file systems wait for the disk
        wheel.write_bytes(bytes_now)
        try:
            verdicts[judge(wheel, sound, tmp_path)] += 1
        except Exception as error:
            raise AssertionError(what) from error
    assert verdicts["refused"] > 1000 // step
    assert verdicts["taken"] > 50 // step, "times and attributes may have any value"


@pytest.mark.parametrize("form", FORMS)
def test_the_commands_say_so_in_plain_words(form: str, tmp_path: Path) -> None:
    wheel = small_wheel(tmp_path / "in", form)
    data = wheel.read_bytes()
    step = 1 if THOROUGH else 37
    for what, bytes_now in list(damaged(data, thorough=False))[::step]:
        wheel.unlink()
        wheel.write_bytes(bytes_now)
        for command in (["show", wheel], ["check", wheel, "--hashes"], ["repack", wheel, "--dry-run", "--name", "x"]):
            outcome = te_wheel(*command)
            allowed = (0, 1) if command[0] == "check" else (0, 2)
            assert outcome.code in allowed, what
            assert (outcome.code == 2) == bool(outcome.errors), what
            assert "fault of te-wheel" not in outcome.err, what


@settings(max_examples=3000 if THOROUGH else 150)
@given(st.sampled_from(sorted(FORMS)), st.data())
def test_many_damages_at_once_are_found_too(form: str, data: st.DataObject) -> None:
    with tempfile.TemporaryDirectory() as folder:
        wheel = small_wheel(Path(folder) / "in", form)
        sound, whole = read_by_zipfile(wheel), bytearray(wheel.read_bytes())
        for at in data.draw(st.lists(st.integers(0, len(whole) - 1), min_size=1, max_size=6)):
            if at < len(whole):
                match data.draw(st.sampled_from(["change", "remove", "add", "repeat", "cut"])):
                    case "change":
                        whole[at] = data.draw(st.integers(0, 255))
                    case "remove":
                        del whole[at : at + data.draw(st.integers(1, 50))]
                    case "add":
                        whole[at:at] = data.draw(st.binary(min_size=1, max_size=30))
                    case "repeat":
                        whole[at:at] = whole[at : at + data.draw(st.integers(1, 200))]
                    case "cut":
                        del whole[at:]
        wheel.unlink()
        wheel.write_bytes(whole)
        judge(wheel, sound, Path(folder))
