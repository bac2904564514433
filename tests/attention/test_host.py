"""The usual case is told from every other one: where it is claimed, nothing records, intercepts or captures a call."""

from __future__ import annotations

import doctest
import sys

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.autograd import forward_ad
from torch.overrides import TorchFunctionMode

from te_pkg.attention import PackedLayout, clear_caches, kernels, pack, zero_padding_
from te_pkg.attention.buffer_checks import is_room
from te_pkg.attention.capture import mark_capturing
from te_pkg.attention.kernels import host, row_index
from te_pkg.attention.kernels.host import is_common
from tests.attention.layouts import without_host_facts
from tests.attention.operations import Operations

LAYOUT = PackedLayout.from_lengths([1, 2], pad_to_multiple=2)


class Subclass(torch.Tensor):
    pass


@pytest.mark.parametrize("shape", [(), (0,), (4,), (4, 3, 2)])
def test_dense_memory_is_the_usual_case_with_and_without_inference_mode(shape):
    x = torch.zeros(shape)
    with torch.inference_mode():
        made = torch.zeros(shape)
        assert is_common(x, LAYOUT)
        assert is_common(made, LAYOUT)
    assert is_common(x, LAYOUT)
    assert is_common(made, LAYOUT)
    assert is_common(torch.nn.Parameter(x, requires_grad=False), LAYOUT)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "make",
    [
        lambda: None,
        lambda: [1.0, 2.0],
        lambda: torch.zeros(4, 4, requires_grad=True),
        lambda: torch.zeros(4, 4).as_subclass(Subclass),
        lambda: torch.zeros(4, 4, device="meta"),
        lambda: torch.zeros(4, 4, dtype=torch.complex64).conj(),
        lambda: torch.zeros(4, 4, dtype=torch.complex64).conj().imag,
        lambda: torch.zeros(4, 4).to_sparse(),
        lambda: torch.zeros(4, 4).to_sparse_csr(),
        lambda: torch.zeros(4, 4).to_mkldnn(),
        lambda: torch.quantize_per_tensor(torch.zeros(4, 4), 0.1, 0, torch.qint8),
        lambda: torch.nested.nested_tensor([torch.zeros(4)] * 4),
    ],
    ids=[
        "nothing",
        "list",
        "gradient",
        "subclass",
        "meta",
        "conjugated",
        "negated",
        "coo",
        "csr",
        "mkldnn",
        "quantized",
        "nested",
    ],
)
def test_what_is_no_plain_memory_is_not(make):
    assert not is_common(make(), LAYOUT)


@pytest.mark.parametrize("layout", [None, [1, 2], without_host_facts(LAYOUT), LAYOUT.to("meta")], ids=repr)
def test_a_layout_that_the_host_does_not_know_or_that_is_elsewhere_is_not(layout):
    assert not is_common(torch.zeros(4), layout)


@pytest.mark.parametrize(
    "context", [mark_capturing, Operations, FakeTensorMode, TorchFunctionMode, forward_ad.dual_level]
)
def test_where_somebody_watches_nothing_is(context):
    x = torch.zeros(4)
    with context():
        assert not is_common(x, LAYOUT)
    assert is_common(x, LAYOUT)


def test_where_functorch_transforms_nothing_is():
    seen = []
    torch.vmap(lambda x: seen.append(is_common(x, LAYOUT)) or x)(torch.zeros(2, 4))
    assert seen == [False]


@pytest.mark.parametrize(
    "out",
    [
        torch.zeros(3, 2, dtype=torch.float64),
        torch.zeros(3, 3),
        torch.zeros(2, 3).t(),
        torch.zeros(3, 2, requires_grad=True),
        torch.zeros(3, 2, device="meta"),
        None,
    ],
)
def test_no_room_is_claimed_where_a_result_does_not_fit(out):
    assert not is_room(out, torch.zeros(4, 2), (3, 2))


@pytest.mark.parametrize("start", range(0, 17, 2))
def test_room_shares_no_element_with_what_is_read(start):
    memory = torch.zeros(24)
    x, out = memory[8:16].view(4, 2), memory[start : start + 6].view(3, 2)
    assert is_room(out, x, (3, 2)) == (start + 6 <= 8 or start >= 16)


def test_an_index_that_somebody_changed_is_not_used_again():
    clear_caches()
    x = torch.ones(4, 256)
    zero_padding_(x, LAYOUT)
    index = row_index.padding_rows(LAYOUT.lengths, LAYOUT.slot_offsets, 4, x.device)
    index.zero_()
    x = torch.ones(4, 256)
    cleared = row_index.padding_rows(LAYOUT.lengths, LAYOUT.slot_offsets, 4, x.device)
    assert cleared.tolist() == [1]


@pytest.mark.parametrize("trailing", [(), (3,), (4, 64)])
@pytest.mark.parametrize("layout", [LAYOUT, PackedLayout.from_lengths([1, 2])])
def test_both_ways_through_pack_come_to_the_same(monkeypatch, layout, trailing):
    x = torch.randn(2, 3, *trailing)
    out, other = (torch.full((layout.total_tokens, *trailing), float("nan")) for _ in range(2))
    assert pack(x, layout, out=out) is out
    assert out._version > 0
    fresh = pack(x, layout)
    monkeypatch.setattr(sys.modules["te_pkg.attention.relayout"], "is_common", lambda *_: False)
    assert torch.equal(pack(x, layout, out=other), out)
    assert torch.equal(fresh, out)


@pytest.mark.parametrize("name", ["reference", "cpu"])
def test_the_environment_is_asked_in_the_usual_case_too(monkeypatch, name):
    asked = []
    load = kernels._load
    monkeypatch.setattr(kernels, "_load", lambda kernel: asked.append(kernel) or load(kernel))
    monkeypatch.setenv("TE_PKG_KERNELS", name)
    assert zero_padding_(torch.ones(4), LAYOUT).tolist() == [1, 0, 1, 1]
    assert pack(torch.ones(2, 2), LAYOUT).tolist() == [1, 0, 1, 1]
    assert set(asked) == {name}


def test_the_worked_examples_hold():
    assert doctest.testmod(host).failed == 0
