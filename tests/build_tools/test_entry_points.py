"""entry_points.txt: what is right is let be, what importlib.metadata cannot read is found."""

from __future__ import annotations

import importlib.metadata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from build_tools.wheels.entry_points import entry_point_faults


@pytest.mark.parametrize(
    "text",
    [
        "",
        "# a comment\n\n",
        "[console_scripts]\ndemo = demo.cli:main\n",
        "[console_scripts]\r\ndemo=demo.cli:main\r\n",
        "[console_scripts]\nd.e-m_o = demo:Main.run [extra1, extra2]\n",
        "[gui_scripts]\ndemo = demo : main\n[pytest11]\ndemo = demo.plugin\n",
        "[a.b:c]\nname with blanks = demo\nÜber = demo:x\n",
        "[a]\nDemo = demo\ndemo = demo\n",
        "[DEFAULT]\nx = demo:y\n",
        "[a]\nx = demo:y  \n; a comment\n",
        "[a]\nx%y = demo:y\n",
    ],
)
def test_what_is_right_has_no_fault(text: str) -> None:
    assert entry_point_faults(text.encode()) == []


@given(
    st.dictionaries(
        st.text("ab.-_ ", min_size=1, max_size=4).map(lambda text: f"x{text.strip()}"),
        st.text("ab.:[] ,-1", max_size=8).map(lambda text: f"m{text}".strip()),
        max_size=4,
    )
)
def test_an_object_without_fault_is_taken_apart_by_importlib(values: dict[str, str]) -> None:
    text = "[group]\n" + "".join(f"{name} = {value}\n" for name, value in values.items())
    if not entry_point_faults(text.encode()):
        for name, value in values.items():
            point = importlib.metadata.EntryPoint(name, value, "group")
            assert importlib.metadata.EntryPoint.pattern.match(point.value)
            assert point.module


@given(st.binary(max_size=60))
def test_no_bytes_raise(data: bytes) -> None:
    assert isinstance(entry_point_faults(b"[a]\n" + data), list)
    assert isinstance(entry_point_faults(data), list)


def test_every_fault_is_named() -> None:
    data = b"[console_scripts]\n../a = demo\nb = 1:2\n[x]\nc = a:b:c\n"
    assert len(entry_point_faults(data)) == 4
