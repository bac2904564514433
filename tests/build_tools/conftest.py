from __future__ import annotations

import os

import pytest
from hypothesis import settings

# A busy machine is no fault of an example, and a run of CI tries what the run before it tried.
settings.register_profile("build_tools", deadline=None, derandomize=bool(os.environ.get("CI")))
settings.load_profile("build_tools")


@pytest.fixture(autouse=True)
def plain_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """The variables that change what the tool writes are set by a test or not at all."""
    for variable in ("SOURCE_DATE_EPOCH", "GITHUB_ACTIONS", "GITHUB_STEP_SUMMARY"):
        monkeypatch.delenv(variable, raising=False)
