"""The benchmark: it compares before it times, and says what it found."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch

SCRIPT = Path(__file__).parents[2] / "scripts/bench_padding.py"


@pytest.fixture(scope="module")
def bench() -> ModuleType:
    spec = importlib.util.spec_from_file_location("bench_padding", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses ask for it
    spec.loader.exec_module(module)
    return module


def test_it_times_what_it_is_asked_for(bench, monkeypatch, capsys):
    monkeypatch.setattr(torch, "set_num_threads", lambda count: None)
    assert bench.main(["--only", "resolve", "--rounds", "1"]) == 0
    out = capsys.readouterr().out
    assert "resolve_pad_between_seqs, hit" in out
    assert out.splitlines()[-1].endswith(" of 1 goals met")


def test_wrong_results_are_not_timed(bench):
    wrong = bench.Comparison("sum", lambda: torch.tensor(1), lambda: torch.tensor(2), "another", 1)
    with pytest.raises(SystemExit, match="sum: the results differ"):
        bench.run(wrong, 1)


@pytest.mark.parametrize(("seconds", "met"), [(10.0, True), (0.0, False)])
def test_a_goal_that_is_missed_is_an_error_only_if_asked_for(bench, monkeypatch, seconds, met):
    monkeypatch.setattr(torch, "set_num_threads", lambda count: None)
    monkeypatch.setattr(bench, "comparisons", lambda: [bench.Limit("nothing", lambda: None, seconds)])
    assert bench.main([]) == 0
    assert bench.main(["--strict"]) == (0 if met else 1)


def test_disturbed_rounds_are_set_aside_while_enough_remain(bench):
    calm, disturbed = bench.Round(1, 2, False), bench.Round(9, 9, True)
    assert bench.undisturbed([calm] * 5 + [disturbed] * 10) == [calm] * 5
    assert bench.undisturbed([calm] * 4 + [disturbed] * 10) == [calm] * 4 + [disturbed] * 10


def test_in_a_round_each_side_runs_once_behind_the_other_and_once_behind_itself(bench):
    order = []
    comparison = bench.Comparison("sum", lambda: order.append("ours"), lambda: order.append("peer"), "another", 1)
    assert len(bench.rounds_of(comparison, 2)) == 2
    assert order == ["ours", *["ours", "peer", "peer", "ours"] * 2]  # the first is not timed


def test_both_sides_come_to_one_result_on_small_sizes(bench, monkeypatch):
    monkeypatch.setattr(bench, "HEADS", 1)
    monkeypatch.setattr(bench, "SIZE", 4)
    for dtype in (torch.float32, torch.bfloat16):
        for comparison in (*bench.moves(dtype), *bench.gradients(dtype), *bench.clearing(dtype)):
            bench.compare(comparison)
