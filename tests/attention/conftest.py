"""What all these tests share."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
import torch

from te_pkg.attention import PaddingDecisions, clear_caches, default_padding_decisions

try:
    from hypothesis import settings
except ImportError:  # the tests marked `gpu` run without it
    settings = None

if settings is not None:
    # The first example pays for what torch loads late, and a busy machine for the rest; a run of CI tries what the run
    # before it tried.
    settings.register_profile("attention", deadline=None, derandomize=bool(os.environ.get("CI")))
    settings.load_profile("attention")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.get_closest_marker("gpu"):
            # Triton 3.9 announces a change of its default whenever it compiles for a device.
            item.add_marker(pytest.mark.filterwarnings("ignore:TRITON_DEFAULT_FP_FUSION is unset:UserWarning"))


@pytest.fixture
def memory() -> PaddingDecisions:
    return PaddingDecisions()


@pytest.fixture
def nothing_is_remembered_from_another_test() -> Iterator[None]:
    for before in (True, False):
        clear_caches()
        default_padding_decisions.forget_graphs()
        if before:
            yield
    torch._dynamo.reset()
