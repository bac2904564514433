"""Requirements of a wheel on itself follow its name and version; every other stays as it is."""

from __future__ import annotations

import pytest
from packaging.version import Version

from build_tools.wheels.name import normalize_name
from build_tools.wheels.requires import follow

RENAMED = [
    ('demo[gpu]; extra == "all"', 'demo-cu12[gpu]; extra == "all"'),
    ("demo", "demo-cu12"),
    ("Demo [gpu,cpu] >=1 ; extra=='x'", "demo-cu12 [gpu,cpu] >=1 ; extra=='x'"),
    ("DEMO>=1", "demo-cu12>=1"),
    ("demo @ https://example.com/demo.whl", "demo-cu12 @ https://example.com/demo.whl"),
    ("demo-core>=1", "demo-core>=1"),
    ("demos", "demos"),
    ("torch; extra == 'demo'", "torch; extra == 'demo'"),
    ("demo (>=1)", "demo-cu12 (>=1)"),
    ("not a requirement !!", "not a requirement !!"),
    ("demo !!", "demo !!"),
]


@pytest.mark.parametrize(("value", "expected"), RENAMED)
def test_on_a_rename_the_name_follows_and_the_rest_is_as_it_was_written(value: str, expected: str) -> None:
    one = Version("1.0")
    assert follow(value, normalize_name("demo"), "demo-cu12", one, one) == expected


VERSIONED = [
    ("demo==1.4", "1.4", "2.0", "demo==2.0"),
    ("demo[x]== 1.4 ; extra == 'all'", "1.4", "2.0", "demo[x]== 2.0 ; extra == 'all'"),
    ("demo==1.4.0", "1.4", "2.0", "demo==2.0"),
    ("demo==1.4", "1.4+cu126", "2.0+cu128", "demo==2.0"),
    ("demo==1.4+cu126", "1.4+cu126", "2.0+cu128", "demo==2.0"),
    ("demo==1.4+cu126", "1.4+cu126", "1.4+cu128", "demo==1.4"),  # the pin would admit nothing any more
    ("demo==1.4", "1.4", "1.4+cu128", "demo==1.4"),  # admits the label
    ("demo==1.3", "1.4", "2.0", "demo==1.3"),
    ("demo==1.*", "1.4", "2.0", "demo==1.*"),
    ("demo>=1.4,!=1.4", "1.4", "2.0", "demo>=1.4,!=1.4"),
    ("demo~=1.4", "1.4", "2.0", "demo~=1.4"),
    ("demo===1.4", "1.4", "2.0", "demo===1.4"),
    ("demo (==1.4)", "1.4", "2.0", "demo (==2.0)"),
    ("demo==1.4,>=1", "1.4", "2.0", "demo==2.0,>=1"),
    ("torch==1.4", "1.4", "2.0", "torch==1.4"),
    ("demo==1.4; python_version == '1.4'", "1.4", "2.0", "demo==2.0; python_version == '1.4'"),
]


@pytest.mark.parametrize(("value", "old", "new", "expected"), VERSIONED)
def test_on_a_new_version_an_exact_pin_on_the_old_one_follows(value: str, old: str, new: str, expected: str) -> None:
    assert follow(value, normalize_name("demo"), None, Version(old), Version(new)) == expected


def test_a_folded_requirement_keeps_its_bytes_where_nothing_follows_and_is_unfolded_where_it_does() -> None:
    folded = 'demo[gpu];\n  extra == "all"'
    one = Version("1")
    assert follow(folded, normalize_name("demo"), None, one, one) == folded
    assert follow(folded, normalize_name("demo"), "other", one, one) == 'other[gpu]; extra == "all"'
