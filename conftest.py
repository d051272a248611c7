"""Hypothesis profiles; the plugin itself comes with the package."""

import os

from hypothesis import HealthCheck, settings

# The pool has deadlines of its own, and a case takes as long as its ranks need.
common = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])

settings.register_profile("dev", common, max_examples=25)
settings.register_profile("pr", common, max_examples=50, derandomize=True, database=None)
settings.register_profile("nightly", common, max_examples=2000)
settings.load_profile("pr" if os.environ.get("CI") else "dev")
