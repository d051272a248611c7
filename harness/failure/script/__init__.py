"""A mismatch as one file of Python, for those who do not have the harness."""

from harness.failure.script.script import standalone
from harness.failure.script.trouble import CannotStandAlone

__all__ = ["CannotStandAlone", "standalone"]
