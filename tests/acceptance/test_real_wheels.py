"""Published wheels: checked, renamed there and back, and installed by pip and uv under another name."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from dataclasses import dataclass
from email import message_from_bytes
from pathlib import Path

import pytest

from build_tools.wheels import Severity, WheelEdit, WheelName, check_wheel, repack, unpack
from tests.acceptance.judges import PIP, UV, import_from, run_script
from tests.build_tools.wheel_reader import read_any

pytestmark = pytest.mark.network

CACHE = Path(__file__).parents[2] / ".cache" / "wheels" / f"{sys.implementation.cache_tag}"


@dataclass(frozen=True, slots=True)
class Real:
    """A published wheel.

    Attributes:
        project, version: what to ask the registry for.
        why_not: why a rename there and back does not give the first bytes: what was not in normal form.
        imports, scripts: what an installed one must do.
        finds_itself: its code looks up its own distribution by name, so it runs under no other.
    """

    project: str
    version: str
    why_not: frozenset[str] = frozenset()
    imports: tuple[str, ...] = ()
    scripts: tuple[str, ...] = ()
    finds_itself: bool = False


RUFF = Real(
    "ruff",
    "0.14.0",
    frozenset({"file name", "WHEEL", "order", "compressed by another program"}),
    imports=("ruff",),
    scripts=("ruff",),
)
CMAKE = Real("cmake", "4.1.2", frozenset({"order"}), imports=("cmake",), scripts=("cmake",), finds_itself=True)
NUMPY = Real("numpy", "2.4.6", frozenset({"order"}), imports=("numpy", "numpy.linalg"))
TE = Real("transformer_engine", "2.20.2")
TE_CU12 = Real("transformer_engine_cu12", "2.20.2")
SMALL = [RUFF, CMAKE, NUMPY, TE]

every_wheel = pytest.mark.parametrize(
    "real",
    [
        *(pytest.param(real, id=real.project) for real in SMALL),
        pytest.param(TE_CU12, id=TE_CU12.project, marks=pytest.mark.slow),
    ],
)
every_small_wheel = pytest.mark.parametrize("real", [pytest.param(real, id=real.project) for real in SMALL])


def download(real: Real) -> Path:
    """The wheel for this interpreter, from the cache of the checkout or else from the registry."""
    for wheel in CACHE.glob(f"{real.project}-{real.version}-*.whl"):
        return wheel
    CACHE.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=CACHE) as folder:
        options = ["--no-deps", "--only-binary=:all:", "--retries", "1", "--timeout", "20", "--quiet"]
        command = [sys.executable, "-m", "pip", "download", *options, f"{real.project}=={real.version}", "-d", folder]
        done = subprocess.run(command, text=True, capture_output=True)
        found = list(Path(folder).glob("*.whl"))
        if done.returncode or not found:
            said = [line for line in done.stderr.splitlines() if line.startswith("ERROR")]
            pytest.skip(f"no registry gave {real.project} {real.version}: {said[-1] if said else done.stderr[-200:]}")
        target = CACHE / found[0].name
        os.replace(found[0], target)
    return target


def metadata_name(wheel: Path) -> str:
    with zipfile.ZipFile(wheel) as archive:
        (member,) = (n for n in archive.namelist() if n.endswith(".dist-info/METADATA") and n.count("/") == 1)
        return str(message_from_bytes(archive.read(member))["Name"])


def sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def explain(first: Path, back: Path) -> frozenset[str]:
    """Why two wheels of the same content have other bytes; a difference in content fails the test."""
    if first.name == back.name and sha256(first) == sha256(back):
        return frozenset()
    old, new = ({read.name: read for read in read_any(wheel)} for wheel in (first, back))
    assert set(old) == set(new)
    why = {"file name"} if first.name != back.name else set()
    if list(old) != list(new):
        why.add("order")
    for name, before in old.items():
        after = new[name]
        assert (after.method, after.mode, after.date) == (before.method, before.mode, before.date), name
        if after.packed == before.packed:
            continue
        file = name.rpartition("/")[2]
        assert ".dist-info/" in name, name
        assert file in ("METADATA", "WHEEL", "RECORD"), name
        if after.data == before.data:
            why.add("compressed by another program")
        else:
            assert file in ("WHEEL", "RECORD"), name
            why.add("WHEEL")
    return frozenset(why)


@every_wheel
def test_a_published_wheel_has_no_error(real: Real) -> None:
    wheel = download(real)
    findings = check_wheel(wheel, hashes=real is not TE_CU12)
    assert [str(finding) for finding in findings if finding.severity is Severity.ERROR] == []


@every_wheel
def test_a_rename_there_and_back_gives_the_first_bytes_or_it_is_known_why_not(real: Real, tmp_path: Path) -> None:
    wheel = download(real)
    there = repack(wheel, tmp_path / "there", WheelEdit(name="Some.Other", local="cu1")).path
    name = WheelName.parse(there.name)
    assert (name.stem, name.tags) == (f"some_other-{real.version}+cu1", WheelName.parse(wheel.name).tags)
    assert [str(f) for f in check_wheel(there) if f.severity is Severity.ERROR] == []
    back = repack(there, tmp_path / "back", WheelEdit(name=metadata_name(wheel), local="")).path
    assert explain(wheel, back) == real.why_not
    shutil.rmtree(tmp_path)


@every_small_wheel
@pytest.mark.parametrize("installer", ["pip", "uv"])
def test_a_rewritten_wheel_installs_imports_and_runs(real: Real, installer: str, tmp_path: Path) -> None:
    wheel = download(real)
    name = real.project if real.finds_itself else f"{real.project}-x"
    renamed = repack(wheel, tmp_path / "out", WheelEdit(name=name, local="cu1")).path
    target = tmp_path / "target"
    verdict = {"pip": PIP, "uv": UV}[installer].ask([renamed], target)
    assert verdict.accepted, verdict.said
    assert (target / f"{name.replace('-', '_')}-{real.version}+cu1.dist-info" / "METADATA").is_file()
    if real.imports:
        imported = import_from(target, *real.imports)
        assert imported.accepted, imported.said
    for script in real.scripts:
        ran = run_script(target, script, "--version")
        assert ran.accepted, ran.said
        assert real.version in ran.said
    assert not list(target.glob("*.data"))
    shutil.rmtree(tmp_path)


def test_the_scripts_of_ruff_are_renamed_with_the_data_folder(tmp_path: Path) -> None:
    renamed = repack(download(RUFF), tmp_path, WheelEdit(name="ruff-x", version="0.14.0+cu1")).path
    (script,) = (read for read in read_any(renamed) if ".data/" in read.name)
    assert script.name == "ruff_x-0.14.0+cu1.data/scripts/ruff"
    assert script.mode & 0o111


@every_small_wheel
def test_a_published_wheel_unpacks(real: Real, tmp_path: Path) -> None:
    wheel = download(real)
    folder = unpack(wheel, tmp_path)
    files = {str(path.relative_to(folder)) for path in folder.rglob("*") if not path.is_dir()}
    assert files == {read.name for read in read_any(wheel) if not read.name.endswith("/")}
    shutil.rmtree(tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("installer", ["pip", "uv"])
def test_transformer_engine_for_cuda_12_becomes_one_for_cuda_13(installer: str, tmp_path: Path) -> None:
    wheel = download(TE_CU12)
    before = sha256(wheel)
    renamed = repack(wheel, tmp_path / "out", WheelEdit(name="transformer_engine_cu13")).path
    assert renamed.name == wheel.name.replace("cu12", "cu13")
    assert sha256(wheel) == before
    target = tmp_path / "target"
    verdict = {"pip": PIP, "uv": UV}[installer].ask([renamed], target)
    assert verdict.accepted, verdict.said
    (info,) = target.glob("*.dist-info")
    assert info.name == f"transformer_engine_cu13-{TE_CU12.version}.dist-info"
    assert metadata_name(renamed) == "transformer_engine_cu13"
    with zipfile.ZipFile(wheel) as archive:
        for member in archive.infolist():
            if ".dist-info/" not in member.filename:
                assert (target / member.filename).stat().st_size == member.file_size, member.filename
    shutil.rmtree(tmp_path)
