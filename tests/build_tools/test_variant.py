"""Variants: a right one has no finding, the label is never a tag, and no variant.json raises."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from build_tools.wheels import WheelEdit, check_wheel, repack
from build_tools.wheels.variant import variant_faults
from build_tools.wheels.wheel import Wheel
from tests.build_tools.broken_contents import RIGHT_VARIANT, VARIANT
from tests.build_tools.wheel_factory import make_wheel

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["variants", "namespace", "a", "A"]), inner)
    ),
    max_leaves=8,
)


def test_a_right_variant_has_no_finding_and_its_label_is_no_tag(tmp_path: Path) -> None:
    wheel = make_wheel(tmp_path, **RIGHT_VARIANT)  # type: ignore[arg-type]
    assert check_wheel(wheel, hashes=True) == []
    with Wheel.open(wheel) as opened:
        assert opened.name
        assert opened.name.variant == "cu128"
        assert opened.name.tags == ("py3-none-any",)


def test_a_rewrite_keeps_it_right(tmp_path: Path) -> None:
    wheel = make_wheel(tmp_path / "in", **RIGHT_VARIANT)  # type: ignore[arg-type]
    made = repack(wheel, tmp_path / "out", WheelEdit(version="1.1")).path
    assert made.name == "demo-1.1-py3-none-any-cu128.whl"
    assert check_wheel(made, hashes=True) == []


@pytest.mark.parametrize(
    "content",
    [
        {"$schema": "x", "default-priorities": {"namespace": []}, "variants": {"null": {}}},
        {**VARIANT, "providers": {"nvidia": {}}},
        {**VARIANT, "default-priorities": {"namespace": ["x", "nvidia"], "feature": {}, "property": {}}},
    ],
)
def test_what_the_draft_allows_is_no_fault(content: object) -> None:
    assert variant_faults(json.dumps(content).encode(), None) == ([], [])


@given(JSON, JSON)
def test_no_json_raises(variants: object, priorities: object) -> None:
    content = {"$schema": "x", "variants": variants, "default-priorities": priorities}
    for data in (variants, content):
        faults, disagreements = variant_faults(json.dumps(data).encode(), "cu128")
        assert faults or disagreements


@given(st.binary(max_size=30))
def test_no_bytes_raise(data: bytes) -> None:
    assert variant_faults(data, None)[0]
