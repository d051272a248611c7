"""From a case and a candidate to a comparison: jobs, the session that judges them, its stages."""

from harness.judge.diagnosed import diagnosed
from harness.judge.job import Job
from harness.judge.session import Session

__all__ = ["Job", "Session", "diagnosed"]
