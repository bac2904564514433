"""What is no buffer and no layout is refused in the package's own words, before anything is written."""

from __future__ import annotations

import doctest
import sys
from itertools import product

import hypothesis
import pytest
import torch
from hypothesis import strategies as st

from te_pkg.attention import (
    PackedLayout,
    pack,
    pad_input,
    pad_rows,
    relayout,
    unpack,
    unpad_input,
    unpad_rows,
    zero_padding,
    zero_padding_,
)
from te_pkg.attention.buffer_checks import overlap_faults
from te_pkg.attention.errors import ArgumentTypeError, AttentionError, LayoutError

LAYOUT = PackedLayout.from_lengths([1, 2], pad_to_multiple=2)
CALLS = {
    "relayout": lambda x, layout: relayout(x, layout, LAYOUT),
    "relayout, target": lambda x, layout: relayout(x, LAYOUT, layout),
    "relayout, out": lambda x, layout: relayout(torch.zeros(4, 4), layout, layout, out=x),
    "pack": pack,
    "unpack": unpack,
    "zero_padding": zero_padding,
    "zero_padding_": zero_padding_,
}
OTHER_CALLS = {
    "pad_rows": lambda x: pad_rows(x, [4], 8),
    "unpad_rows": lambda x: unpad_rows(x, [3], 4),
    "unpad_input": lambda x: unpad_input(x, torch.ones(4, 4).bool()),
    "unpad_input, mask": lambda x: unpad_input(torch.ones(4, 4), x),
    "pad_input": lambda x: pad_input(x, torch.arange(4), 4, 4),
    "pad_input, indices": lambda x: pad_input(torch.ones(4), x, 4, 4),
}


def tensors_of_other_kinds() -> dict[str, torch.Tensor]:
    dense = torch.ones(4, 4)
    return {
        "torch.sparse_coo": dense.to_sparse(),
        "torch.sparse_csr": dense.to_sparse_csr(),
        "torch._mkldnn": dense.to_mkldnn(),
        "quantized": torch.quantize_per_tensor(dense, 0.1, 0, torch.qint8),
        "nested": torch.nested.nested_tensor([torch.ones(4)] * 4),
    }


@pytest.mark.parametrize("layout", [None, [1, 2], torch.tensor([0, 1, 3])], ids=["None", "a list", "a tensor"])
@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_what_is_no_layout_is_named(call, layout):
    with pytest.raises(ArgumentTypeError, match=r"^(layout|source|target) must be a PackedLayout, got .*; hint: "):
        call(torch.ones(4, 4), layout)


@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support is in beta state:UserWarning")
@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors:UserWarning")
@pytest.mark.filterwarnings("ignore:.*quantized tensor:UserWarning")
@pytest.mark.filterwarnings("ignore:.*torch.ao.quantization is deprecated:DeprecationWarning")
@pytest.mark.parametrize("call", [*CALLS.values(), *OTHER_CALLS.values()], ids=[*CALLS, *OTHER_CALLS])
def test_a_tensor_without_strides_is_refused(call):
    for kind, x in tensors_of_other_kinds().items():
        arguments = (x,) if call in OTHER_CALLS.values() else (x, LAYOUT)
        with pytest.raises(
            ArgumentTypeError, match=rf"must be a dense tensor \(torch.strided\), got one that is {kind}$"
        ):
            call(*arguments)


@hypothesis.given(
    sizes=st.lists(st.integers(0, 3), min_size=1, max_size=3),
    strides=st.lists(st.integers(0, 9), min_size=3, max_size=3),
)
def test_two_elements_in_one_place_are_always_found(sizes, strides):
    strides = strides[: len(sizes)]
    x = torch.zeros(64).as_strided(sizes, strides)
    places = [
        sum(i * stride for i, stride in zip(index, strides, strict=True)) for index in product(*map(range, sizes))
    ]
    if len(set(places)) < len(places):
        assert overlap_faults("x", x)


@pytest.mark.parametrize(
    "view",
    [
        torch.zeros(3, 4).T,
        torch.zeros(6, 4, 2)[::2, 1:, 1],
        torch.zeros(3, 4)[:, :1].expand(3, 1),
        torch.zeros(0, 4).expand(5, 0, 4),
        torch.zeros(2, 3, 4).permute(2, 0, 1),
    ],
)
def test_views_of_memory_of_their_own_are_none(view):
    assert overlap_faults("x", view) == []


@pytest.mark.parametrize("kernel", [0, False, [], ["cpu"], b"cpu", "Cpu"])
@pytest.mark.parametrize("call", [zero_padding, zero_padding_, lambda x, layout, **k: relayout(x, layout, layout, **k)])
@pytest.mark.parametrize("compiled", [True, False])
def test_a_kernel_that_is_none_is_refused_also_where_none_runs_yet(call, kernel, compiled):
    function = lambda x: call(x, LAYOUT, kernel=kernel)  # noqa: E731
    if compiled:
        function = torch.compile(function, backend="eager")
    with pytest.raises(AttentionError, match="there is no such kernel, expected one of"):
        function(torch.ones(4))
    torch._dynamo.reset()


class TestBatchesBeyondInt32:
    @pytest.mark.parametrize("longest", [2**31 - 1, 2**40, 10**30])
    def test_are_refused_with_the_numbers(self, longest):
        with pytest.raises(OverflowError, match=rf"^{2 * longest} is beyond int32: 2 sequences of {longest} rows"):
            unpack(torch.ones(4), LAYOUT, longest)

    def test_on_the_way_in_too(self):
        with pytest.raises(OverflowError, match="is beyond int32"):
            pack(torch.zeros(1).expand(2, 2**31 - 1), LAYOUT)


class TestSplits:
    def test_may_be_whatever_gives_numbers_once(self):
        assert pad_rows(torch.ones(4), iter([3, 1]), 2)[1] == [4, 2]
        assert unpad_rows(torch.ones(6), (n for n in (3, 1)), 2).tolist() == [1] * 4

    def test_come_back_as_plain_numbers(self):
        assert list(map(type, pad_rows(torch.ones(4), [torch.tensor(3), torch.tensor(1)], 2)[1])) == [int, int]

    def test_are_called_splits(self):
        with pytest.raises(ArgumentTypeError, match=r"^splits\[1\] must be an integer, got 'a'$"):
            pad_rows(torch.ones(4), [3, "a"], 2)
        with pytest.raises(ArgumentTypeError, match=r"^splits must be numbers of rows"):
            unpad_rows(torch.ones(4), None, 2)
        with pytest.raises(LayoutError, match=r"^splits\[0\] is -3, expected at least 0$"):
            pad_rows(torch.ones(4), [-3], 2)
        with pytest.raises(LayoutError, match=r"^the slots of splits end at row 1099511627776, beyond int32"):
            pad_rows(torch.ones(4), [3], 2**40)


def test_the_worked_examples_hold():
    assert doctest.testmod(sys.modules["te_pkg.attention.buffer_checks"]).failed == 0
