"""Row kernels: each does what a pencil does, with every dtype, shape and stride, and never waits for the device."""

from __future__ import annotations

import doctest
import importlib
import pickle
import sys

import hypothesis
import pytest
import torch
from hypothesis import strategies as st

from te_pkg.attention import PackedLayout, cache_info, clear_caches, kernels
from te_pkg.attention.capture import mark_capturing
from te_pkg.attention.errors import KernelUnavailableError
from te_pkg.attention.kernels import PaddingRows, RowMove, Slots, choose, cpu, row_index
from tests.attention.layouts import Rows, layout_of
from tests.attention.no_sync import SyncError, forbid_sync
from tests.attention.row_moves import (
    DTYPES,
    KERNELS,
    Move,
    expected_rows,
    kernel_named,
    moves,
    poisoned_memory,
    random_rows,
    same_bits,
    trailing_shapes,
)

CPU = torch.device("cpu")

pytestmark = pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental:UserWarning")


def move_of(lengths: tuple[int, ...], source: tuple[int, ...], target: tuple[int, ...], spare: int = 0) -> Move:
    here, there = Rows(lengths, source, sum(source) + spare), Rows(lengths, target, sum(target) + spare)
    return Move(layout_of(here), layout_of(there), here, there)


MANY = move_of((3, 0, 5, 1, 2), (4, 2, 5, 3, 2), (3, 0, 7, 1, 4), spare=3)


@pytest.mark.parametrize("name", KERNELS)
class TestMove:
    @hypothesis.given(move=moves(), trailing=trailing_shapes, known=st.booleans(), fill=st.sampled_from([0, 1.5, -0.0]))
    @hypothesis.settings(max_examples=60, deadline=None)
    def test_every_row_of_a_random_layout_is_where_a_pencil_puts_it(self, name, move, trailing, known, fill):
        kernel = kernel_named(name)
        x = random_rows(move.source.total_tokens, trailing, torch.float32)
        with poisoned_memory():
            out = kernel.move_rows(x, move.known if known else move.unknown, fill)
        padding = torch.tensor(fill).expand(move.target.total_tokens, *trailing)
        expected = expected_rows(x, move.source_rows, move.target_rows, 0)
        real = move.target.token_mask().view(-1, *[1] * len(trailing))
        assert same_bits(out, torch.where(real, expected, padding).contiguous())

    @pytest.mark.parametrize("dtype", DTYPES, ids=str)
    @pytest.mark.parametrize("known", [True, False])
    def test_every_dtype_is_moved_bit_for_bit(self, name, dtype, known):
        kernel = kernel_named(name)
        for trailing in ((), (3,), (2, 8), (256,)):
            x = random_rows(MANY.source.total_tokens, trailing, dtype)
            out = kernel.move_rows(x, MANY.known if known else MANY.unknown, 0)
            assert same_bits(out, expected_rows(x, MANY.source_rows, MANY.target_rows, 0))

    @pytest.mark.parametrize(
        ("dtype", "fill"),
        [
            (torch.bool, True),
            (torch.int8, -7),
            (torch.int64, 2**40 + 1),
            (torch.bfloat16, float("-inf")),
            (torch.float16, float("nan")),
            (torch.float64, 0.1),
            (torch.complex64, 1 - 2j),
            (torch.complex128, complex(-0.0, 3)),
            (torch.float8_e5m2, 1.5),
        ],
        ids=str,
    )
    @pytest.mark.parametrize("known", [True, False])
    def test_a_fill_of_any_dtype(self, name, dtype, fill, known):
        kernel = kernel_named(name)
        for trailing in ((), (5,), (64,)):
            x = random_rows(MANY.source.total_tokens, trailing, dtype)
            out = kernel.move_rows(x, MANY.known if known else MANY.unknown, fill)
            assert same_bits(out, expected_rows(x, MANY.source_rows, MANY.target_rows, fill))

    @pytest.mark.parametrize("known", [True, False])
    def test_strides_are_followed_on_both_sides(self, name, known):
        kernel = kernel_named(name)
        move = MANY.known if known else MANY.unknown
        rows, target_rows = MANY.source.total_tokens, MANY.target.total_tokens
        sources = {
            "transposed": torch.randn(4, 6, rows).permute(2, 1, 0),
            "heads of one projection": torch.randn(rows, 6, 3, 4)[:, :, 1],
            "every other row": torch.randn(2 * rows, 6, 4)[::2],
            "one row for all": torch.randn(1, 6, 4).expand(rows, 6, 4),
            "scattered": torch.randn(rows, 4, 2, 3, 2)[:, :, 0, :, 0].transpose(1, 2).repeat(1, 2, 1),
            "odd address": torch.randn(rows * 24 + 1)[1:].view(rows, 6, 4),
        }
        targets = {
            "contiguous": torch.empty(target_rows, 6, 4),
            "transposed": torch.empty(4, 6, target_rows).permute(2, 1, 0),
            "heads of one projection": torch.empty(target_rows, 6, 3, 4)[:, :, 1],
            "odd address": torch.empty(target_rows * 24 + 1)[1:].view(target_rows, 6, 4),
        }
        for what, x in sources.items():
            expected = expected_rows(x.contiguous(), MANY.source_rows, MANY.target_rows, 0)
            for where, out in targets.items():
                out.fill_(float("nan"))
                assert kernel.move_rows(x, move, 0, out) is out
                assert torch.equal(out, expected), (what, where)

    @pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
    def test_offsets_of_either_width(self, name, dtype):
        move = MANY.unknown
        source, target = (Slots(slots.offsets.to(dtype), slots.rows) for slots in (move.source, move.target))
        x = torch.randn(MANY.source.total_tokens, 3)
        out = kernel_named(name).move_rows(x, RowMove(move.cu_seqlens.to(dtype), source, target), 0)
        assert torch.equal(out, expected_rows(x, MANY.source_rows, MANY.target_rows, 0))

    @pytest.mark.parametrize("known", [True, False])
    @pytest.mark.parametrize(
        "move",
        [
            move_of((), (), ()),
            move_of((), (), (), spare=4),
            move_of((0, 0), (0, 0), (0, 3)),
            move_of((0, 0), (2, 0), (0, 0)),
            move_of((5,), (5,), (5,)),
            move_of((5,), (5,), (6,)),
            move_of((700, 1), (701, 1), (700, 800)),
        ],
        ids=["nothing", "capacity alone", "from no row", "to no row", "one sequence", "one row of padding", "long"],
    )
    def test_sizes_at_the_edge(self, name, move, known):
        for trailing in ((), (4,), (0,)):
            x = torch.randn(move.source.total_tokens, *trailing)
            with poisoned_memory():
                out = kernel_named(name).move_rows(x, move.known if known else move.unknown, 0)
            assert torch.equal(out, expected_rows(x, move.source_rows, move.target_rows, 0))

    def test_a_row_longer_than_any_tile(self, name):
        x = torch.randn(MANY.source.total_tokens, 5003)
        out = kernel_named(name).move_rows(x, MANY.unknown, 0)
        assert torch.equal(out, expected_rows(x, MANY.source_rows, MANY.target_rows, 0))


@pytest.mark.parametrize("name", KERNELS)
class TestFill:
    @hypothesis.given(move=moves(), trailing=trailing_shapes, known=st.booleans(), fill=st.sampled_from([0, 2.5]))
    @hypothesis.settings(max_examples=60, deadline=None)
    def test_padding_rows_are_filled_and_no_other_changes(self, name, move, trailing, known, fill):
        x = random_rows(move.source.total_tokens, trailing, torch.float32)
        before = x.clone()
        kernel_named(name).fill_padding_(x, move.padding(known=known), fill)
        rows = move.source_rows
        assert same_bits(x[rows.real_rows], before[rows.real_rows])
        assert torch.equal(x[rows.padding_rows], torch.full_like(x[rows.padding_rows], fill))

    @pytest.mark.parametrize("dtype", DTYPES, ids=str)
    @pytest.mark.parametrize("known", [True, False])
    def test_zero_is_no_bit_in_every_dtype(self, name, dtype, known):
        for trailing in ((), (3,), (64,)):
            x = random_rows(MANY.source.total_tokens, trailing, dtype)
            before = x.clone()
            kernel_named(name).fill_padding_(x, MANY.padding(known=known), 0)
            assert same_bits(x, expected_rows(before, MANY.source_rows, MANY.source_rows, 0))

    @pytest.mark.parametrize("known", [True, False])
    def test_strides_are_followed(self, name, known):
        rows = MANY.source.total_tokens
        wholes = [torch.randn(4, 6, rows), torch.randn(rows, 6, 3, 4), torch.randn(rows, 4, 2, 6)]
        for whole, view in zip(
            wholes, (lambda w: w.permute(2, 1, 0), lambda w: w[:, :, 1], lambda w: w[:, :, 0, ::2]), strict=True
        ):
            expected = whole.clone()
            view(expected)[MANY.source_rows.padding_rows] = 0
            kernel_named(name).fill_padding_(view(whole), MANY.padding(known=known), 0)
            assert torch.equal(whole, expected)

    def test_the_change_is_counted(self, name):
        for known in (True, False):
            x = torch.randn(MANY.source.total_tokens, 2)
            kernel_named(name).fill_padding_(x, MANY.padding(known=known), 0)
            assert x._version > 0


@pytest.mark.parametrize("name", ["reference", "cpu"])
def test_memory_that_is_not_aligned_for_its_elements(name):
    rows = MANY.source.total_tokens
    memory = bytearray(random_rows(rows * 3 * 8 + 1, (), torch.uint8).tolist())
    x = torch.frombuffer(memory, dtype=torch.float64, offset=1).view(rows, 3)
    for move in (MANY.known, MANY.unknown):
        out = kernel_named(name).move_rows(x, move, 0.1)
        assert same_bits(out, expected_rows(x, MANY.source_rows, MANY.target_rows, 0.1))


def test_deterministic_algorithms_are_enough():
    x = torch.randn(MANY.source.total_tokens, 256)
    torch.use_deterministic_algorithms(True)
    try:
        for move in (MANY.known, MANY.known.back().back(), MANY.unknown):
            assert torch.equal(cpu.move_rows(x, move, 0), expected_rows(x, MANY.source_rows, MANY.target_rows, 0))
    finally:
        torch.use_deterministic_algorithms(False)


def test_many_gaps_are_filled_by_index():
    rows = Rows((1,) * 50, (3,) * 50, 151)
    layout = layout_of(rows)
    slots = Slots(layout.cu_seqlens_padded, 151, layout.slot_offsets)
    for fill in (0, 2):
        x = torch.full((151, 4), float("nan"))
        x[rows.real_rows] = 1
        cpu.fill_padding_(x, PaddingRows(layout.cu_seqlens, slots, layout.lengths, 50), fill)
        assert x[rows.padding_rows].unique().tolist() == [fill]
        assert x[rows.real_rows].unique().tolist() == [1]


@pytest.mark.parametrize("name", ["reference", "cpu", "triton"])
@hypothesis.given(
    cu=st.lists(st.integers(0, 12), min_size=3, max_size=3),
    source=st.lists(st.integers(0, 12), min_size=3, max_size=3),
)
@hypothesis.settings(max_examples=30, deadline=None)
def test_wrong_offsets_on_the_device_do_not_leave_the_buffers(name, cu, source):
    # A graph may be replayed with offsets that nobody checked.
    cu, source = (torch.tensor([0, *sorted(offsets)]) for offsets in (cu, source))
    whole = torch.full((24, 2), float("nan"))
    whole[8:16] = torch.arange(16).view(8, 2)
    move = RowMove(cu, Slots(source, 8), Slots(torch.tensor([0, 2, 4, 7]), 9))
    out = kernel_named(name).move_rows(whole[8:16], move, -1)
    assert torch.equal(out, kernel_named("reference").move_rows(whole[8:16], move, -1))
    assert not out.isnan().any()
    before_the_first = move._replace(source=Slots(source - 5, 8))
    assert not kernel_named(name).move_rows(whole[8:16], before_the_first, -1).isnan().any()


@pytest.mark.parametrize("name", ["cpu", "triton"])
def test_nothing_is_read_where_the_host_knows_nothing(name, monkeypatch):
    kernel = kernel_named(name)
    x = torch.randn(MANY.source.total_tokens, 4)
    unknown, padding = MANY.unknown, MANY.padding(known=False)
    if name == "triton":
        # The interpreter reads what a GPU would read. What is watched is everything around the launch.
        for launched in ("_move_kernel", "_fill_kernel"):
            monkeypatch.setattr(kernel, launched, {(grid,): lambda *_, **__: None for grid in range(99)})
    with mark_capturing(), forbid_sync(uploads=False):
        for fill in (0, 1.5):
            kernel.move_rows(x, unknown, fill)
            kernel.fill_padding_(x, padding, fill)


def test_the_reference_reads_and_says_so():
    with forbid_sync(), pytest.raises(SyncError):
        kernel_named("reference").move_rows(torch.randn(MANY.source.total_tokens, 4), MANY.unknown, 0)


def test_on_other_devices_rows_find_their_slots_by_a_search(monkeypatch):
    monkeypatch.setattr(torch.Tensor, "is_cpu", False)
    x = torch.randn(MANY.source.total_tokens, 200)
    for move in (MANY.unknown, MANY.known):
        out = cpu.move_rows(x, move, 0)
        assert torch.equal(out, expected_rows(x, MANY.source_rows, MANY.target_rows, 0))


class TestRowIndex:
    @hypothesis.given(move=moves())
    @hypothesis.settings(deadline=None)
    def test_real_and_padding_rows_are_those_of_the_model(self, move):
        layout, rows = move.source, move.source_rows
        assert row_index.real_rows(layout.lengths, layout.slot_offsets, layout.real_tokens, CPU).tolist() == (
            rows.real_rows
        )
        assert row_index.padding_rows(layout.lengths, layout.slot_offsets, layout.total_tokens, CPU).tolist() == (
            rows.padding_rows
        )

    @hypothesis.given(move=moves())
    @hypothesis.settings(deadline=None)
    def test_pieces_are_real_and_padding_in_turn_and_none_is_empty_but_the_first(self, move):
        layout, rows = move.source, move.source_rows
        pieces = row_index.pieces_of(layout.lengths, layout.slot_offsets, layout.total_tokens)
        drawn = [number % 2 == 0 for number, size in enumerate(pieces) for _ in range(size)]
        assert drawn == [bool(real) for real in rows.token_mask]
        assert all(pieces[1:])

    def test_small_ones_are_kept_large_ones_are_not(self):
        clear_caches()
        small = row_index.real_rows((5, 3), (0, 6, 9), 8, CPU)
        assert row_index.real_rows((5, 3), (0, 6, 9), 8, CPU) is small
        row_index.real_rows((1 << 16, 1), (0, 1 << 16, (1 << 16) + 1), (1 << 16) + 1, CPU)
        assert cache_info()["real_rows"].entries == 1


class TestChoice:
    @pytest.fixture(autouse=True)
    def _without_a_choice_in_the_environment(self, monkeypatch):
        monkeypatch.delenv("TE_PKG_KERNELS", raising=False)

    def test_the_cpu_takes_the_cpu_kernel(self):
        assert choose(CPU) is cpu
        assert choose(CPU, "") is cpu

    @pytest.mark.parametrize("has_triton", [True, False])
    def test_cuda_takes_triton_where_it_is(self, monkeypatch, has_triton):
        monkeypatch.setattr(kernels, "_has_triton", lambda: has_triton)
        monkeypatch.setattr(kernels, "_load", lambda name: name)
        assert choose(torch.device("cuda", 0)) == ("triton" if has_triton else "cpu")

    def test_an_argument_goes_before_the_environment(self, monkeypatch):
        monkeypatch.setenv("TE_PKG_KERNELS", "reference")
        assert choose(CPU) is kernel_named("reference")
        assert choose(CPU, "cpu") is cpu

    @pytest.mark.parametrize("name", ["", "cuda", "Triton"])
    def test_an_unknown_name_is_refused_with_those_that_exist(self, monkeypatch, name):
        monkeypatch.setenv("TE_PKG_KERNELS", name or "typo")
        with pytest.raises(KernelUnavailableError, match="'reference', 'cpu', 'triton'") as caught:
            choose(CPU, name)
        assert caught.value.kernel == (name or "typo")
        assert ("environment variable TE_PKG_KERNELS" in str(caught.value)) == (not name)
        assert isinstance(caught.value, RuntimeError)
        assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)

    def test_without_triton_the_reason_says_how_to_get_it(self, monkeypatch):
        monkeypatch.setattr(kernels, "_has_triton", lambda: False)
        with pytest.raises(KernelUnavailableError, match=r"not installed; hint: pip install 'te-pkg\[triton\]'"):
            choose(CPU, "triton")

    def test_triton_on_the_cpu_says_how(self):
        pytest.importorskip("triton", reason="needs the extra 'triton'")
        if importlib.import_module("te_pkg.attention.kernels.triton_rows").why_unavailable(CPU) is None:
            pytest.skip("this process runs Triton under its interpreter")
        with pytest.raises(KernelUnavailableError, match="the tensors are on 'cpu'; hint: with TRITON_INTERPRET=1"):
            choose(CPU, "triton")
        assert kernel_named("triton").why_unavailable(CPU) is None

    def test_the_reference_is_not_for_captures(self):
        with mark_capturing(), pytest.raises(KernelUnavailableError, match="capture under way forbids"):
            choose(CPU, "reference")

    def test_triton_is_not_imported_before_it_is_wanted(self):
        assert "te_pkg.attention.kernels.triton_rows" not in vars(kernels)
        source = importlib.util.find_spec("te_pkg.attention.kernels").origin
        with open(source) as file:
            assert "import triton" not in file.read()


def test_the_worked_examples_hold():
    for module in (
        kernels,
        cpu,
        kernel_named("reference"),
        row_index,
        sys.modules["te_pkg.attention.kernels.host"],
    ):
        assert doctest.testmod(module).failed == 0


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")
@pytest.mark.parametrize("name", ["cpu", "triton"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_on_a_gpu_each_kernel_does_what_the_reference_does(name, dtype):
    kernel = choose(torch.device("cuda"), name)
    for trailing in ((), (3,), (2, 8), (5003,)):
        x = random_rows(MANY.source.total_tokens, trailing, dtype)
        on_gpu = Move(MANY.source.to("cuda"), MANY.target.to("cuda"), MANY.source_rows, MANY.target_rows)
        for fill in (0, 1) if dtype != torch.float4_e2m1fn_x2 else (0,):
            expected = expected_rows(x, MANY.source_rows, MANY.target_rows, fill)
            for move in (on_gpu.unknown, on_gpu.known):
                assert same_bits(kernel.move_rows(x.cuda(), move, fill).cpu(), expected)
        filled = x.cuda()
        kernel.fill_padding_(filled, on_gpu.padding(known=False), 0)
        assert same_bits(filled.cpu(), expected_rows(x, MANY.source_rows, MANY.source_rows, 0))


def test_layouts_of_batches_have_offsets_only_when_they_are_wanted():
    made = []
    slots = Slots(lambda: made.append(1) or torch.tensor([0, 4]), 4, range(0, 5, 4))
    assert slots.given is None
    assert not made
    assert slots.offsets is slots.offsets
    assert made == [1]


def test_the_way_back_swaps_source_and_target():
    move = MANY.known
    assert (move.back().source, move.back().target) == (move.target, move.source)
    assert move.back().lengths == PackedLayout.from_lengths([3, 0, 5, 1, 2]).lengths
