"""Every example in a docstring of the tooling runs, and gives what it says."""

from __future__ import annotations

import doctest
import importlib
import pkgutil

import pytest

import build_tools

MODULES = sorted(
    module.name
    for module in pkgutil.walk_packages(build_tools.__path__, "build_tools.")
    if module.name != "build_tools.__main__"
)


@pytest.mark.parametrize("name", MODULES)
def test_the_examples_of_a_module_are_true(name: str) -> None:
    module = importlib.import_module(name)
    assert doctest.testmod(module).failed == 0


def test_there_are_examples() -> None:
    finder = doctest.DocTestFinder()
    examples = [test for name in MODULES for test in finder.find(importlib.import_module(name)) if test.examples]
    assert len(examples) > 10
