"""Header blocks: what they say, and that an edit changes the lines that it must and no other byte."""

from __future__ import annotations

from email import message_from_string, policy

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from build_tools.errors import EditError, WheelError
from build_tools.wheels.headers import Headers

FIELDS = ["Name", "name", "Version", "Classifier", "X-Custom", "Requires-Dist", "A"]
VALUES = st.text(st.sampled_from("ab:; \t\v\f\x85\u2028éß=From"), max_size=12)
ENDS = st.sampled_from(["\n", "\r\n"])


@st.composite
def header_blocks(draw: st.DrawFn) -> str:
    """Header lines with folds, odd blanks and either line end, then perhaps a body."""
    lines = []
    for _ in range(draw(st.integers(0, 6))):
        blank = draw(st.sampled_from(["", " ", "  ", "\t"]))
        lines.append(f"{draw(st.sampled_from(FIELDS))}:{blank}{draw(VALUES)}{draw(ENDS)}")
        for _ in range(draw(st.integers(0, 2))):
            lines.append(f"{draw(st.sampled_from([' ', chr(9), '        ']))}{draw(VALUES)}{draw(ENDS)}")
    body = draw(st.sampled_from(["", "\n", "\r\n", "\nbody\n", "\r\nName: x\r\n\r\nFrom me\n", "\n\n\n"]))
    return "".join(lines) + body


@given(header_blocks())
@example("Name: x\r\n\r\nbody")
@example("License: a\n  \n b\n\nbody")
def test_a_header_says_what_the_parser_of_record_says(text: str) -> None:
    message = message_from_string(text, policy=policy.compat32)
    parsed = Headers.parse(text.encode())
    for field in FIELDS:
        assert parsed.get_all(field) == (message.get_all(field) or [])
    assert [field.name for field in parsed.fields] == message.keys()
    body = parsed.body.decode()
    for end in ("\r\n", "\n"):
        if body.startswith(end):
            body = body[len(end) :]
            break
    assert body == message.get_payload()


@pytest.mark.parametrize("text", ["Name: x\rVersion: 1\n\n", "Name: x\r", "Summary: a\r b\n"])
def test_a_lone_cr_among_the_headers_is_refused_since_readers_differ_over_it(text: str) -> None:
    with pytest.raises(WheelError, match="lone CR"):
        Headers.parse(text.encode())


@given(header_blocks())
def test_what_is_not_edited_is_the_same_bytes(text: str) -> None:
    assert Headers.parse(text.encode()).to_bytes() == text.encode()


@given(header_blocks(), st.sampled_from(FIELDS), st.lists(st.from_regex(r"[a-z]{1,5}", fullmatch=True), max_size=3))
def test_an_edit_sets_one_field_and_leaves_every_other_byte(text: str, name: str, values: list[str]) -> None:
    before = Headers.parse(text.encode())
    after = Headers.parse(before.with_values(name, values).to_bytes())
    assert after.get_all(name) == values

    def others(headers: Headers) -> list[bytes]:
        return [field.raw.rstrip(b"\r\n") for field in headers.fields if not field.is_named(name)]

    assert others(after) == others(before)
    assert after.body == before.body
    assert after.with_values(name, values).to_bytes() == after.to_bytes()


@given(header_blocks(), st.sampled_from(FIELDS), st.from_regex(r"[a-z]{1,5}", fullmatch=True))
def test_adding_a_line_twice_is_adding_it_once(text: str, name: str, value: str) -> None:
    once = Headers.parse(text.encode()).with_added(name, value)
    assert once.get_all(name)[-1:] == [value] or value in once.get_all(name)
    assert once.with_added(name, value).to_bytes() == once.to_bytes()


@pytest.mark.parametrize("character", "\r\n\v\f\x85\u2028\u2029\0\x1b\x7f")
def test_a_value_that_could_end_its_line_is_refused(character: str) -> None:
    headers = Headers.parse(b"Name: demo\n\n")
    for edit in (headers.with_values, headers.with_added):
        value = f"a{character}Evil: b"
        with pytest.raises(EditError, match="Author"):
            edit("Author", [value] if edit == headers.with_values else value)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("data", "named"),
    [
        (b"Name: demo\nno header here\nVersion: 1\n", ["line 2", "no header here"]),
        (b" folded first\nName: demo\n", ["line 1"]),
        (b"From me to you\nName: demo\n", ["line 1", "From me"]),
        (b"Name: demo\n: nameless\n", ["line 2"]),
        (b"N\xc3\xa4me: demo\n", ["line 1"]),
        (b"Name : demo\n", ["line 1"]),
        (b"Author: \xe9\n", ["UTF-8"]),
        (b"one\ntwo\n", ["line 1", "line 2"]),
        # To the parser of record a lone CR ends a line; to most programs it does not.
        (b"Name: demo\rVersion: 1\n", ["line 1", "CR"]),
        (b"Name: demo\nSummary: a\r\r\nVersion: 1\n", ["line 2", "CR"]),
    ],
)
def test_a_line_that_is_no_header_is_refused_and_named(data: bytes, named: list[str]) -> None:
    with pytest.raises(WheelError) as caught:
        Headers.parse(data)
    for text in named:
        assert text in str(caught.value)


def test_a_value_folded_over_a_million_lines_is_read_and_kept() -> None:
    data = b"Name: demo\nSummary: a\n" + b" b\n" * 1_000_000 + b"Version: 1.0\n"
    read = Headers.parse(data)
    assert [field.name for field in read.fields] == ["Name", "Summary", "Version"]
    assert read.with_values("Version", ["2"]).to_bytes() == data.replace(b"1.0", b"2")


def test_a_hundred_thousand_headers_are_read_and_edited_in_one_pass() -> None:
    data = b"Name: demo\n" + b"".join(b"Classifier: c%d\n" % number for number in range(100_000)) + b"\n"
    read = Headers.parse(data)
    assert read.with_values("Classifier", []).to_bytes() == b"Name: demo\n\n"
    assert read.with_values("Name", ["x"]).to_bytes() == data.replace(b"demo", b"x", 1)
