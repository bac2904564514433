r"""The release plan of a project: ``[tool.te-wheel]`` in its pyproject.toml.

::

    [tool.te-wheel]
    version-file = "VERSION.txt"        # the one place a version is typed; VERSION.txt where it is left out

    [tool.te-wheel.smoke]               # each wheel is installed in a fresh environment and tried
    requires = ["torch==2.13.0"]        # installed once, in a layer below all wheels
    import = ["demo.core"]              # left out: what the wheel holds at its top
    run = "assert demo.core.add(1, 2) == 3"   # Python, run after the imports; an expression must not be False

    [tool.te-wheel.variants.cu12]       # one rewritten wheel; any of the options of ``te-wheel repack``
    name = "demo-cu12"
    platform-tag = "manylinux_2_28_x86_64"
    add = ["Requires-Dist: nvidia-cuda-runtime-cu12>=12.8"]

    [tool.te-wheel.variants.cpu]
    local = "cpu"

    [tool.te-wheel.variants.meta]       # a metapackage: no files, and exact requirements on other variants
    name = "demo-meta"
    extras = ["cu12"]                   # pip install "demo-meta[cu12]" takes demo-cu12 of the same release
    requires = ["cpu"]                  # taken whatever the extra

A variant may hold the strings ``name``, ``version``, ``local``, ``build``, ``python-tag``, ``abi-tag``
and ``platform-tag``, and the lists of strings ``set``, ``add`` (``"Field: value"``), ``remove`` (field
names), ``add-file`` (``"SRC=DEST"``, SRC relative to the project) and ``remove-file`` (globs). They mean
what the options of those names mean. Its id names it in ``--only``, in tables and in release.json.
A metapackage names other variants in ``extras`` or ``requires`` or both, and may hold ``name``, ``set``,
``add`` and ``remove`` besides. One of the project's own name takes the place of the built wheel.
"""

from __future__ import annotations

import difflib
import os
import re
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from packaging.version import Version

from build_tools.errors import FileError, PlanError, ReleaseError
from build_tools.smoke_plan import SmokePlan
from build_tools.variant import Variant
from build_tools.wheels.edit import WheelEdit
from build_tools.wheels.name import normal_form

TABLE = "tool.te-wheel"
DEFAULT_VERSION_FILE = "VERSION.txt"
MINIMAL = '[tool.te-wheel.variants.cpu]\nlocal = "cpu"'
"""The smallest plan: one variant."""
_EXAMPLE = " and below it ".join(MINIMAL.splitlines())

OWN_NAME_HINT = "give it a name, version, local label, build or tag of its own"
"""What helps a variant that would overwrite another file of the release."""

_STRINGS = ("name", "version", "local", "build", "python-tag", "abi-tag", "platform-tag")
_LISTS = ("set", "add", "remove", "add-file", "sbom-add", "remove-file")
_PARTS = ("extras", "requires")
_OF_METAPACKAGES = ("name", "set", "add", "remove", *_PARTS)
_ID = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?\Z", re.ASCII)


@dataclass(frozen=True, slots=True)
class Plan:
    """A valid plan.

    Attributes:
        version_file: the file that holds the version, or ``None`` where the project has none.
        smoke: how each wheel is tried.
        variants: the wheels to make, in the order of the file; at least one.
        name: what ``[project]`` calls the project, or ``None`` where it does not say.
    """

    version_file: Path | None
    smoke: SmokePlan
    variants: tuple[Variant, ...]
    name: str | None = None


def read_plan(project: str | os.PathLike[str]) -> Plan:
    """Read and validate the plan of a project.

    Args:
        project: the folder that holds pyproject.toml.

    Raises:
        PlanError: there is no plan, or it is invalid: every fault is named.
        FileError: there is no such folder, or pyproject.toml cannot be read.
    """
    folder = Path(project)
    check_project_folder(folder)
    document = _read_toml(folder)
    table = _own_table(document)
    if table is None:
        raise PlanError(
            f"{str(folder / 'pyproject.toml')!r} holds no [{TABLE}], the plan of the release",
            hint=f"add one, such as {_EXAMPLE}",
        )
    if not isinstance(table, dict):
        raise PlanError(f"pyproject.toml: [{TABLE}] is {table!r}, expected a table")
    reader = _Reader(folder)
    reader.check_keys(table, TABLE, ("version-file", "variants", "smoke"))
    version_file = reader.version_file(table)
    smoke = reader.smoke(table)
    variants = reader.variants(table, _project_name(document))
    if reader.faults:
        raise PlanError([f"pyproject.toml: {fault}" for fault in reader.faults])
    return Plan(version_file, smoke, variants, _project_name(document))


def find_version_file(project: str | os.PathLike[str]) -> Path | None:
    """The version file of a project: what its plan says, else VERSION.txt, else ``None``.

    The rest of the plan is not looked at; a project needs none to be built.

    Raises:
        PlanError: pyproject.toml or its ``version-file`` is invalid.
        FileError: pyproject.toml cannot be read.
    """
    folder = Path(project)
    table = _own_table(_read_toml(folder)) if (folder / "pyproject.toml").exists() else None
    reader = _Reader(folder)
    found = reader.version_file(table if isinstance(table, dict) else {})
    if reader.faults:
        raise PlanError([f"pyproject.toml: {fault}" for fault in reader.faults])
    return found


def check_project_folder(folder: Path) -> None:
    """Refuse what is no folder.

    Raises:
        FileError: it is not there, or something else.
    """
    if not folder.exists():
        raise FileError(f"{str(folder)!r} is not there, expected the folder of a project")
    if not folder.is_dir():
        raise FileError(f"{str(folder)!r} is no folder, expected the folder of a project")


def require_distinct_from_source(variants: Iterable[Variant], name: str | None, version: Version | None) -> None:
    """Refuse variants that would bear the file name of the wheel that they are made from.

    Only what the plan alone shows is found: tags and build are taken to change the name.

    Args:
        variants: of a plan.
        name, version: those of the wheel, as far as they are known.

    Raises:
        PlanError: with each such variant.
    """
    faults = [
        f"variant {variant.id!r} would be the same file as the wheel that it is made from"
        for variant in variants
        if not variant.is_metapackage and variant.keeps_name(name, version)
    ]
    if faults:
        raise PlanError(faults, hint=OWN_NAME_HINT)


def _read_toml(folder: Path) -> dict[str, Any]:
    path = folder / "pyproject.toml"
    try:
        return tomllib.loads(path.read_bytes().decode())
    except FileNotFoundError:
        raise PlanError(
            f"{str(path)!r} is not there, and it holds the plan of the release", hint=f"add one with {_EXAMPLE}"
        ) from None
    except OSError as error:
        raise FileError.of("read", path, error) from error
    except UnicodeDecodeError as error:
        raise PlanError(f"{str(path)!r} is not UTF-8: {error.reason} at byte {error.start}") from None
    except tomllib.TOMLDecodeError as error:
        raise PlanError(f"{str(path)!r} is no valid TOML: {error}") from None
    except RecursionError:
        raise PlanError(f"{str(path)!r} is no valid TOML: it is nested too deeply") from None


def _own_table(document: Mapping[str, Any]) -> Any:
    tools = document.get("tool")
    return tools.get("te-wheel") if isinstance(tools, dict) else None


def _project_name(document: Mapping[str, Any]) -> str | None:
    project = document.get("project")
    name = project.get("name") if isinstance(project, dict) else None
    return name if isinstance(name, str) else None


class _Reader:
    """Reads the parts of a plan and collects every fault."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.faults: list[str] = []

    def fault(self, where: str, message: str) -> None:
        self.faults.append(f"[{where}] {message}")

    def wrong_type(self, where: str, expected: str, value: object) -> None:
        self.fault(where, f"is {value!r}, expected {expected}")

    def check_keys(self, table: Mapping[str, Any], where: str, known: Iterable[str]) -> None:
        names = list(known)
        for key in table:
            if key not in names:
                near = difflib.get_close_matches(key.replace("_", "-").lower(), names, n=1)
                wanted = f"did you mean {near[0]!r}?" if near else f"expected {', '.join(names)}"
                self.fault(where, f"unknown key {key!r}, {wanted}")

    def table(self, parent: Mapping[str, Any], key: str, where: str) -> dict[str, Any]:
        value = parent.get(key, {})
        if isinstance(value, dict):
            return value
        self.wrong_type(where, "a table", value)
        return {}

    def string(self, table: Mapping[str, Any], key: str, where: str) -> str | None:
        value = table.get(key)
        if value is None or isinstance(value, str):
            return value
        self.fault(where, f"{key} is {value!r}, expected a string")
        return None

    def strings(self, table: Mapping[str, Any], key: str, where: str) -> tuple[str, ...]:
        value = table.get(key, [])
        if isinstance(value, list) and all(isinstance(item, str) for item in value):
            return tuple(value)
        self.fault(where, f"{key} is {value!r}, expected a list of strings")
        return ()

    # -- the parts ----------------------------------------------------------------------------

    def version_file(self, table: Mapping[str, Any]) -> Path | None:
        name = self.string(table, "version-file", TABLE)
        if name is None:
            default = self.folder / DEFAULT_VERSION_FILE
            return default if default.is_file() else None
        path = self.folder / name
        if not path.is_file():
            self.fault(TABLE, f"version-file {name!r} is no file of the project")
        return path

    def smoke(self, table: Mapping[str, Any]) -> SmokePlan:
        where = f"{TABLE}.smoke"
        smoke = self.table(table, "smoke", where)
        self.check_keys(smoke, where, ("requires", "import", "run"))
        requires = self.strings(smoke, "requires", where)
        asked = SmokePlan(requires, self.strings(smoke, "import", where), self.string(smoke, "run", where))
        for fault in asked.faults:
            self.fault(where, fault)
        return asked

    def variants(self, table: Mapping[str, Any], project_name: str | None) -> tuple[Variant, ...]:
        where = f"{TABLE}.variants"
        tables = self.table(table, "variants", where)
        if not tables and isinstance(table.get("variants", {}), dict):
            self.fault(where, f"holds no variant, expected at least one such as {_EXAMPLE}")
        ids: dict[str, str] = {}
        found: list[Variant] = []
        for id_ in tables:
            variant = self._variant(tables, id_, f"{where}.{id_}")
            normal = normal_form(id_)
            if normal in ids:
                self.fault(where, f"{ids[normal]!r} and {id_!r} are the same id ({normal!r}) in normal form")
            ids.setdefault(normal, id_)
            if variant is not None:
                found.append(variant)
        self._check_distinct(found, project_name)
        for variant in found:
            if variant.is_metapackage:
                self._check_metapackage(variant, found, ids.values(), project_name)
        return tuple(found)

    def _variant(self, tables: Mapping[str, Any], id_: str, where: str) -> Variant | None:
        before = len(self.faults)
        if not _ID.match(id_):
            self.fault(
                f"{TABLE}.variants", f"{id_!r} is no id, expected letters, digits, '.', '_' and '-' such as 'cu12'"
            )
        table = self.table(tables, id_, where)
        self.check_keys(table, where, (*_STRINGS, *_LISTS, *_PARTS))
        values: dict[str, Any] = {key.replace("-", "_"): self.string(table, key, where) for key in _STRINGS}
        values |= {key.replace("-", "_"): self.strings(table, key, where) for key in _LISTS}
        extras, requires = (self.strings(table, key, where) for key in _PARTS)
        if any(key in table for key in _PARTS):
            self._check_parts(table, where, (*extras, *requires))
        values["add_file"] = tuple(self._source(text, where) for text in values["add_file"])
        values["sbom_add"] = tuple(str((self.folder / text).absolute()) for text in values["sbom_add"])
        try:
            edit = WheelEdit(**values)
        except ReleaseError as error:
            for fault in error.faults:
                self.fault(where, fault)
            return None
        return Variant(id_, edit, extras, requires) if len(self.faults) == before else None

    def _check_parts(self, table: Mapping[str, Any], where: str, parts: tuple[str, ...]) -> None:
        for key in table:
            if key in (*_STRINGS, *_LISTS) and key not in _OF_METAPACKAGES:
                self.fault(where, f"{key} does not go with extras and requires: a metapackage holds no files")
        if not parts and all(isinstance(table.get(key, []), list) for key in _PARTS):
            self.fault(where, "extras and requires name no variant, expected at least one")
        for part in dict.fromkeys(parts):
            if parts.count(part) > 1:
                self.fault(where, f"extras and requires name {part!r} {parts.count(part)} times, expected once")

    def _check_metapackage(
        self, variant: Variant, found: Iterable[Variant], ids: Iterable[str], project_name: str | None
    ) -> None:
        where = f"{TABLE}.variants.{variant.id}"
        by_id = {other.id: other for other in found}
        for key, parts in zip(_PARTS, (variant.extras, variant.requires), strict=True):
            for part in parts:
                if part not in ids:
                    near = difflib.get_close_matches(part, list(ids), n=1)
                    self.fault(
                        where, f"{key} names {part!r}, no variant" + (f", did you mean {near[0]!r}?" if near else "")
                    )
                elif part in by_id and by_id[part].is_metapackage:
                    self.fault(where, f"{key} names {part!r}, which is a metapackage itself")
        own = variant.project(project_name)
        for other in by_id.values():
            if not other.is_metapackage and other.project(project_name) == own:
                shown = own or "the project's own"
                self.fault(
                    where, f"{other.id!r} bears its name, {shown}, too: installers would take either for the other"
                )

    def _source(self, text: str, where: str) -> str:
        """``SRC=DEST`` with SRC found in the project."""
        source, equals, target = text.rpartition("=")
        if not (source and equals):
            return text  # the edit says what is wrong with it
        path = (self.folder / source).absolute()
        if not path.is_file():
            self.fault(where, f"add-file {text!r}: {source!r} is no file of the project")
        return f"{path}={target}"

    def _check_distinct(self, variants: Iterable[Variant], project_name: str | None) -> None:
        """Name the variants that would make one output file, whatever wheel they start from."""
        seen: dict[tuple[object, ...], Variant] = {}
        for variant in variants:
            first = seen.setdefault(variant.output(project_name), variant)
            if first is variant:
                continue
            names = [other.edit.name if other.edit.name is not None else project_name for other in (first, variant)]
            why = f" ({names[0]!r} and {names[1]!r} are one project name)" if names[0] != names[1] else ""
            self.fault(f"{TABLE}.variants", f"{first.id!r} and {variant.id!r} would make the same file{why}")
