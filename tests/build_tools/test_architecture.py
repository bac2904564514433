"""The house: which module may know which, and what none may import."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from build_tools.wheels import _HOMES

ROOT = Path(__file__).resolve().parents[2]

# Each module may import those above it and no other.
ORDER = """
build_tools
build_tools.errors
build_tools.parallel
build_tools.input_file
build_tools.report
build_tools.progress
build_tools.console
build_tools.outcome
build_tools.child
build_tools.version
build_tools.wheels
build_tools.wheels.times
build_tools.wheels.limits
build_tools.wheels.rules
build_tools.wheels.finding
build_tools.wheels.zip_format
build_tools.wheels.member
build_tools.wheels.deflate
build_tools.wheels.mending
build_tools.wheels.inflater
build_tools.wheels.member_names
build_tools.wheels.name
build_tools.wheels.core_metadata
build_tools.wheels.requires
build_tools.wheels.headers
build_tools.wheels.record
build_tools.wheels.file_identity
build_tools.wheels.output
build_tools.wheels.header_checks
build_tools.wheels.new_tree
build_tools.wheels.end_record
build_tools.wheels.central_directory
build_tools.wheels.archive
build_tools.wheels.archive_writer
build_tools.wheels.wheel
build_tools.wheels.entry_points
build_tools.wheels.variant
build_tools.wheels.check_metadata
build_tools.wheels.check_tree
build_tools.wheels.json_text
build_tools.wheels.sbom
build_tools.wheels.check_sbom
build_tools.wheels.check_hashes
build_tools.wheels.check_pypi
build_tools.wheels.check
build_tools.wheels.edit
build_tools.wheels.change
build_tools.wheels.header_edit
build_tools.wheels.sync
build_tools.wheels.repair
build_tools.wheels.mended
build_tools.wheels.rewrite
build_tools.wheels.repacked
build_tools.wheels.selection
build_tools.wheels.unpacked
build_tools.wheels.diff
build_tools.wheels.facts
build_tools.sdist
build_tools.sdist_rewrite
build_tools.batch
build_tools.sdist_reader
build_tools.check_sdist
build_tools.wheels.distribution
build_tools.wheels.yanked
build_tools.wheels.index_memory
build_tools.wheels.index_pages
build_tools.wheels.index
build_tools.pins
build_tools.smoke_plan
build_tools.variant
build_tools.plan
build_tools.source_time
build_tools.metapackage
build_tools.project
build_tools.smoke_probe
build_tools.smoke_result
build_tools.smoke
build_tools.release_record
build_tools.release_memory
build_tools.release_placing
build_tools.release_trials
build_tools.release
build_tools.wheel_commands
build_tools.release_commands
build_tools.cli
build_tools.__main__
""".split()  # noqa: SIM905 - a list to read from top to bottom


EXPORTS = {f"build_tools.wheels.{name}": f"build_tools.wheels.{home}" for name, home in _HOMES.items()}


def modules(package: str) -> dict[str, Path]:
    found = {}
    for path in sorted((ROOT / package).rglob("*.py")):
        if "build" not in path.relative_to(ROOT / package).parts:
            parts = path.relative_to(ROOT).with_suffix("").parts
            found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def imports(path: Path) -> Iterator[str]:
    """Every module that a file imports, at its top or inside a function."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path.name} imports relatively"
            assert node.module
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def test_the_order_names_every_module() -> None:
    assert sorted(ORDER) == sorted(modules("build_tools"))


@pytest.mark.parametrize("module", ORDER)
def test_a_module_imports_only_what_stands_above_it(module: str) -> None:
    above = ORDER[: ORDER.index(module)]
    # What `build_tools.wheels` exports stands for the module where it lives.
    found = {EXPORTS.get(name, name) for name in imports(modules("build_tools")[module])}
    # The package's lazy exports name their homes for type checkers, and import them when asked.
    if module != "build_tools.wheels":
        assert found & set(ORDER) <= set(above)


@pytest.mark.parametrize("package", ["build_tools", "te_pkg"])
def test_the_two_packages_never_import_each_other(package: str) -> None:
    other = "te_pkg" if package == "build_tools" else "build_tools"
    for name, path in modules(package).items():
        assert not [found for found in imports(path) if found.split(".")[0] == other], name


def test_the_tooling_needs_the_standard_library_and_packaging_alone() -> None:
    allowed = {"build_tools", "packaging", *sys.stdlib_module_names}
    for name, path in modules("build_tools").items():
        assert {found.split(".")[0] for found in imports(path)} <= allowed, name


def test_no_module_is_called_utils() -> None:
    names = [*modules("build_tools"), *modules("te_pkg")]
    assert not [name for name in names if name.split(".")[-1] in ("utils", "util", "helpers", "common", "misc")]
