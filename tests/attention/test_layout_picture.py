"""The picture: small layouts row by row, large ones at a glance, never more than a screen."""

from __future__ import annotations

import doctest
import random
import subprocess
import sys
from pathlib import Path

import hypothesis
import pytest
import torch
from hypothesis import strategies as st
from torch._subclasses.fake_tensor import FakeTensorMode

import te_pkg
from te_pkg.attention import PackedLayout, layout_picture
from te_pkg.attention.capture import mark_capturing
from te_pkg.attention.layout_picture import COLUMNS, LINES
from tests.attention.layouts import layouts, without_host_facts


def picture(made: PackedLayout) -> list[str]:
    return str(made).split("\n")


class TestSmall:
    def test_slots_gaps_the_tail_and_the_capacity(self):
        made = PackedLayout.from_cu_seqlens(torch.tensor([0, 3, 5, 9]), torch.tensor([0, 4, 6, 11]), 14)
        assert picture(made) == [
            "PackedLayout: 3 sequences, 9 real rows of 14, 64.2% full, longest 4, on cpu",
            "padding: 5 rows: 1 between sequences, 1 after the last sequence, 3 of spare capacity",
            "a a a . | b b | c c c c . || _ _ _",
        ]

    def test_the_command_of_the_readme(self):
        command = (
            "from te_pkg.attention import PackedLayout; print(PackedLayout.from_lengths([3, 2, 4], pad_to_multiple=4))"
        )
        root = Path(te_pkg.__file__).parents[1]
        done = subprocess.run([sys.executable, "-c", command], capture_output=True, text=True, check=True, cwd=root)
        assert done.stdout.splitlines() == [
            "PackedLayout: 3 sequences, 9 real rows of 12, 75.0% full, longest 4, on cpu",
            "padding: 3 rows: 3 between sequences",
            "a a a . | b b . . | c c c c",
        ]

    @pytest.mark.parametrize(
        ("lengths", "total", "rows"),
        [
            ([1], None, "a"),
            ([0, 2, 0], None, "- | b b | -"),
            ([], 3, "|| _ _ _"),
            ([0], None, "-"),
            ([2], 4, "a a || _ _"),
        ],
    )
    def test_corners(self, lengths, total, rows):
        assert picture(PackedLayout.from_lengths(lengths, 1, total))[2:] == [rows]

    def test_nothing_at_all(self):
        assert picture(PackedLayout.from_lengths([])) == [
            "PackedLayout: 0 sequences, 0 real rows of 0, longest 0, on cpu",
            "padding: none",
        ]

    @hypothesis.given(layouts(max_sequences=4, max_length=5, host=None))
    def test_every_row_is_there(self, case):
        rows = picture(case.layout)[2:]
        marks = "".join(rows).replace(" ", "").replace("|", "").replace("-", "")
        assert [mark in "._" for mark in marks] == [owner is None for owner in case.rows.owners]
        assert marks.count("_") == case.rows.total - sum(case.rows.slots)
        letters = [mark for mark in marks if mark not in "._"]
        assert letters == ["abcd"[owner[0]] for owner in case.rows.owners if owner is not None]


class TestLarge:
    def test_to_scale(self):
        made = PackedLayout.from_lengths([700, 640, 4000], 1024, 8192)
        assert picture(made) == [
            "PackedLayout: 3 sequences, 5340 real rows of 8192, 65.1% full, longest 4000, on cpu",
            "padding: 2852 rows: 708 between sequences, 96 after the last sequence, 2048 of spare capacity",
            "   0 " + "a" * 29 + "1" + "." * 12 + "3" + "b" * 26 + "3" + "." * 15 + "6cc",
            "2112 " + "c" * 88,
            "4224 " + "c" * 76 + "...." + "_" * 8,
            "6336 " + "_" * 78,
            "each mark is 24 rows: a-Z one sequence, 1-9 tenths real, . padding, _ spare",
            "lengths: 640 to 4000, median 700",
        ]

    def test_a_row_a_mark_where_that_fits(self):
        made = PackedLayout.from_lengths([40, 0, 30], 8)
        assert picture(made)[2:] == [
            " 0 " + "a" * 40 + "c" * 30 + "..",
            "each mark is 1 row: a-Z one sequence, . padding",
            "lengths: 0 to 40, median 30, 1 empty",
        ]

    def test_hundreds_of_short_sequences_are_a_density(self):
        made = PackedLayout.from_lengths([16] * 4096)
        assert set("".join(line.split()[1] for line in picture(made)[2:6])) == {"#"}
        assert picture(made)[6] == "each mark is 187 rows: # real"

    def test_a_gap_of_one_row_in_a_million_is_not_hidden(self):
        made = PackedLayout.from_lengths([999_999, 5], 10)
        assert "99.9% full" in picture(made)[0]
        assert "1-9 tenths real" in picture(made)[-2]

    def test_many_empty_sequences(self):
        assert picture(PackedLayout.from_lengths([0] * 60))[2:] == ["lengths: 0 to 0, median 0, 60 empty"]

    def test_the_largest(self):
        made = PackedLayout.from_lengths([2**30, 2**30 - 1])
        assert len(picture(made)) <= LINES

    @hypothesis.given(data=st.data(), total=st.integers(10**4, 2**31 - 1))
    @hypothesis.settings(max_examples=50, deadline=None)
    def test_fits_a_screen_where_every_mark_occurs(self, data, total):
        fifth = total // 5
        lengths = [fifth + data.draw(st.integers(1, fifth // 4)), fifth - data.draw(st.integers(1, fifth // 4))]
        gap, tail = fifth - data.draw(st.integers(1, fifth // 4)), data.draw(st.integers(fifth // 4, fifth // 2))
        starts = [0, lengths[0], sum(lengths) + gap, sum(lengths) + gap + 1 + tail]
        cu = torch.tensor([0, lengths[0], sum(lengths), sum(lengths) + 1])
        lines = picture(PackedLayout.from_cu_seqlens(cu, torch.tensor(starts), total))
        marks = set("".join(line.split()[1] for line in lines[2:-2]))
        hypothesis.assume("#" in marks and marks & set("123456789"))
        assert marks >= {"a", "b", "#", ".", "_"}
        assert all(meaning in lines[-2] for meaning in ("a-Z one", "# several", "1-9 tenths", ". padding", "_ spare"))
        assert len(lines) <= LINES
        assert max(map(len, lines)) <= COLUMNS

    @pytest.mark.parametrize("device", ["cpu", "cuda:15"])
    @pytest.mark.parametrize(
        ("lengths", "slot_offsets"),
        [([2**30, 2**30 - 1], [0, 2**30, 2**31 - 1]), ([2**28] * 3, [0, 2**29, 2**30, 3 * 2**29])],
    )
    def test_the_largest_numbers_fit_too(self, lengths, slot_offsets, device):
        lines = layout_picture.draw(lengths, slot_offsets, 2**31 - 1, device).split("\n")
        assert max(map(len, lines)) <= COLUMNS
        assert lines[0].endswith(f", on {device}")

    @hypothesis.given(
        count=st.integers(0, 700),
        longest=st.sampled_from([1, 16, 1000, 10**6]),
        multiple=st.sampled_from([1, 16]),
        spare=st.sampled_from([0, 1, 1000]),
    )
    @hypothesis.settings(max_examples=30)
    def test_always_fits_a_screen(self, count, longest, multiple, spare):
        lengths = [random.Random(count * longest + i).randint(0, longest) for i in range(count)]
        slots = sum(-(-length // multiple) * multiple for length in lengths)
        lines = picture(PackedLayout.from_lengths(lengths, multiple, slots + spare))
        assert len(lines) <= LINES
        assert max(map(len, lines)) <= COLUMNS
        assert "\n".join(lines).isascii()


class TestUnknown:
    def test_it_is_read_where_it_may_be(self):
        made = PackedLayout.from_lengths([3, 2], 4)
        assert str(without_host_facts(made)) == str(made)

    def test_a_layout_that_cannot_be_read_is_described(self):
        made = without_host_facts(PackedLayout.from_lengths([3, 2], 4))
        expected = "<PackedLayout: 2 sequences in 8 rows, max_seqlen 3, on cpu>\nlengths: not known, because "
        with mark_capturing():
            assert str(made) == expected + "a CUDA graph is being captured"
        assert str(made.to("meta")) == expected.replace("cpu", "meta") + "the tensors have no values"

    def test_what_turns_out_to_be_no_layout_is_described(self):
        with mark_capturing():
            made = PackedLayout.from_cu_seqlens(torch.tensor([1, 5, 3]), None, 8, 4)
        assert picture(made) == [
            "<PackedLayout: 2 sequences in 8 rows, max_seqlen 4, on cpu>",
            "lengths: none, because this is no layout: cu_seqlens does not start at 0: entry 0 is 1, expected 0 "
            "(and 1 more)",
        ]

    def test_known_lengths_are_drawn_whatever_the_tensors_are(self):
        with FakeTensorMode():
            assert picture(PackedLayout.from_lengths([2, 1], 2))[2] == "a a | b ."
        assert picture(PackedLayout.from_lengths([2, 1], device="meta"))[0].endswith("on meta")

    def test_the_short_form_reads_nothing(self):
        with mark_capturing():
            assert repr(PackedLayout.from_lengths([3, 2], 4)) == (
                "<PackedLayout: 2 sequences in 8 rows, max_seqlen 3, on cpu>"
            )


def test_the_worked_examples_hold():
    assert doctest.testmod(layout_picture).failed == 0
