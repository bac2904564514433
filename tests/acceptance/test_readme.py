"""What the README shows is what a reader gets."""

from __future__ import annotations

import doctest
import importlib.util

import pytest

from tests.acceptance.readme import README, rendered


def test_every_example_gives_the_output_that_the_readme_shows_and_every_table_is_as_the_code_has_it() -> None:
    assert README.read_text() == rendered()


def test_no_block_is_a_word_that_waits_for_its_figures() -> None:
    blocks = README.read_text().split("```")[1::2]
    assert blocks
    assert not [block for block in blocks if block.partition("\n")[2].strip().isupper()]


@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch is not installed")
def test_the_python_examples_give_what_the_readme_shows() -> None:
    failed, tried = doctest.testfile(str(README), module_relative=False)
    assert tried
    assert not failed
