"""A project folder -> its wheel and sdist, built by ``python -m build`` and held against the version file.

The sdist is built first and settled (times, owners, modes), then the wheel is built from what it
unpacks to: so the sdist that is given out is known to build, and builds that very wheel again. The
build gets SOURCE_DATE_EPOCH (see :func:`source_time`) and a umask of its own, so that the same
sources give the same bytes. Both appear in the output folder only when they are whole.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import sys
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from packaging.version import Version

from build_tools.child import environment, run_child
from build_tools.errors import BuildError, FileError, ReleaseError, ToolError
from build_tools.plan import check_project_folder, find_version_file
from build_tools.report import Report, silent
from build_tools.sdist import ENDING, Sdist, read_sdist, settle_sdist, unpack_sdist
from build_tools.source_time import source_time
from build_tools.version import parse_version, read_version
from build_tools.wheels.edit import WheelEdit
from build_tools.wheels.name import WheelName, normalize_name
from build_tools.wheels.output import OutputFile
from build_tools.wheels.repacked import repack
from build_tools.wheels.wheel import Wheel

_NOISE = ("ERROR Backend subprocess exited", "TIP ", "NOTE ", "* ", "Command '[")
"""How the last lines of a failed build begin that say only that it failed."""
_CLAIMED = {"dist-info-name", "data-name", "metadata-name", "metadata-version-field"}
"""Findings that the claims of :func:`_check_agreement` name too, with the version file beside them."""
_UNREACHABLE = "the build makes an environment of its own and fills it from a package registry; is one reachable?"


@dataclass(frozen=True, slots=True)
class Built:
    """What a build made.

    Attributes:
        wheel, sdist: the paths.
        version: the wheel's version; that of the sdist is its public part where a local label was asked for.
    """

    wheel: Path
    sdist: Path
    version: Version


@dataclass(frozen=True, slots=True)
class _Claim:
    """A place that bears the name and version of the project, as it spells them."""

    where: str
    name: str
    version: str


class BuildMemory(Protocol):
    """What an earlier run built."""

    def find_wheel(self, sdist: Path) -> Path | None:
        """The wheel that was built from the bytes of ``sdist``, or ``None``."""

    def keep_wheel(self, sdist: Path, wheel: Path) -> None:
        """Know ``wheel`` as what was built from ``sdist``."""


def build_project(
    src: str | os.PathLike[str] = ".",
    out_dir: str | os.PathLike[str] = "dist",
    *,
    local: str | None = None,
    verbose: bool = False,
    report: Report = silent,
    memory: BuildMemory | None = None,
) -> Built:
    """Build the wheel and the sdist of a project; what an earlier build left under their names is replaced.

    Args:
        src: the project's folder.
        out_dir: where both go; made if missing.
        local: a local version label for the wheel (``"cu128"``), or ``""`` to drop the one it has.
            The sdist keeps the version of the sources.
        verbose: report the build's output as it comes, not only when it fails.
        report: gets each line of talk.
        memory: gives the wheel that an earlier run built from the same sdist, and keeps the one that is built.

    Raises:
        BuildError: the backend failed (its output is reported), or a file name, folder or header bears
            another version than the version file; each is named.
        ToolError: ``build`` is not installed.
        FileError: ``src`` is no project, or ``out_dir`` cannot be written.
        VersionError, PlanError: the version file or ``[tool.te-wheel]`` is invalid.
        EditError: ``local`` is no local version label, or SOURCE_DATE_EPOCH no number of seconds.

    Example: with ``2.21.0-dev0`` in VERSION.txt, ``build_project(local="cu128").wheel.name`` is
    ``te_pkg-2.21.0.dev0+cu128-py3-none-any.whl``.
    """
    source, folder = _check_folders(Path(src), Path(out_dir))
    edit = WheelEdit(local=local) if local is not None else None
    version_file = find_version_file(source)
    expected = read_version(version_file) if version_file is not None else None
    epoch = source_time(source)
    _require_build()
    with tempfile.TemporaryDirectory(prefix="te-wheel-build-") as scratch:
        run = _Run(Path(scratch).resolve(), epoch, version_file, verbose, report)
        sdist = run.build("sdist", source, str(source), ENDING)
        settle_sdist(sdist, epoch)
        wheel = memory.find_wheel(sdist) if memory is not None else None
        if wheel is not None:
            report(f"an earlier run built {wheel.name} from this very sdist")
        else:
            wheel = run.build("wheel", unpack_sdist(sdist, run.folder("unpacked")), sdist.name, ".whl")
            if memory is not None:
                memory.keep_wheel(sdist, wheel)
        _check_agreement(wheel, sdist, expected, version_file)
        if edit is None:
            final = place(wheel, folder)
        else:
            final = repack(wheel, folder, edit, force=True).path
            report(f"the wheel has the local label, the sdist keeps the version of the sources: {sdist.name}")
        return Built(final, place(sdist, folder), WheelName.parse(final.name).version)


def place(file: Path, folder: Path, *, replace: bool = True) -> Path:
    """Copy a finished file into ``folder``, where it appears only when it is whole.

    Raises:
        OutputExistsError: a file with other bytes has its name, and ``replace`` is not set.
        FileError: ``folder`` cannot be written.
    """
    target = folder / file.name
    with OutputFile(target) as output, file.open("rb") as stream:
        with output.stream() as sink:
            shutil.copyfileobj(stream, sink, 1 << 20)
        output.publish(replace=replace, fsync=False)
    return target


def _check_folders(source: Path, folder: Path) -> tuple[Path, Path]:
    faults: list[str] = []
    try:
        check_project_folder(source)
    except FileError as error:
        faults += error.faults
    else:
        if not any((source / file).is_file() for file in ("pyproject.toml", "setup.py")):
            faults.append(f"{str(source)!r} holds neither pyproject.toml nor setup.py, so there is nothing to build")
    if folder.exists() and not folder.is_dir():
        faults.append(f"{str(folder)!r} is no folder, expected the output folder")
    if faults:
        raise FileError(faults)
    return source.absolute(), folder


def _require_build() -> None:
    spec = importlib.util.find_spec("build")
    if spec is None or spec.origin is None:  # a folder ``build/`` in the way is found too, without origin
        raise ToolError("the package 'build' is not installed", hint=f"{sys.executable} -m pip install build")


@dataclass(frozen=True, slots=True)
class _Run:
    """The runs of ``python -m build`` for one project, all in one scratch folder."""

    scratch: Path
    epoch: int
    version_file: Path | None
    verbose: bool
    report: Report

    def folder(self, name: str) -> Path:
        """The folder ``name`` in the scratch folder."""
        made = self.scratch / name
        made.mkdir(exist_ok=True)
        return made

    def build(self, what: str, source: Path, name: str, ending: str) -> Path:
        """Build ``what`` ("wheel" or "sdist") of ``source``, which messages call ``name``; the one file that was made.

        Raises:
            BuildError: the backend failed, or made another number of files.
        """
        made = self.folder(what)
        # -P: a folder build/ in the current directory must not stand for the package.
        command: list[str | Path] = [sys.executable, "-P", "-m", "build", f"--{what}", "--outdir", made, source]
        # Unbuffered: the line that tells why it failed is the last one then.
        plain = {"PYTHONUTF8": "1", "PYTHONUNBUFFERED": "1", "NO_COLOR": "1"}
        env = environment(self.folder("tmp"), SOURCE_DATE_EPOCH=str(self.epoch), **plain)
        done = run_child(command, folder=self.scratch, env=env, report=self.report if self.verbose else None)
        lines = [line for line in done.lines if line.strip()]
        if done.code != 0:
            if not self.verbose:
                for line in lines:
                    self.report(line)
            telling = [line.strip() for line in lines if not line.strip().startswith(_NOISE)]
            why = (telling or ["it printed nothing"])[-1]
            raise BuildError(
                f"building the {what} of {name!r} failed with exit code {done.code}: {why}",
                hint=self._hint(lines),
            )
        files = sorted(path for path in made.iterdir() if path.is_file())
        if len(files) != 1 or not files[0].name.endswith(ending):
            found = ", ".join(path.name for path in files) or "nothing"
            raise BuildError(f"the build made {found}, expected one {what} (*{ending})")
        return files[0]

    def _hint(self, lines: Iterable[str]) -> str | None:
        if any("Could not find a version that satisfies" in line for line in lines):
            return _UNREACHABLE
        if self.version_file is None:
            return None
        raw = self.version_file.read_bytes()
        text = raw.decode("utf-8-sig").strip()
        if raw.strip(b"\r\n") == text.encode():
            return None
        return (
            f"{self.version_file.name} holds a BOM or blanks around the version, which some backends refuse; "
            f"write it as {text!r} and nothing else"
        )


def _check_agreement(wheel: Path, sdist: Path, expected: Version | None, version_file: Path | None) -> None:
    """Hold each path and header of both files against the version, and against one name.

    Raises:
        BuildError: with each one that disagrees.
    """
    with Wheel.open(wheel) as opened:
        findings = [finding for finding in opened.findings if finding.blocks and finding.code not in _CLAIMED]
        name, claims = opened.name, list(_wheel_claims(opened))
    faults = [f"{wheel.name}: {finding}" for finding in findings]
    if name is None:
        raise BuildError(faults)
    version = name.version if expected is None else expected
    source = f"of {wheel.name}" if version_file is None else f"of {version_file.name}"
    for claim in claims + _sdist_claims(read_sdist(sdist)):
        try:
            found_name, found = normalize_name(claim.name), parse_version(claim.version)
        except ReleaseError as error:
            faults += [f"{claim.where}: {fault}, expected {str(version)!r} {source}" for fault in error.faults]
            continue
        if str(found) != str(version):  # 1.0 and 1.0.0 are equal versions, but make different paths
            faults.append(f"{claim.where}: version {claim.version!r} disagrees with {str(version)!r} {source}")
        if found_name != name.name:
            faults.append(f"{claim.where}: name {claim.name!r} disagrees with {name.project!r} of {wheel.name}")
    if faults:
        raise BuildError(faults)


def _wheel_claims(wheel: Wheel) -> Iterator[_Claim]:
    file = wheel.path.name
    if wheel.name is not None:
        yield _Claim(file, wheel.name.project, str(wheel.name.version))
    for folder in [*([wheel.dist_info] if wheel.dist_info else []), *wheel.data]:
        yield _folder_claim(f"{folder}/ in {file}", folder.rpartition(".")[0])
    if wheel.metadata is not None:
        name, version = (wheel.metadata.get(field) or "" for field in ("Name", "Version"))
        yield _Claim(f"METADATA in {file}", name.strip(), version.strip())


def _sdist_claims(sdist: Sdist) -> list[_Claim]:
    file = sdist.path.name
    return [
        _folder_claim(file, sdist.stem),
        _folder_claim(f"{sdist.folder}/ in {file}", sdist.folder),
        _Claim(f"PKG-INFO in {file}", sdist.name, sdist.version),
    ]


def _folder_claim(where: str, text: str) -> _Claim:
    """What ``{name}-{version}`` says; a version that holds a dash is found invalid, as it must be."""
    name, _, version = text.rpartition("-")
    return _Claim(where, name, version)
