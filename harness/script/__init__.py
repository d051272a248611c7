"""A mismatch as one file of Python, for those who do not have the harness."""

from harness.script.script import standalone
from harness.script.trouble import CannotStandAlone

__all__ = ["CannotStandAlone", "standalone"]
