"""flex against dense."""

from __future__ import annotations

import pytest
import torch
from hypothesis import HealthCheck, assume, given, settings
from torch.nn.attention.flex_attention import flex_attention

from te_pkg.attention.backends import (
    flex,
)
from tests.attention.attention_problems import cases, compare

over_all = settings(max_examples=50, suppress_health_check=[HealthCheck.function_scoped_fixture])


class TestFlex:
    @pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
    @over_all
    @given(case=cases(max_length=5))
    def test_it_agrees_with_dense(self, monkeypatch, case):
        """Uncompiled, which is the same mathematics, and allowed on the CPU."""
        monkeypatch.setattr(flex, "_kernel", lambda: flex_attention)
        monkeypatch.setattr("torch.nn.attention.flex_attention._validate_device", lambda *_: None)
        assume(case.q.shape[0] and case.k.shape[0])
        compare(flex, case, 1e-5)

    def test_one_soft_cap_is_one_function(self):
        assert flex._soft_cap(3.0) is flex._soft_cap(3.0)
        torch.testing.assert_close(flex._soft_cap(2.0)(torch.tensor(4.0)), 2 * torch.tensor(2.0).tanh())
