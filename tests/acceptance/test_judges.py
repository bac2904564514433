"""Every installer and every checker takes every output, and what they install runs."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from build_tools.wheels import pack, unpack
from tests.acceptance.judges import AUDITWHEEL, JUDGES, PIP, UV, Verdict, import_from, run_script
from tests.build_tools.rewrite_cases import BY_ID, CASES, native_library

PACKED = ["R1", "R9", "R13", "R18"]
"""Cases that are judged once more after unpack and pack."""
MADE = {**BY_ID, **{f"{id}, packed": BY_ID[id] for id in PACKED}}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Path]:
    """The output of every case, made once."""
    outputs: dict[str, Path] = {}
    for number, case in enumerate(CASES):
        folder = tmp_path_factory.mktemp(f"case{number}")
        outcome = case.rewrite(case.make(folder / "in"), folder / "out")
        assert outcome.code == 0, outcome.err
        outputs[case.id] = Path(outcome.out.removesuffix("\n"))
    for id in PACKED:
        folder = tmp_path_factory.mktemp("packed")
        outputs[f"{id}, packed"] = pack(unpack(outputs[id], folder / "tree"), folder / "out").path
    return outputs


@pytest.fixture(scope="module")
def unanimous(made: Mapping[str, Path], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Verdict]:
    """Judges that look at many wheels in one run, asked about all that they need not be spared."""
    verdicts = {}
    for name, judge in JUDGES.items():
        if judge.takes_many:
            wheels = [made[id] for id, case in MADE.items() if name not in case.spared]
            try:
                verdicts[name] = judge.ask(wheels, tmp_path_factory.mktemp("many"))
            except pytest.skip.Exception:
                continue
    return verdicts


@pytest.mark.parametrize("name", ["installer", "wheel unpack", "twine", "check-wheel-contents", "zipfile"])
@pytest.mark.parametrize("id", MADE)
def test_a_judge_takes_the_output(
    id: str, name: str, made: Mapping[str, Path], unanimous: dict[str, Verdict], tmp_path: Path
) -> None:
    judge = JUDGES[name]
    if name in MADE[id].spared:
        plain = judge.ask([MADE[id].make(tmp_path / "plain")], tmp_path / "judge")
        assert not plain.accepted, f"{name} takes the plain form, so it must take the output too"
        return
    if name in unanimous and unanimous[name].accepted:
        return
    verdict = judge.ask([made[id]], tmp_path)
    assert verdict.accepted, verdict.said


@pytest.mark.parametrize("id", [id for id, case in MADE.items() if "manylinux" in case.output])
def test_auditwheel_takes_a_platform_wheel(id: str, made: Mapping[str, Path], tmp_path: Path) -> None:
    if not native_library():
        pytest.skip("this Python has no extension module to put into a wheel")
    verdict = AUDITWHEEL.ask([made[id]], tmp_path)
    assert verdict.accepted, verdict.said


@pytest.mark.parametrize("installer", ["pip", "uv"])
@pytest.mark.parametrize("id", MADE)
def test_what_is_installed_imports_and_its_scripts_run(
    id: str, installer: str, made: Mapping[str, Path], tmp_path: Path
) -> None:
    verdict = {"pip": PIP, "uv": UV}[installer].ask([made[id]], tmp_path)
    assert verdict.accepted, verdict.said
    case = MADE[id]
    imported = import_from(tmp_path, *case.imports)
    assert imported.accepted, imported.said
    for script in case.scripts:
        ran = run_script(tmp_path, script)
        assert ran.accepted, ran.said
        assert ran.said.endswith("\nhello\n")
    left = [path.name for path in tmp_path.iterdir() if path.name.endswith(".data")]
    assert left == [], f"{installer} did not know the .data folder as the wheel's own"
