#!/usr/bin/env -S .venv/bin/python
"""Find for each native mutant a property that kills it alone, and write a table of them.

A property needs no reference. Run it as `.venv/bin/python ci/alone.py [KEY ...]`; with keys it
tries only these mutants. An entry
`none: ...`, which says why no property can kill a mutant, stays as it is.
"""

import sys

from project import ROOT

from harness.candidates.own.mutants import NATIVE
from harness.candidates.own.mutants.alone import ALONE
from harness.ranks.pool import RankPool
from properties.helpers.alone import killer

TABLE = ROOT / "harness" / "candidates" / "own" / "mutants" / "alone.py"
HEAD = '''"""Which property kills each native mutant without a reference; see ci/alone.py."""

ALONE: dict[str, str] = {
'''


def main() -> None:
    killers = dict(ALONE)
    with RankPool(4, deadline=10.0) as pool:
        for key in sys.argv[1:] or NATIVE:
            if killers.get(key, "").startswith("none: "):
                continue
            claim = killer(f"mutants.{key}", pool)
            print(f"{key}: {claim or 'nothing kills it'}", flush=True)
            if claim:
                killers[key] = claim
                lines = [f'    "{k}": "{killers[k]}",\n' for k in NATIVE if k in killers]
                TABLE.write_text(f"{HEAD}{''.join(lines)}}}\n")


if __name__ == "__main__":
    main()
