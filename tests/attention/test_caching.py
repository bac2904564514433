"""The cache policy: what is kept, for whom it is right, and when nothing is kept."""

from __future__ import annotations

import copy
import doctest
import itertools
import pickle
import types
import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterator

import hypothesis
import pytest
import torch
from hypothesis import strategies as st
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from te_pkg.attention import caching, clear_caches
from te_pkg.attention.caching import CacheInfo, TensorCache, is_tracing, resolve_device
from te_pkg.attention.capture import mark_capturing

_numbers = itertools.count()


def full(n: int, *, device: torch.device | str | None) -> torch.Tensor:
    return torch.full((3,), n, dtype=torch.int32, device=device)


def new_cache(make: Callable[..., torch.Tensor] = full, *, max_entries: int = 8) -> TensorCache:
    return TensorCache(f"test {next(_numbers)}", make, max_entries=max_entries)


@pytest.fixture
def cache() -> TensorCache:
    return new_cache()


@pytest.fixture(autouse=True)
def _no_tensor_is_left_by_another_test() -> Iterator[None]:
    clear_caches()
    yield
    torch._dynamo.reset()


class TestHit:
    def test_returns_the_same_tensor(self, cache):
        first = cache.get((5,), "cpu")
        assert first.tolist() == [5, 5, 5]
        assert cache.get((5,), "cpu") is first

    def test_another_key_is_another_tensor(self, cache):
        assert cache.get((5,), "cpu").tolist() != cache.get((6,), "cpu").tolist()

    def test_another_device_is_another_tensor(self, cache):
        assert cache.get((5,), "cpu").device.type == "cpu"
        assert cache.get((5,), "meta").device.type == "meta"
        assert cache.get((5,), "cpu").device.type == "cpu"
        assert cache.info().entries == 2

    def test_counts_add_up(self, cache):
        for n in (1, 2, 1, 1):
            cache.get((n,))
        assert cache.info() == CacheInfo(
            hits=2, misses=2, bypasses=0, replaced=0, entries=2, max_entries=8, bytes=2 * 3 * 4
        )

    def test_copies_belong_to_whoever_made_them(self, cache):
        kept = cache.get((5,))
        for twin in (copy.copy(kept).clone(), copy.deepcopy(kept), pickle.loads(pickle.dumps(kept))):
            twin.zero_()
        assert cache.get((5,)) is kept
        assert kept.tolist() == [5, 5, 5]


class TestInferenceMode:
    def test_what_a_teacher_made_first_serves_a_student(self, cache):
        with torch.inference_mode():
            kept = cache.get((1,))
        assert not kept.is_inference()
        weight = torch.randn(4, 2, requires_grad=True)
        weight.index_select(0, cache.get((1,))).sum().backward()
        assert weight.grad.tolist() == [[0, 0], [3, 3], [0, 0], [0, 0]]

    def test_the_same_without_the_cache_fails(self):
        with torch.inference_mode():
            index = full(1, device=None)
        weight = torch.randn(4, 2, requires_grad=True)
        with pytest.raises(RuntimeError, match="Inference tensors cannot be saved for backward"):
            weight.index_select(0, index)

    def test_what_a_student_made_first_serves_a_teacher(self, cache):
        kept = cache.get((1,))
        with torch.inference_mode():
            assert cache.get((1,)) is kept

    def test_a_capture_inside_inference_mode_still_gets_an_ordinary_tensor(self, cache):
        with torch.inference_mode(), mark_capturing():
            assert not cache.get((1,)).is_inference()

    def test_no_graph_is_kept_with_a_tensor(self):
        weight = torch.ones(3, requires_grad=True)
        cache = new_cache(lambda n, *, device: weight.to(device) * n)
        assert cache.get((2,)).grad_fn is None
        assert not cache.get((2,)).requires_grad


class TestDevice:
    @pytest.mark.parametrize("spelling", ["cpu", "cpu:0", torch.device("cpu"), torch.device("cpu", 0), None])
    def test_every_spelling_of_the_cpu_is_one_key(self, cache, spelling):
        assert cache.get((1,), spelling) is cache.get((1,), "cpu")

    @pytest.mark.parametrize("current", [0, 1])
    def test_cuda_is_the_current_device(self, monkeypatch, current):
        monkeypatch.setattr(torch.cuda, "current_device", lambda: current)
        assert resolve_device("cuda") == torch.device("cuda", current)
        assert resolve_device(torch.device("cuda")) == torch.device("cuda", current)
        assert resolve_device("cuda:0") == torch.device("cuda", 0)

    def test_none_is_the_default_device_of_the_moment(self, cache):
        assert cache.get((1,)).device.type == "cpu"
        with torch.device("meta"):
            assert cache.get((1,)).device.type == "meta"
            assert cache.get((1,)) is cache.get((1,), "meta")
            assert cache.get((1,), "cpu").device.type == "cpu"
        assert cache.get((1,)).device.type == "cpu"

    def test_a_default_device_set_for_good_is_no_reason_to_bypass(self, cache):
        torch.set_default_device("meta")
        try:
            kept = cache.get((1,))
            assert kept.device.type == "meta"
            assert cache.get((1,)) is kept
        finally:
            torch.set_default_device(None)
        assert cache.info().bypasses == 0

    @pytest.mark.parametrize(("device", "error"), [("no such device", RuntimeError), ([], TypeError)])
    def test_an_unknown_device_is_torchs_own_error(self, cache, device, error):
        with pytest.raises(error):
            cache.get((1,), device)


def _retarget(tensor: torch.Tensor, data: torch.Tensor) -> None:
    tensor.data = data


class TestEditedByACaller:
    @pytest.mark.parametrize(
        "edit",
        [
            lambda t: t.add_(1),
            lambda t: t[1:].zero_(),
            lambda t: t.detach().zero_(),
            lambda t: t.__setitem__(0, 9),
            lambda t: torch.add(t, 1, out=t),
            lambda t: torch._foreach_add_([t], 1),
            lambda t: t.resize_(5),
            lambda t: t.unsqueeze_(0),
            lambda t: t.set_(torch.zeros(3, dtype=torch.int32)),
            lambda t: t.untyped_storage().resize_(0),
            lambda t: _retarget(t, torch.zeros(3, dtype=torch.int32)),
            lambda t: _retarget(t, t[:2]),
            # Another process may write to shared memory, and no version here would move.
            lambda t: t.share_memory_(),
        ],
        ids=[
            *("add_", "view", "detached", "item", "out", "foreach", "resize_", "unsqueeze_", "set_", "storage"),
            *("data", "data of itself", "shared memory"),
        ],
    )
    def test_is_replaced(self, cache, edit):
        kept = cache.get((5,))
        edit(kept)
        again = cache.get((5,))
        assert again is not kept
        assert again.tolist() == [5, 5, 5]
        assert cache.get((5,)) is again
        assert (cache.info().replaced, cache.info().entries) == (1, 1)

    def test_under_inference_mode_is_replaced_too(self, cache):
        kept = cache.get((5,))
        with torch.inference_mode():
            kept.zero_()
            assert cache.get((5,)).tolist() == [5, 5, 5]


class Everything(TorchDispatchMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return func(*args, **(kwargs or {}))


class Functions(TorchFunctionMode):
    def __torch_function__(self, func, types, args=(), kwargs=None):
        return func(*args, **(kwargs or {}))


def _onnx_export(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.onnx.is_in_onnx_export", lambda: True)


class TestBypass:
    @pytest.mark.parametrize("mode", [FakeTensorMode, Everything, Functions, mark_capturing])
    @pytest.mark.parametrize("filled", [False, True], ids=["empty cache", "filled cache"])
    def test_a_mode_neither_reads_nor_stores(self, cache, mode, filled):
        kept = cache.get((5,)) if filled else None
        before = cache.info()
        with mode():
            first, second = cache.get((5,)), cache.get((5,))
        assert first is not second
        assert first is not kept
        assert cache.info().entries == before.entries
        assert cache.info().bypasses == 2

    def test_a_function_mode_above_a_default_device_neither_reads_nor_stores(self, cache):
        with torch.device("cpu"), Functions():
            assert cache.get((5,)) is not cache.get((5,))
        assert cache.info().entries == 0

    def test_a_fake_tensor_is_returned_to_whoever_fakes_alone(self, cache):
        with FakeTensorMode():
            assert isinstance(cache.get((5,)), FakeTensor)
        assert type(cache.get((5,))) is torch.Tensor

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
    def test_a_functorch_transform_neither_reads_nor_stores(self, cache, transform):
        kept = cache.get((5,))
        seen = []

        def scale(x: torch.Tensor) -> torch.Tensor:
            seen.append(cache.get((5,)))
            return x * seen[-1]

        transform(scale)(torch.ones(3, 3))
        assert seen
        assert all(tensor is not kept for tensor in seen)
        assert cache.info().entries == 1
        assert cache.get((5,)) is kept

    def test_onnx_export_neither_reads_nor_stores(self, cache, monkeypatch):
        kept = cache.get((5,))
        _onnx_export(monkeypatch)
        assert cache.get((5,)) is not kept
        assert cache.get((6,)) is not cache.get((6,))
        assert cache.info().entries == 1

    def test_onnx_export_that_torch_alone_knows_of_stores_nothing(self, cache, monkeypatch):
        import torch.onnx

        # Torch's own function, found by its globals, answers yes.
        own = types.FunctionType((lambda: True).__code__, torch.onnx.__dict__)
        monkeypatch.setattr(torch.onnx, "is_in_onnx_export", own)
        cache.get((5,))
        assert cache.info().entries == 0

    @pytest.mark.parametrize("backend", ["eager", "aot_eager"])
    def test_compiled_code_has_no_graph_break_and_stores_nothing(self, cache, backend):
        kept = cache.get((5,))
        compiled = torch.compile(lambda x: x + cache.get((5,)), fullgraph=True, backend=backend)
        assert compiled(torch.zeros(3)).tolist() == [5, 5, 5]
        assert cache.get((5,)) is kept
        assert cache.info().misses == 1

    def test_selective_checkpointing_finds_the_same_operations_twice(self, cache):
        from torch.utils import checkpoint

        def keep_all(ctx, op, *args, **kwargs):
            return checkpoint.CheckpointPolicy.MUST_SAVE

        x = torch.ones(3, requires_grad=True)
        out = checkpoint.checkpoint(
            lambda x: (x * cache.get((5,))).sin(),
            x,
            use_reentrant=False,
            context_fn=lambda: checkpoint.create_selective_checkpoint_contexts(keep_all),
        )
        out.sum().backward()
        assert torch.equal(x.grad, 5 * torch.full((3,), 5.0).cos())

    def test_no_mode_no_tracing(self):
        assert is_tracing() is False
        with torch.device("meta"), torch.inference_mode():
            assert is_tracing() is False
        with FakeTensorMode():
            assert is_tracing() is True


def _made_under(mode: TorchDispatchMode, device: torch.device) -> torch.Tensor:
    with mode:
        return torch.ones(2, device=device)


def _leaked_by_vmap(device: torch.device) -> torch.Tensor:
    leaked = []
    torch.vmap(lambda x: leaked.append(x) or x)(torch.ones(3, 2, device=device))
    return leaked[0]


class TestUnfitTensor:
    @pytest.mark.parametrize(
        "make",
        [
            lambda *, device: torch.nn.Parameter(torch.ones(2, device=device), requires_grad=False),
            lambda *, device: _made_under(FakeTensorMode(), device),
            lambda *, device: _leaked_by_vmap(device),
            lambda *, device: torch.ones(2, device=device, requires_grad=True),
            lambda *, device: torch.ones(2, device="meta"),
            lambda *, device: torch.ones(2, device=device).to_sparse(),
            lambda *, device: torch._to_functional_tensor(torch.ones(2, device=device)),
        ],
        ids=["subclass", "fake", "functorch", "requires grad", "other device", "sparse", "functional"],
    )
    def test_is_returned_and_not_kept(self, make):
        cache = new_cache(make)
        assert cache.get(()) is not cache.get(())
        assert (cache.info().entries, cache.info().bypasses) == (0, 2)

    def test_inference_tensor_is_not_kept(self):
        def make(*, device: torch.device) -> torch.Tensor:
            with torch.inference_mode():
                return torch.ones(2, device=device)

        cache = new_cache(make)
        cache.get(())
        assert cache.info().entries == 0

    def test_an_error_of_the_maker_stores_nothing(self):
        def make(*, device: torch.device) -> torch.Tensor:
            raise KeyError("cause")

        cache = new_cache(make)
        with pytest.raises(KeyError, match="cause"):
            cache.get(())
        assert cache.info() == CacheInfo(0, 0, 0, 0, 0, 8, 0)


class TestBound:
    @hypothesis.given(keys=st.lists(st.integers(0, 6), max_size=40), max_entries=st.integers(1, 4))
    def test_keeps_the_most_recently_used(self, keys, max_entries):
        cache = new_cache(max_entries=max_entries)
        model: OrderedDict[int, torch.Tensor] = OrderedDict()
        for key in keys:
            tensor = cache.get((key,))
            if key in model:
                assert tensor is model[key]
            model[key] = tensor
            model.move_to_end(key)
            if len(model) > max_entries:
                model.popitem(last=False)
            assert cache.info().entries == len(model)

    def test_a_tensor_that_went_is_freed(self):
        cache = new_cache(max_entries=1)
        first = weakref.ref(cache.get((1,)))
        cache.get((2,))
        assert first() is None

    @pytest.mark.parametrize("max_entries", [0, -1])
    def test_less_than_one_entry_is_refused(self, max_entries):
        with pytest.raises(ValueError, match=f"max_entries must be an integer, at least 1, got {max_entries}"):
            new_cache(max_entries=max_entries)


def test_the_worked_examples_hold():
    assert doctest.testmod(caching).failed == 0
