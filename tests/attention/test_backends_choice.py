"""Which backend is taken, and what each says of itself."""

from __future__ import annotations

import dataclasses
import doctest
import logging
import pickle

import pytest
import torch

from te_pkg.attention import PackedLayout, available_backends, packed_attention
from te_pkg.attention import backends as backends_package
from te_pkg.attention.backends import (
    BACKENDS,
    AttentionProblem,
    BackendUnavailableError,
    choose,
    dense,
    load,
    problem,
    sdpa,
    why_absent,
    why_not,
)


class TestChoice:
    q = torch.zeros(3, 1, 16)
    problem = AttentionProblem.of(PackedLayout.from_lengths([3]), scale=1.0)

    def test_the_first_that_can_serve_is_taken_and_the_log_says_why(self, caplog):
        with caplog.at_level(logging.DEBUG, "te_pkg.attention"):
            assert choose(self.problem, self.q, self.q, self.q) is sdpa
        (line,) = caplog.messages
        assert line.startswith("backend sdpa: the first that can serve this; not flash_attn: the kernels are for CUDA")
        capped = dataclasses.replace(self.problem, softcap=1.0)
        assert choose(capped, self.q, self.q, self.q) is dense

    def test_one_that_is_asked_for_is_taken_or_refused_with_the_reason(self, caplog):
        with caplog.at_level(logging.DEBUG, "te_pkg.attention"):
            assert choose(self.problem, self.q, self.q, self.q, "dense") is dense
        assert caplog.messages == ["backend dense: asked for"]
        with pytest.raises(
            BackendUnavailableError, match="backend 'varlen' cannot serve this: the kernels are for CUDA"
        ) as e:
            choose(self.problem, self.q, self.q, self.q, "varlen")
        copy = pickle.loads(pickle.dumps(e.value))
        assert (copy.backend, copy.reason, str(copy)) == (e.value.backend, e.value.reason, str(e.value))
        with pytest.raises(RuntimeError, match="there is no such backend, expected one of 'flash_attn', 'varlen'"):
            choose(self.problem, self.q, self.q, self.q, "cudnn")

    def test_every_backend_says_what_it_lacks_on_this_machine(self):
        for name in BACKENDS:
            assert why_absent(name) is None or isinstance(why_absent(name), str)
            reason = why_not(name, self.problem, self.q, self.q, self.q)
            assert reason is None or reason == load(name).why_not(self.problem, self.q, self.q, self.q)
        assert why_absent("dense") is why_absent("sdpa") is None
        assert "no such backend" in why_absent("cudnn")

    def test_dropout_and_soft_cap_are_refused_by_those_that_have_none(self):
        dropped, capped = (dataclasses.replace(self.problem, **by) for by in ({"dropout_p": 0.5}, {"softcap": 2.0}))
        q = self.q
        refused = {
            name
            for name in BACKENDS
            if why_not(name, dropped, q, q, q) and "dropout" in why_not(name, dropped, q, q, q)
        }
        assert refused == {"flash_attn", "varlen", "sdpa", "flex"}
        refused = {name for name in BACKENDS if "soft" in (why_not(name, capped, q, q, q) or "")}
        assert refused == {"varlen", "sdpa"}

    def test_available_backends_tells_the_same(self):
        layout = self.problem.layout
        assert available_backends() == {name: why_absent(name) for name in BACKENDS}
        found = available_backends(self.q, self.q, self.q, layout, softcap=2.0)
        capped = dataclasses.replace(self.problem, softcap=2.0)
        assert found == {name: why_not(name, capped, self.q, self.q, self.q) for name in BACKENDS}
        with pytest.raises(TypeError, match=r"^v, layout must be given too"):
            available_backends(self.q, self.q)

    @pytest.mark.parametrize("backend", [name for name in BACKENDS if name not in ("sdpa", "dense")])
    @pytest.mark.skipif(torch.cuda.is_available(), reason="has a GPU")
    def test_packed_attention_refuses_what_is_not_there(self, backend):
        with pytest.raises(BackendUnavailableError) as raised:
            packed_attention(self.q, self.q, self.q, self.problem.layout, backend=backend)
        assert raised.value.backend == backend


@pytest.mark.parametrize("module", [backends_package, problem], ids=lambda module: module.__name__)
def test_docstrings_are_true(module):
    assert doctest.testmod(module, extraglobs={"torch": torch, "PackedLayout": PackedLayout}).failed == 0
