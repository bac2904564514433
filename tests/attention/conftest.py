"""What all these tests share."""

from __future__ import annotations

import os

from hypothesis import settings

# The first example pays for what torch loads late, and a busy machine for the rest; a run of CI tries what the run
# before it tried.
settings.register_profile("attention", deadline=None, derandomize=bool(os.environ.get("CI")))
settings.load_profile("attention")
