"""Versions for tests: the corpus of real spellings, and strategies that make more."""

from __future__ import annotations

from pathlib import Path

from hypothesis import strategies as st
from packaging.version import Version

_ROWS = [
    line.split("\t")
    for line in (Path(__file__).parent.parent / "data" / "versions.tsv").read_text(encoding="utf-8").splitlines()
    if line and not line.startswith("#")
]
ACCEPTED: list[tuple[str, str]] = [(raw, canonical) for raw, canonical in _ROWS if canonical != "INVALID"]
REFUSED: list[str] = [raw for raw, canonical in _ROWS if canonical == "INVALID"]

_PRE = {"a": ["a", "alpha", "A", "Alpha"], "b": ["b", "beta", "BETA"], "rc": ["rc", "c", "pre", "preview", "RC"]}
_NUMBER = st.integers(0, 10**6)
_SEPARATOR = st.sampled_from(["", ".", "-", "_"])
_SEGMENT = st.from_regex(r"[a-z0-9]{1,6}", fullmatch=True)


@st.composite
def spellings(draw: st.DrawFn) -> tuple[str, Version]:
    """A version in an accepted spelling, and the version that it means."""
    raw = draw(st.sampled_from(["", "v", "V"]))
    meant = ""
    if epoch := draw(st.sampled_from([0, 0, 1, 7])):
        raw, meant = f"{raw}{epoch}!", f"{epoch}!"
    release = draw(st.lists(_NUMBER, min_size=1, max_size=4))
    raw += ".".join("0" * draw(st.integers(0, 2)) + str(number) for number in release)
    meant += ".".join(map(str, release))
    if letter := draw(st.sampled_from(["", *_PRE])):
        number = draw(_NUMBER)
        raw += draw(_SEPARATOR) + draw(st.sampled_from(_PRE[letter])) + draw(_SEPARATOR) + str(number)
        meant += f"{letter}{number}"
    if draw(st.booleans()):
        number = draw(_NUMBER)
        word = draw(st.sampled_from(["post", "rev", "r", "POST"]))
        raw += draw(st.sampled_from([f"-{number}", f".{word}{number}", f"-{word}.{number}", f"{word}_{number}"]))
        meant += f".post{number}"
    if draw(st.booleans()):
        number = draw(_NUMBER)
        raw += draw(_SEPARATOR) + draw(st.sampled_from(["dev", "DEV"])) + draw(_SEPARATOR) + str(number)
        meant += f".dev{number}"
    if draw(st.booleans()):
        local = draw(st.lists(_SEGMENT, min_size=1, max_size=3))
        raw += "+" + "".join(part + draw(st.sampled_from(".-_")) for part in local)[:-1].upper()
        meant += "+" + ".".join(str(int(part)) if part.isdigit() else part for part in local)
    white = st.sampled_from(["", " ", "\n", "\t"])
    return draw(white) + raw + draw(white), Version(meant)


def versions() -> st.SearchStrategy[Version]:
    return spellings().map(lambda pair: pair[1])
