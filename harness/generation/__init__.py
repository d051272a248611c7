"""Cases: how they are drawn, and the situations that they must reach.

Terms:
* A **strategy** is Hypothesis's description of the cases that may be drawn (`strategies`).
* A **situation** is a named property of a case that shows or hides a kind of bug (`situations`).
* A case **beyond** the usual sizes has one or two things that are larger (`beyond`).
* A **small** case has no more tokens than a campaign says, which judges all of them (`small`).

Reasons:
1. A correct path and a wrong one differ only on some batches. So of a few drawn cases the one in
   the rarest situations is taken (`drawing`), and strategies favour what leads into situations.
2. A seed must give the same cases in the same order everywhere. So Hypothesis reads each case from
   random bytes, and not from its database.
3. Large cases are slow. So a case beyond the usual sizes has only one or two large things.
"""

from harness.generation.beyond import draw_beyond
from harness.generation.drawing import draw_cases, draw_list
from harness.generation.small import Small
from harness.generation.strategies import cases, steer

__all__ = ["Small", "cases", "draw_beyond", "draw_cases", "draw_list", "steer"]
