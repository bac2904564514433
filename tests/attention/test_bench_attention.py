"""The benchmark of attention: it compares before it times, and says what it found."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch

from te_pkg.attention import PackedLayout

SCRIPT = Path(__file__).parents[2] / "scripts/bench_attention.py"


@pytest.fixture
def bench(monkeypatch) -> ModuleType:
    spec = importlib.util.spec_from_file_location("bench_attention", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, spec.name, module)
    spec.loader.exec_module(module)
    monkeypatch.setattr(module, "LENGTHS", [9, 2, 5])
    monkeypatch.setattr(module, "HEADS", 2)
    monkeypatch.setattr(module, "SIZE", 4)
    monkeypatch.setattr(torch, "set_num_threads", lambda count: None)
    return module


def test_it_times_what_it_is_asked_for(bench, capsys):
    assert bench.main(["--only", "backward", "--rounds", "1"]) == 0
    out = capsys.readouterr().out
    assert out.count("attention, forward and backward") == 2
    assert out.splitlines()[-1].endswith(" of 2 goals met")


def test_both_sides_come_to_one_result(bench):
    names = [entry.peer_name for entry in bench.comparisons()]
    assert names == ["SDPA on the padded batch"] * 2 + ["its kernels, one by one"] * 2


def test_wrong_results_are_not_timed(bench):
    layout = PackedLayout.from_lengths([9, 2, 5])
    rows = tuple(torch.randn(16, 2, 4) for _ in range(3))
    mine = bench.ours(layout, rows)
    wrong = bench.ours(layout, tuple(x + 1 for x in rows))
    with pytest.raises(SystemExit, match="packed_attention: the results differ by"):
        bench.check(mine, wrong, layout, torch.randn(16, 2, 4))


def test_a_goal_that_is_missed_is_an_error_only_if_asked_for(bench, monkeypatch):
    missed = bench.clock.Limit("nothing", lambda: None, 0.0)
    monkeypatch.setattr(bench, "comparisons", lambda: [missed])
    assert bench.main(["--rounds", "1"]) == 0
    assert bench.main(["--rounds", "1", "--strict"]) == 1
