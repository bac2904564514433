"""The examples in the docstrings give what they show."""

from __future__ import annotations

import doctest
from importlib import import_module

import pytest

from tests.build_tools.test_architecture import ORDER

MODULES = [module for module in ORDER if not module.endswith("__main__")]


@pytest.mark.parametrize("module", MODULES)
def test_every_example_of_a_docstring_is_true(module: str) -> None:
    assert doctest.testmod(import_module(module)).failed == 0
