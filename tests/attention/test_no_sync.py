"""The watcher is worth its word: what would wait for a device raises, what would not does not."""

from __future__ import annotations

import pytest
import torch

from tests.attention.no_sync import SyncError, forbid_sync

X = torch.arange(6.0)
MASK = X > 2


@torch.library.custom_op("te_pkg_tests::reads_a_value", mutates_args=())
def reads_a_value(x: torch.Tensor) -> torch.Tensor:
    return x * x.sum().item()


@torch.library.custom_op("te_pkg_tests::has_a_size_from_data", mutates_args=())
def has_a_size_from_data(x: torch.Tensor) -> torch.Tensor:
    return torch.ops.aten.nonzero(x).to(x.dtype)


SYNCS = {
    "item": lambda: X[0].item(),
    "int": lambda: int(X[0]),
    "float": lambda: float(X[0]),
    "bool": lambda: bool(X[0]),
    "if": lambda: 1 if MASK[0] else 2,
    "index of a list": lambda: [1, 2, 3, 4][MASK.sum()],
    "slice": lambda: X[: MASK.sum()],
    "range": lambda: range(MASK.sum()),
    "tolist": lambda: X.tolist(),
    "numpy": lambda: X.numpy(),
    "cpu": lambda: X.cpu(),
    "in": lambda: 3 in X,
    "nonzero": lambda: X.nonzero(),
    "torch.nonzero": lambda: torch.nonzero(X),
    "argwhere": lambda: torch.argwhere(X),
    "where": lambda: torch.where(MASK),
    "index by bools": lambda: X[MASK],
    "set by bools": lambda: X.clone().__setitem__(MASK, 0.0),
    "index by bools among others": lambda: X.view(2, 3)[:, MASK[:3]],
    "masked_select": lambda: X.masked_select(MASK),
    "equal": lambda: torch.equal(X, X),
    "allclose": lambda: torch.allclose(X, X),
    "unique": lambda: torch.unique(X),
    "bincount": lambda: torch.bincount(torch.arange(3)),
    "repeat_interleave": lambda: X.repeat_interleave(torch.arange(6)),
    "repeat_interleave of repeats": lambda: torch.repeat_interleave(torch.arange(6)),
    "in a custom op": lambda: reads_a_value(X),
}
# Nobody but a dispatch mode can see these.
DISPATCHED = {
    "size from a tensor": lambda: torch.arange(MASK.sum()),
    "an overload": lambda: torch.ops.aten.nonzero(X),
    "an overload in a custom op": lambda: has_a_size_from_data(X),
    "_local_scalar_dense": lambda: torch.ops.aten._local_scalar_dense(X[0]),
}
NO_SYNCS = {
    "arithmetic": lambda: X * 2 + X.sum(),
    "masked_fill": lambda: X.masked_fill(MASK, 0),
    "where of three": lambda: torch.where(MASK, X, 0),
    "index by rows": lambda: X[torch.arange(3)],
    "index by numbers": lambda: (X[1:3], X[0], X[..., 2], X[None]),
    "set a number": lambda: X.clone().__setitem__(0, 1.0),
    "index_select": lambda: X.index_select(0, torch.arange(3)),
    "searchsorted": lambda: torch.searchsorted(X, X, right=True),
    "repeat_interleave with a size": lambda: X.repeat_interleave(torch.arange(6), output_size=15),
    "repeat_interleave of a number": lambda: X.repeat_interleave(2),
    "to another dtype": lambda: X.to(torch.int32).to("cpu"),
    "to meta": lambda: X.to("meta"),
    "sizes": lambda: (X.shape, len(X), X.numel(), X.data_ptr(), X.is_contiguous()),
}


@pytest.mark.parametrize("call", [*SYNCS.values(), *DISPATCHED.values()], ids=[*SYNCS, *DISPATCHED])
def test_a_sync_is_seen(call):
    with forbid_sync(), pytest.raises(SyncError):
        call()


@pytest.mark.parametrize("call", SYNCS.values(), ids=SYNCS)
def test_a_sync_is_seen_without_a_mode(call):
    with forbid_sync(mode=False), pytest.raises(SyncError):
        call()


@pytest.mark.parametrize("mode", [True, False])
@pytest.mark.parametrize("call", NO_SYNCS.values(), ids=NO_SYNCS)
def test_what_does_not_sync_is_let_through(call, mode):
    with forbid_sync(mode=mode):
        call()


@pytest.mark.parametrize("call", [lambda: torch.tensor([1, 2]), lambda: torch.as_tensor([1, 2])])
def test_data_of_the_host_is_let_through_unless_it_is_forbidden(call):
    with forbid_sync():
        call()
    for mode in (True, False):
        with forbid_sync(uploads=False, mode=mode), pytest.raises(SyncError):
            call()


def test_a_mode_is_active_only_where_it_is_wanted():
    with forbid_sync(mode=False):
        assert torch._C._len_torch_dispatch_stack() == 0
    with forbid_sync():
        assert torch._C._len_torch_dispatch_stack() == 1


def test_all_is_as_it_was_afterwards():
    before = vars(torch.Tensor).copy(), vars(torch).copy()
    with pytest.raises(SyncError), forbid_sync():
        X.tolist()
    assert (vars(torch.Tensor).copy(), vars(torch).copy()) == before
    assert X[MASK].tolist() == [3, 4, 5]
    assert reads_a_value(X).tolist() == (X * 15).tolist()


def test_backward_is_watched_too():
    class Reads(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.clone()

        @staticmethod
        def backward(ctx, grad):
            return grad * grad.sum().item()

    x = torch.ones(3, requires_grad=True)
    with forbid_sync(), pytest.raises(SyncError):
        Reads.apply(x).sum().backward()
