#!/usr/bin/env -S .venv/bin/python
"""Find for each mutant a property that kills it without a reference, and write down which.

Run as `.venv/bin/python ci/alone.py [KEY ...]`; with keys it asks about those only, and keeps the
rest. What is written as `none: ...`, the reason why no property can, stays.
"""

import sys

from project import ROOT

from harness.candidates.own.mutants import BANK
from harness.candidates.own.mutants.alone import ALONE
from harness.ranks.pool import RankPool
from properties.helpers.alone import killer

PLACE = ROOT / "harness" / "candidates" / "own" / "mutants" / "alone.py"
HEAD = '''"""Which property kills each mutant without any reference; written by ci/alone.py."""

ALONE: dict[str, str] = {
'''


def main() -> None:
    found = dict(ALONE)
    with RankPool(4, deadline=10.0) as pool:
        for key in sys.argv[1:] or BANK:
            if found.get(key, "").startswith("none: "):
                continue
            claim = killer(f"mutants.{key}", pool)
            print(f"{key}: {claim or 'nothing kills it'}", flush=True)
            if claim:
                found[key] = claim
                lines = [f'    "{each}": "{found[each]}",\n' for each in BANK if each in found]
                PLACE.write_text(f"{HEAD}{''.join(lines)}}}\n")


if __name__ == "__main__":
    main()
