"""The benchmark: it compares before it times, and says what it found."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch

SCRIPT = Path(__file__).parents[3] / "scripts/bench_context_parallel.py"


@pytest.fixture(scope="module")
def bench() -> ModuleType:
    spec = importlib.util.spec_from_file_location("bench_context_parallel", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def test_it_times_what_it_is_asked_for_once_both_sides_agree(bench, monkeypatch, capsys):
    monkeypatch.setattr(torch, "set_num_threads", lambda count: None)
    for name, size in (("ROWS", 16), ("HEADS", 2), ("SIZE", 4), ("SEQUENCES", 5), ("PROCESSES", 2)):
        monkeypatch.setattr(bench, name, size)
    assert bench.main(["--rounds", "1"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(",")[0].split()[0] for line in lines[2:-1]] == [
        "merge_attention_",
        "merge_attention_",
        "merge_attention",
        "rank_cu_seqlens",
        *["pad_thd_sequences_for_cp"] * 3,
    ]
    assert [line for line in lines if "; 2 fresh processes, from " in line] == [lines[3]]
    assert lines[-1].endswith(" of 7 goals met")


@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        ("merge_attention", lambda *given: given[:2]),
        ("rank_cu_seqlens", lambda layout, size: torch.zeros(size, 2, 1)),
        ("pad_thd_sequences_for_cp", lambda ids, labels, cu, multiple: (ids, labels, cu)),
    ],
)
def test_wrong_results_are_not_timed(bench, monkeypatch, name, wrong):
    monkeypatch.setattr(torch, "set_num_threads", lambda count: None)
    monkeypatch.setattr(bench, name, wrong)
    monkeypatch.setattr(bench, "ROWS", 16)
    with pytest.raises(SystemExit, match="the results differ"):
        bench.main(["--only", name, "--rounds", "1"])
