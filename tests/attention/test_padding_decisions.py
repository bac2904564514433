"""Padding between sequences: the rule, and a memory that is right for live, unchanged tensors alone."""

from __future__ import annotations

import contextlib
import doctest
import itertools
import json
import warnings
from collections.abc import Sequence
from pathlib import Path

import hypothesis
import pytest
import torch
from hypothesis import strategies as st
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils import checkpoint
from torch.utils._python_dispatch import TorchDispatchMode

from te_pkg.attention import (
    PackedLayout,
    Padding,
    PaddingDecisions,
    default_padding_decisions,
    padding_decisions,
    resolve_pad_between_seqs,
)
from te_pkg.attention.caching import CacheInfo
from te_pkg.attention.capture import mark_capturing
from tests.attention.layouts import layouts
from tests.attention.no_sync import forbid_sync
from tests.attention.questions import ask, ask_captured, offsets

CASES = json.loads((Path(__file__).parents[1] / "data/attention/resolve_pad_between_seqs.json").read_text())


pytestmark = pytest.mark.usefixtures("nothing_is_remembered_from_another_test")


class TestCases:
    @staticmethod
    def tensors(case: dict[str, object]) -> list[torch.Tensor | None]:
        q, kv, q_padded, kv_padded = (
            None if values is None else offsets(*values)
            for values in (case[f"cu_seqlens_{name}"] for name in ("q", "kv", "q_padded", "kv_padded"))
        )
        same_q, same_kv = case["padded_is_same_object"]
        return [q, kv, q if same_q else q_padded, kv if same_kv else kv_padded]

    @pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
    def test_case(self, case):
        mode = case["mode"]
        tensors = self.tensors(case)

        def resolve() -> bool:
            return resolve_pad_between_seqs(*tensors, cp_size=case["cp_size"])

        if mode.startswith("eager"):
            eager = resolve()
        if mode == "eager":
            assert eager is case["expected"]
            return
        if "freed" in mode:
            tensors = self.tensors(case)
        if "changed in place" in mode:
            tensors[2].add_(0)
        with mark_capturing(), forbid_sync(uploads=False):
            assert resolve() is case["expected"]

    def test_every_mode_of_the_cases_is_known(self):
        assert {case["mode"] for case in CASES} == {
            "eager",
            "capture",
            "eager then capture, same tensors",
            "eager, then a padded tensor is changed in place, then capture",
            "eager, tensors freed, equal ones allocated, then capture",
        }


class TestRule:
    @pytest.mark.parametrize("answer", [True, False])
    @pytest.mark.parametrize("padded", [(0, 3, 8), (0, 4, 9)])
    def test_an_explicit_bool_wins(self, answer, padded):
        cu = offsets(0, 3, 8)
        with forbid_sync():
            assert resolve_pad_between_seqs(cu, cu, offsets(*padded), None, pad_between_seqs=answer) is answer

    @pytest.mark.parametrize("qkv_format", ["bshd", "sbhd", "thd_2bshd", "sbhd_2bshd"])
    def test_other_formats_have_none(self, qkv_format):
        cu, gap = offsets(0, 3, 8), offsets(0, 4, 9)
        with forbid_sync():
            assert resolve_pad_between_seqs(cu, cu, gap, gap, qkv_format=qkv_format) is False

    @pytest.mark.parametrize("captured", [False, True])
    def test_the_same_object_is_settled_without_a_look(self, captured):
        cu = offsets(0, 3, 8)
        with forbid_sync(), mark_capturing() if captured else forbid_sync():
            assert resolve_pad_between_seqs(cu, cu, cu, cu, cp_size=4) is False
            assert resolve_pad_between_seqs(cu, cu, cu, None) is False
            assert resolve_pad_between_seqs(None, None) is False

    def test_the_same_object_on_the_other_side_is_another_tensor(self):
        q, kv = offsets(0, 3, 8), offsets(0, 2, 7)
        assert resolve_pad_between_seqs(q, kv, q, q) is True
        assert resolve_pad_between_seqs(kv, q, q, q) is True
        with mark_capturing():
            assert resolve_pad_between_seqs(q, offsets(0, 3, 8), q, q) is True

    @pytest.mark.parametrize("side", ["q", "kv"])
    @pytest.mark.parametrize(("padded", "expected"), [((0, 3, 8), False), ((0, 4, 9), True)])
    def test_one_side_alone_has_padded_offsets(self, side, padded, expected):
        cu = offsets(0, 3, 8)
        sides = {f"cu_seqlens_{side}": cu, f"cu_seqlens_{side}_padded": offsets(*padded)}
        other = {"cu_seqlens_kv" if side == "q" else "cu_seqlens_q": None}
        assert resolve_pad_between_seqs(**sides, **other) is expected

    def test_a_side_that_is_settled_does_not_hide_the_other(self, memory):
        q, kv, gap = offsets(0, 3, 8), offsets(0, 3, 8), offsets(0, 4, 9)
        assert resolve_pad_between_seqs(q, kv, q, gap, decisions=memory) is True
        with mark_capturing():
            assert resolve_pad_between_seqs(q, kv, q, offsets(0, 3, 8), decisions=memory) is True

    @pytest.mark.parametrize("cp_size", [2, 4])
    def test_last_padding_counts_with_context_parallelism_alone(self, memory, cp_size):
        whole, slot = offsets(0, 698), offsets(0, 704)
        assert ask(memory, whole, slot) is False
        assert ask(memory, whole, slot, cp_size) is True
        assert memory.info().misses == 1

    @pytest.mark.parametrize("dtypes", [*itertools.product([torch.int32, torch.int64], repeat=2)])
    def test_dtypes_mix(self, memory, dtypes):
        cu, padded = offsets(0, 3, 8, dtype=dtypes[0]), offsets(0, 3, 8, dtype=dtypes[1])
        assert ask(memory, cu, padded) is False
        assert ask_captured(memory, cu, padded) is False

    @pytest.mark.parametrize("values", [(0,), (0, 0), (0, 0, 0)])
    def test_batches_without_a_row(self, memory, values):
        cu, padded = offsets(*values), offsets(*values)
        assert ask(memory, cu, padded, 2) is False
        assert ask_captured(memory, cu, padded, 2) is False
        memory.verify_replay()

    @hypothesis.settings(deadline=None)
    @hypothesis.given(q=layouts(), kv=layouts(), cp_size=st.sampled_from([1, 2]))
    def test_the_answer_is_what_the_rows_say(self, q, kv, cp_size):
        memory = PaddingDecisions()
        tensors = [t.clone() for t in (q.layout.cu_seqlens, kv.layout.cu_seqlens)]
        tensors += [t.clone() for t in (q.layout.cu_seqlens_padded, kv.layout.cu_seqlens_padded)]
        counted = Padding.BETWEEN | Padding.LAST if cp_size > 1 else Padding.BETWEEN
        expected = bool((q.rows.kinds | kv.rows.kinds) & counted)
        assert resolve_pad_between_seqs(*tensors, cp_size=cp_size, decisions=memory) is expected
        with mark_capturing(), forbid_sync(uploads=False):
            assert resolve_pad_between_seqs(*tensors, cp_size=cp_size, decisions=memory) is expected
            # What was found for several ranks is right for one, and the other way round: never too optimistic.
            other = resolve_pad_between_seqs(*tensors, cp_size=3 - cp_size, decisions=memory)
        assert other or not bool((q.rows.kinds | kv.rows.kinds) & Padding.BETWEEN)

    def test_a_layout_gives_its_own_offsets(self):
        gapless = PackedLayout.from_lengths([3, 5])
        padded = PackedLayout.from_lengths([3, 5], pad_to_multiple=4)
        for layout, expected in ((gapless, False), (padded, True)):
            pair = layout.cu_seqlens, layout.cu_seqlens_padded
            assert resolve_pad_between_seqs(pair[0], pair[0], pair[1], pair[1]) is expected


class Everything(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.names.append(str(func))
        return func(*args, **(kwargs or {}))


class Branches(torch.nn.Module):
    """Which branch was taken can be seen in the output: +1 with padding between, +2 without."""

    def forward(self, x, cu, padded):
        return x + 1 if resolve_pad_between_seqs(cu, cu, padded, padded) else x + 2


class TestTracing:
    x = torch.zeros(1)

    @pytest.mark.parametrize("remembered", [False, True])
    @pytest.mark.parametrize("backend", ["eager", "aot_eager"])
    def test_compiled_code_takes_the_branch_that_is_always_right_without_a_graph_break(self, backend, remembered):
        cu, equal = offsets(0, 3, 8), offsets(0, 3, 8)
        if remembered:
            assert Branches()(self.x, cu, equal).item() == 2
        before = default_padding_decisions.info()
        compiled = torch.compile(Branches(), fullgraph=True, backend=backend)
        assert compiled(self.x, cu, equal).item() == 1
        assert default_padding_decisions.info() == before

    def test_compiled_code_knows_a_padded_tensor_that_is_the_same_object(self):
        cu = offsets(0, 3, 8)
        compiled = torch.compile(Branches(), fullgraph=True, backend="eager")
        assert compiled(self.x, cu, cu).item() == 2
        assert compiled(self.x, cu, cu.clone()).item() == 1
        assert compiled(self.x, cu, cu).item() == 2

    def test_compiled_code_is_given_the_answer_from_outside(self):
        @torch.compile(fullgraph=True, backend="eager")
        def step(x, cu, padded, answer):
            return x + 1 if resolve_pad_between_seqs(cu, cu, padded, padded, pad_between_seqs=answer) else x + 2

        cu, equal = offsets(0, 3, 8), offsets(0, 3, 8)
        assert step(self.x, cu, equal, resolve_pad_between_seqs(cu, cu, equal, equal)).item() == 2

    @pytest.mark.parametrize("strict", [True, False])
    def test_an_exported_program_serves_every_padding(self, strict):
        cu, equal = offsets(0, 3, 8), offsets(0, 3, 8)
        Branches()(self.x, cu, equal)
        program = torch.export.export(Branches(), (self.x, cu, equal), strict=strict)
        assert program.module()(self.x, cu, offsets(0, 4, 9)).item() == 1

    def test_make_fx_and_jit_trace_take_it_too(self):
        cu, equal = offsets(0, 3, 8), offsets(0, 3, 8)
        Branches()(self.x, cu, equal)
        for mode in ("real", "fake", "symbolic"):
            assert make_fx(Branches(), tracing_mode=mode)(self.x, cu, equal)(self.x, cu, equal).item() == 1
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            assert torch.jit.trace(Branches(), (self.x, cu, equal), check_trace=False)(self.x, cu, equal).item() == 1

    @pytest.mark.parametrize("inside", [False, True])
    def test_fake_tensors_are_never_read_nor_remembered(self, memory, inside):
        mode = FakeTensorMode()
        with mode:
            cu, padded = torch.empty(3, dtype=torch.int32), torch.empty(3, dtype=torch.int32)
        with mode if inside else contextlib.nullcontext():
            assert ask(memory, cu, padded) is True
            assert ask(memory, cu, cu) is False
        assert memory.info() == CacheInfo(0, 0, 1, 0, 0, 256, 0)

    def test_no_fake_tensor_is_left_behind_by_a_pass_that_fakes(self, memory):
        cu, equal = offsets(0, 3, 8), offsets(0, 3, 8)
        with FakeTensorMode():
            assert ask(memory, cu, equal) is True
        assert ask(memory, cu, equal) is False
        with FakeTensorMode():
            assert ask(memory, cu, equal) is True  # as in every other pass of an export
            with mark_capturing():
                assert ask(memory, cu, equal) is True
        with mark_capturing():
            assert ask(memory, cu, equal) is False

    def test_meta_tensors_have_no_values(self, memory):
        cu, padded = torch.empty(3, dtype=torch.int32, device="meta"), torch.empty(3, dtype=torch.int32, device="meta")
        assert ask(memory, cu, padded) is True
        assert memory.info().entries == 0

    @pytest.mark.filterwarnings("ignore:.*torch.jit.script.*is deprecated:DeprecationWarning")  # torch's own, in jvp
    @pytest.mark.parametrize(
        "transform",
        [
            lambda f: torch.vmap(f),
            lambda f: torch.func.functionalize(f),
            lambda f: torch.func.grad(lambda x: f(x).sum()),
            lambda f: lambda x: torch.func.jvp(f, (x,), (x,))[0],
        ],
        ids=["vmap", "functionalize", "grad", "jvp"],
    )
    def test_transforms_of_functions_are_eager(self, memory, transform):
        cu, equal = offsets(0, 3, 8), offsets(0, 3, 8)
        seen = []

        def f(x: torch.Tensor) -> torch.Tensor:
            seen.append(ask(memory, cu, equal))
            return x * 2

        transform(f)(torch.ones(3))
        assert seen == [False] * len(seen) != []
        assert memory.info().entries == 1
        with mark_capturing():
            assert ask(memory, cu, equal) is False

    def test_offsets_that_a_transform_wraps_have_no_one_value(self, memory):
        seen = []

        def f(cu: torch.Tensor, padded: torch.Tensor) -> torch.Tensor:
            seen.append(ask(memory, cu, padded))
            return cu

        torch.vmap(f)(torch.zeros(2, 3, dtype=torch.int32), torch.zeros(2, 3, dtype=torch.int32))
        assert seen == [True]
        assert memory.info().entries == 0

    def test_somebody_elses_mode_changes_no_answer_and_sees_no_look(self, memory):
        cu, equal = offsets(0, 3, 8), offsets(0, 3, 8)
        with Everything() as everything:
            assert ask(memory, cu, equal) is False
            assert ask(memory, cu, equal) is False
        assert everything.names == []
        assert memory.info().hits == 1

    def test_selective_checkpointing_finds_the_same_operations_twice(self, memory):
        cu, equal = offsets(0, 3, 8), offsets(0, 3, 8)

        def keep_all(ctx, op, *args, **kwargs):
            return checkpoint.CheckpointPolicy.MUST_SAVE

        def block(x: torch.Tensor) -> torch.Tensor:
            return x.sin() if ask(memory, cu, equal) else x.cos()

        x = torch.ones(3, requires_grad=True)
        checkpoint.checkpoint(
            block,
            x,
            use_reentrant=False,
            context_fn=lambda: checkpoint.create_selective_checkpoint_contexts(keep_all),
        ).sum().backward()
        assert torch.equal(x.grad, -torch.ones(3).sin())

    @pytest.mark.parametrize("place", ["cpu", "meta"])
    def test_a_default_device_is_none_of_its_business(self, memory, place):
        cu, equal = offsets(0, 3, 8), offsets(0, 3, 8)
        with torch.device(place):
            assert ask(memory, cu, equal) is False
            assert ask_captured(memory, cu, equal) is False
        memory.verify_replay()


def test_both_sides_of_one_question_may_have_equal_pairs(memory):
    pairs: Sequence[torch.Tensor] = [offsets(0, 3, 8) for _ in range(4)]
    assert resolve_pad_between_seqs(*pairs, decisions=memory) is False
    assert memory.info().entries == 2


def test_the_worked_examples_hold():
    assert doctest.testmod(padding_decisions).failed == 0
