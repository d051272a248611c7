"""Takes a case and a candidate to a comparison.

* A *job* is a case, a candidate, and the reference that it is compared with.
* A *session* judges jobs on one pool of ranks, and yields their comparisons in order.
* A *stage* is one step of a judgement; stages.py lists them.
* A *second opinion* is plain training computed in further ways, before a candidate is blamed.
* A *self reference* is the candidate's own step at sp 1.
* A *mend* takes a listed bug out of a published candidate; a failure that is *listed* is KNOWN.

1. There is one way to a verdict. Commands, tests, shrinking and experiments all use a session.
2. The first outcome of the ranks decides whether there is a failure. Later runs explain it; a
   later run that passes does not clear the candidate.
3. Before a candidate is blamed, its reference is computed in further ways, to see how exact it is.
4. Runs emit the required keys only, which is fast. Failures are run again with full tracing.
"""

from harness.judge.diagnosed import add_diagnosis
from harness.judge.job import Job
from harness.judge.session import Session

__all__ = ["Job", "Session", "add_diagnosis"]
