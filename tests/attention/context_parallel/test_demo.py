"""The demonstration: what it shows is so, on every rank, and it says how to start it."""

from __future__ import annotations

import re

import pytest

from te_pkg.attention.context_parallel.__main__ import main
from te_pkg.attention.context_parallel.demo import report
from tests.attention.context_parallel.team import World


def demonstrate(world: World) -> list[str]:
    return list(report())


def test_every_method_differs_from_one_process_by_rounding_alone(team):
    first, *others = [answer.get() for answer in team.run(demonstrate)]
    differences = [line for line in first if "largest difference" in line]
    assert [line.split()[0] for line in differences] == ["p2p", "all_gather", "a2a"]
    for line in differences:
        assert all(float(number) < 1e-13 for number in re.findall(r"\d\.\de[-+]\d\d", line))
        assert len(re.findall(r"\d\.\de[-+]\d\d", line)) == 2
    shown = [line for line in first if "largest difference" not in line]
    assert all([line for line in lines if "largest difference" not in line] == shown for lines in others)


def test_each_row_of_each_sequence_is_on_one_rank(team):
    lines = team.run(demonstrate)[0].get()
    assert lines[0].startswith("PackedLayout: 3 sequences, 20 real rows of 32")
    shares = [line for line in lines if line.startswith("rank ")]
    rows = [row for line in shares for row in re.findall(r"\b[abc]\d+\b", line.partition("  ")[2])]
    expected = [f"{letter}{row}" for letter, length in zip("abc", (7, 12, 1), strict=True) for row in range(length)]
    assert sorted(rows) == sorted(expected)
    assert shares[1] == "rank 1  4 real rows of 8  a1 a6 | b2 b3 . . | . ."


@pytest.mark.parametrize(
    ("argv", "message"), [(["--demo"], "no ranks were started"), ([], "there is nothing to do without --demo")]
)
def test_who_starts_it_otherwise_is_told_how(monkeypatch, capsys, argv, message):
    monkeypatch.delenv("RANK", raising=False)
    assert main(argv) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err == f"error: {message}\nhint: torchrun --nproc_per_node 2 -m te_pkg.attention.context_parallel --demo\n"
