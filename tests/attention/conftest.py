"""What all these tests share."""

from __future__ import annotations

from hypothesis import settings

# The first example pays for what torch loads late, and a busy machine for the rest.
settings.register_profile("attention", deadline=None)
settings.load_profile("attention")
