"""A wheel -> a fresh environment: installed, imported, and its version compared.

The environment has two layers: a base in which requirements such as torch are installed once
(:class:`Base`), and for each wheel a new one over it, so that what one wheel brings no other sees.
What could not be tried is *skipped*, with the reason; it is never reported as passed.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import shutil
import sys
import sysconfig
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from packaging.specifiers import SpecifierSet
from packaging.tags import sys_tags

from build_tools.child import Finished, environment, run_child
from build_tools.errors import FileError, ReleaseError, ToolError
from build_tools.report import Report, silent
from build_tools.smoke_result import SmokeResult, Status
from build_tools.version import parse_version
from build_tools.wheels.name import WheelName
from build_tools.wheels.wheel import Wheel

_MISLEADING = ("PYTHON", "PIP_USER", "PIP_TARGET", "PIP_PREFIX")
"""How variables begin that change what Python imports, or where pip installs to."""
_MODULE_ENDINGS = (".py", ".so", ".pyd")
_NOT_FOR_USE = {"test", "tests", "testing", "docs", "doc", "examples", "benchmarks", "setup", "conftest"}
"""Names at the top of a wheel that are there by mistake, as a rule."""


class Base:
    """An environment with ``requires`` in it, over which each wheel gets a layer. A context manager.

    It lives in a temporary folder, which goes when the context is left, by an interrupt too.

    Attributes:
        requires: the requirements.
        missing: why they are not there, or ``""``. Wheels are then installed without dependencies.

    Raises:
        ToolError: no environment can be made.
    """

    def __init__(self, requires: Iterable[str] = (), *, report: Report = silent) -> None:
        self.requires = tuple(requires)
        self.missing = ""
        self._report = report
        self._layers = itertools.count(1)

    def __enter__(self) -> Self:
        self._scratch = tempfile.TemporaryDirectory(prefix="te-wheel-smoke-", ignore_cleanup_errors=True)
        try:
            self.folder = Path(self._scratch.name).resolve()
            for name in ("tmp", "empty"):  # where children keep temporary files, and where they run
                (self.folder / name).mkdir()
            self._home = self._make_environment("base", pip=True)
            self._install_requires()
        except BaseException:
            self._scratch.cleanup()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._scratch.cleanup()

    def _install_requires(self) -> None:
        if not self.requires:
            return
        what = ", ".join(self.requires)
        self._report(f"installing {what}, once for all wheels")
        done = self.pip(self._home, "--no-compile", *self.requires)
        if done.code != 0:
            for line in done.lines:
                self._report(line)
            self.missing = f"{what} could not be installed"

    @contextlib.contextmanager
    def layer(self) -> Iterator[Path]:
        """A new environment without pip that sees what the base has, below what it gets itself."""
        home = self._make_environment(f"layer{next(self._layers)}", pip=False)
        if self.requires:
            sites = dict.fromkeys(_path(self._home, kind) for kind in ("purelib", "platlib"))
            # Bytes in ASCII: a .pth file is read in the encoding of whatever locale there is.
            link = "".join(f"import os, site; site.addsitedir(os.fsdecode({os.fsencode(site)!r}))\n" for site in sites)
            (_path(home, "purelib") / "te-wheel-base.pth").write_text(link, encoding="ascii")
        try:
            yield home
        finally:
            shutil.rmtree(home, ignore_errors=True)

    def _make_environment(self, name: str, *, pip: bool) -> Path:
        home = self.folder / name
        command: list[str | Path] = [sys.executable, "-I", "-m", "venv", home]
        done = self.run(command if pip else [*command, "--without-pip"])
        if done.code != 0:
            raise ToolError(
                f"no virtual environment can be made: {_last(done.lines)}",
                hint=f"{sys.executable} needs the modules venv and ensurepip; on Debian: apt install python3-venv",
            )
        return home

    def pip(self, home: Path, *arguments: str | Path) -> Finished:
        """Run ``pip install`` of the base for the environment ``home``."""
        command: list[str | Path] = [_python(self._home), "-I", "-m", "pip", "--python", _python(home), "install"]
        options = ("--disable-pip-version-check", "--no-input", "--progress-bar=off")
        return self.run([*command, *options, *arguments])

    def run(self, command: Sequence[str | Path]) -> Finished:
        """Run a child in an empty folder, without the variables that change what Python imports."""
        env = environment(self.folder / "tmp")
        env = {name: value for name, value in env.items() if not name.startswith(_MISLEADING)}
        return run_child(command, folder=self.folder / "empty", env=env)


def smoke_wheel(
    wheel: str | os.PathLike[str],
    *,
    imports: Iterable[str] = (),
    run: str | None = None,
    requires: Iterable[str] = (),
    base: Base | None = None,
    report: Report = silent,
) -> SmokeResult:
    """Install a wheel in a fresh environment, import from it, and compare versions.

    Args:
        wheel: the wheel.
        imports: the modules to import; none means the packages and modules at the top of the wheel.
        run: Python that is run after the imports, with the imported packages at hand; an expression
            that gives False fails.
        requires: requirements to install first; not looked at where ``base`` is given.
        base: the environment to start from, shared by several wheels.
        report: gets each line of talk, and the whole output of a step that fails.

    Raises:
        ToolError: it cannot be tried: no environment can be made, or the wheel is not for this
            interpreter and system.
        FileError, WheelNameError: there is no such file, or its name is no wheel's.
    """
    path = Path(wheel).absolute()
    try:
        path.stat()
    except OSError as error:
        raise FileError.of("read", wheel, error) from error
    name = WheelName.parse(path.name)
    modules, python = _read(path)
    _check_suitable(name, python)
    trial = _Trial(path, name, modules, tuple(imports), run, report)
    if base is not None:
        return trial.take(base)
    with Base(requires, report=report) as own:
        return trial.take(own)


@dataclass(frozen=True, slots=True)
class _Trial:
    """One wheel and what is asked of it."""

    path: Path
    name: WheelName
    modules: frozenset[str]
    imports: tuple[str, ...]
    run: str | None
    report: Report

    def take(self, base: Base) -> SmokeResult:
        with base.layer() as home:
            return self._take(base, home)

    def _take(self, base: Base, home: Path) -> SmokeResult:
        self.report(f"installing {self.path.name} in a fresh environment")
        done = base.pip(home, *(["--no-deps"] if base.missing else []), self.path)
        if done.code != 0:
            why = self._plain(_last(done.lines, "ERROR: "), base)
            self._tell(done)
            return SmokeResult(self.path.name, Status.failed(why), *(Status.skipped("not installed"),) * 2)
        installed = Status.passed("without dependencies" if base.missing else "")
        imports = self.imports or tuple(sorted(_importable(self.modules)))
        asked = self._asked(base.missing, imports)
        result = self._probe(base, home, () if asked else imports, None if asked else self.run)
        if isinstance(result, Status):
            return SmokeResult(self.path.name, installed, result, Status.skipped("the interpreter died"))
        if result["installed"] is None:
            why = f"{self.name.name} is among the requirements already, so pip installed nothing"
            return SmokeResult(self.path.name, Status.failed(why), *(Status.skipped("not installed"),) * 2)
        faults = [self._plain(fault, base) for fault in result["faults"]]
        imported = asked or (Status.failed("; ".join(faults)) if faults else Status.passed())
        return SmokeResult(self.path.name, installed, imported, self._compare(result))

    def _asked(self, missing: str, imports: Sequence[str]) -> Status | None:
        """Why nothing is imported, or ``None`` where something is."""
        if missing:
            return Status.skipped(f"{missing}, so the wheel was installed without dependencies")
        if not imports and self.run is None:
            return Status.skipped("the wheel holds no module at its top, and none was asked for")
        return None

    def _probe(self, base: Base, home: Path, imports: Sequence[str], run: str | None) -> dict[str, Any] | Status:
        parents = [".".join(module.split(".")[:n]) for module in imports for n in range(1, module.count(".") + 2)]
        held = [module for module in dict.fromkeys(parents) if module in self.modules]
        task, answer = home / "task.json", home / "answer.json"
        facts = {"distribution": self.name.project, "imports": imports, "held": held, "run": run}
        task.write_text(json.dumps(facts), encoding="utf-8")
        if imports or run:
            self.report(f"importing {', '.join(imports)}" + (f", then running {run!r}" if run else ""))
        done = base.run([_python(home), "-I", Path(__file__).with_name("smoke_probe.py"), task, answer])
        try:
            result = _checked(json.loads(answer.read_text(encoding="utf-8")))
        except (OSError, ValueError, RecursionError):
            self._tell(done)
            how = f"by signal {-done.code}" if done.code < 0 else f"with exit code {done.code}"
            return Status.failed(f"the interpreter ended {how}: {self._plain(_last(done.lines), base)}")
        if result["faults"]:
            self._tell(done)
        return result

    def _compare(self, result: dict[str, Any]) -> Status:
        expected = self.name.version
        faults: list[str] = []
        said = {"the installed metadata": result["installed"]}
        said |= {f"{module}.__version__": text for module, text in result["versions"].items()}
        for where, text in said.items():
            allowed = [str(expected)]
            if where.endswith("__version__"):
                allowed.append(expected.public)  # a rewrite that adds a label leaves the code as it is
            if _normal(text) not in allowed:
                faults.append(f"{where} is {text!r}, expected {' or '.join(map(repr, dict.fromkeys(allowed)))}")
        return Status.failed("; ".join(faults)) if faults else Status.passed()

    def _tell(self, done: Finished) -> None:
        for line in done.lines:
            self.report(line)

    def _plain(self, text: str, base: Base) -> str:
        """A reason without the folders that only this run had."""
        return text.replace(f"{self.path.parent}{os.sep}", "").replace(f"{base.folder}{os.sep}", "")


def _read(path: Path) -> tuple[frozenset[str], str]:
    """The modules that a wheel holds, and its Requires-Python.

    What cannot be read holds none: the installer then says what is wrong with it.
    """
    with Wheel.open(path) as wheel:
        names = [member.name for member in wheel.archive.members if not member.is_dir]
        python = (wheel.metadata.get("Requires-Python") if wheel.metadata else None) or ""
    modules: set[str] = set()
    for name in names:
        parts = name.split("/")
        if parts[0].endswith(".data"):
            if len(parts) < 3 or parts[1] not in ("purelib", "platlib"):
                continue
            parts = parts[2:]
        *folders, file = parts
        if not file.endswith(_MODULE_ENDINGS):
            continue
        stem = file.split(".", 1)[0]
        dotted = [*folders] if stem == "__init__" else [*folders, stem]
        if dotted and all(part.isidentifier() for part in dotted):
            modules.add(".".join(dotted))
    return frozenset(modules), python


def _importable(modules: Iterable[str]) -> set[str]:
    """The top-level modules to import where nobody says which: the public ones, else the private."""
    tops = {module for module in modules if "." not in module} - _NOT_FOR_USE
    return {module for module in tops if not module.startswith("_")} or tops


def _check_suitable(name: WheelName, python: str) -> None:
    here = f"Python {sys.version_info.major}.{sys.version_info.minor} on {sysconfig.get_platform()}"
    if not {str(tag) for tag in sys_tags()} & set(name.tags):
        raise ToolError(
            f"{name.filename} is not for {here}, so it cannot be tried: its tags are {', '.join(name.tags)}",
            hint="run te-wheel with an interpreter and on a system that the wheel is for",
        )
    try:
        suits = SpecifierSet(python).contains(".".join(map(str, sys.version_info[:3])), prereleases=True)
    except ValueError:  # InvalidSpecifier is one; another comes of numbers with thousands of digits
        return  # the installer says so
    if not suits:
        raise ToolError(
            f"{name.filename} is not for {here}, so it cannot be tried: it requires Python {python}",
            hint="run te-wheel with an interpreter that the wheel is for",
        )


def _checked(answer: Any) -> dict[str, Any]:
    """The answer of the probe, which code of the wheel may have written.

    Raises:
        ValueError: it is none.
    """
    if isinstance(answer, dict):
        installed, versions, faults = (answer.get(key) for key in ("installed", "versions", "faults"))
        if isinstance(versions, dict) and isinstance(faults, list):
            texts = [*versions.values(), *faults, installed or ""]
            if all(isinstance(text, str) for text in texts):
                return {"installed": installed, "versions": versions, "faults": faults}
    raise ValueError("no answer of the probe")


def _normal(text: str) -> str | None:
    try:
        return str(parse_version(text))
    except ReleaseError:
        return None


def _last(lines: Sequence[str], start: str = "") -> str:
    """The last line that says something, of those that begin with ``start`` where there are any."""
    told = [line.strip() for line in lines if line.strip()]
    marked = [line.removeprefix(start) for line in told if line.startswith(start)]
    return (marked or told or ["it printed nothing"])[-1]


def _path(home: Path, kind: str) -> Path:
    return Path(sysconfig.get_path(kind, "venv", {"base": str(home), "platbase": str(home)}))


def _python(home: Path) -> Path:
    return _path(home, "scripts") / ("python.exe" if os.name == "nt" else "python")
