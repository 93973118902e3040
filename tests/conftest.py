"""What all tests share: a timing never decides one, so that examples of properties have no deadline."""

from __future__ import annotations

from hypothesis import settings

settings.register_profile("geminga", deadline=None)
settings.load_profile("geminga")
