"""The implementations under test, and the protocol through which the harness runs all of them.

A candidate has a name and two methods: `supports(case)` and `run(case, rank, emit)`. `protocol`
defines it, `registry` finds it by name, `beside` guards what it imports from its own folder, and
`required` hides what it emits besides the required tensors. A name leads to one of four places:
a bank (`own`), a published package (`published`), a file, or a module that can be imported.

1. A candidate only emits tensors. It never compares anything, so it cannot hide a difference.
2. A name is read without importing the code behind it. The controller can decide which ranks run
   a candidate, and refuse it, before any of its code runs.
3. The code of files and modules runs on ranks only. It may end its process or never return.
4. Ranks of one folder import from that folder first and serve no other. So candidates of several
   folders may have modules of the same names.
"""

from harness.candidates.protocol import STOOD_IN, Candidate, Emit, Rank
from harness.candidates.registry import Named, interpreter, locate, require_reference

__all__ = [
    "STOOD_IN",
    "Candidate",
    "Emit",
    "Named",
    "Rank",
    "interpreter",
    "locate",
    "require_reference",
]
