"""Four ranks, started once for all tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.attention.context_parallel.team import Team


@pytest.fixture(scope="session")
def team(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Team]:
    with Team(4, tmp_path_factory.mktemp("team")) as ranks:
        yield ranks
