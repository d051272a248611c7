"""Hypothesis profiles; the plugin itself comes with the package."""

import os

from hypothesis import HealthCheck, settings

# The pool has deadlines of its own, and a case takes as long as its ranks need.
COMMON = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow]}

settings.register_profile("dev", max_examples=25, **COMMON)
settings.register_profile("pr", max_examples=50, derandomize=True, database=None, **COMMON)
settings.register_profile("nightly", max_examples=2000, **COMMON)
settings.load_profile("pr" if os.environ.get("CI") else "dev")
