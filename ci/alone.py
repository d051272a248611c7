#!/usr/bin/env -S .venv/bin/python
"""Find for each mutant a property that kills it without a reference, and write a table of them.

Run it as `.venv/bin/python ci/alone.py [KEY ...]`; with keys it tries only these mutants. An entry
`none: ...`, which says why no property can kill a mutant, stays as it is.
"""

import sys

from project import ROOT

from harness.candidates.own.mutants import BANK
from harness.candidates.own.mutants.alone import ALONE
from harness.ranks.pool import RankPool
from properties.helpers.alone import killer

TABLE = ROOT / "harness" / "candidates" / "own" / "mutants" / "alone.py"
HEAD = '''"""Which property kills each mutant without any reference; written by ci/alone.py."""

ALONE: dict[str, str] = {
'''


def main() -> None:
    killers = dict(ALONE)
    with RankPool(4, deadline=10.0) as pool:
        for key in sys.argv[1:] or BANK:
            if killers.get(key, "").startswith("none: "):
                continue
            claim = killer(f"mutants.{key}", pool)
            print(f"{key}: {claim or 'nothing kills it'}", flush=True)
            if claim:
                killers[key] = claim
                lines = [f'    "{k}": "{killers[k]}",\n' for k in BANK if k in killers]
                TABLE.write_text(f"{HEAD}{''.join(lines)}}}\n")


if __name__ == "__main__":
    main()
