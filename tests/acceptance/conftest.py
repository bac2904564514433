from __future__ import annotations

from tests.build_tools.conftest import plain_environment

__all__ = ["plain_environment"]
