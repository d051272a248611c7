#!/usr/bin/env -S .venv/bin/python
"""Judge steps with two bugs of the bank at once; run it as `.venv/bin/python ci/pairs.py SEED N`.

It draws N pairs of mutants that change different parts of the step. A pair is found if a case
fails. If none does, the two may cancel each other: then each of them fails alone on one of the
same cases, and the script says on which. Otherwise the pair is NOT FOUND.
"""

import sys
import time
from collections import Counter
from collections.abc import Sequence
from random import Random

from project import ROOT

from harness.candidates import locate
from harness.candidates.own.mutants import NATIVE
from harness.case import Case
from harness.compare import Comparison, Verdict
from harness.generation import cases, draw_list
from harness.judge import Job, Session, add_diagnosis
from harness.ranks.pool import RankPool
from properties.planted.pairs import pairs

RANKS, CASES = 4, 60
FILE = ROOT / "properties" / "planted" / "pairs.py"


def main() -> int:
    seed, count = map(int, sys.argv[1:])
    batch = draw_list(cases(max_ranks=RANKS, dtypes=("fp64", "fp32")), CASES, seed)
    drawn, outcomes, started = (
        Random(seed).sample(pairs(), count),  # noqa: S311 - it chooses pairs
        Counter[str](),
        time.monotonic(),
    )
    with RankPool(RANKS) as pool:
        session = Session(pool)
        for pair in drawn:
            failure = first_failure(f"{FILE}:{'__'.join(pair)}", batch, session)
            outcome = (
                alone(pair, batch, session) if failure is None else names(pair, failure, session)
            )
            outcomes[outcome] += 1
            if failure is None or outcome.endswith("neither name"):
                print(f"{' and '.join(pair)}: {outcome}", flush=True)
    for outcome, times in outcomes.most_common():
        print(f"{times:4}  {outcome}")
    print(f"{count} pairs of seed {seed} in {time.monotonic() - started:.0f} s")
    return outcomes["NOT FOUND"] > 0


def first_failure(name: str, batch: Sequence[Case], session: Session) -> Comparison | None:
    jobs = (Job(case, locate(name)) for case in batch)
    return next((each for each in session.judge(jobs) if each.verdict.failed), None)


def names(pair: tuple[str, str], failure: Comparison, session: Session) -> str:
    """Say how many of the names that the two bugs have alone are among those of the failure."""
    called = {look.name for look in add_diagnosis(failure, session).inquiry.looks}
    right = sum(NATIVE[key].anomaly in called for key in pair)
    how = "found as a fault" if failure.verdict is Verdict.FAULT else "found"
    return f"{how}, with {('neither name', 'one of the names', 'both names')[right]}"


def alone(pair: tuple[str, str], batch: Sequence[Case], session: Session) -> str:
    """Say on which cases, all of which the pair passes, the two bugs fail alone."""
    failures = [first_failure(f"mutants.{key}", batch, session) for key in pair]
    on = [str(failure.case) for failure in failures if failure is not None]
    return f"cancel: alone they fail on {' and '.join(on)}" if len(on) == 2 else "NOT FOUND"


if __name__ == "__main__":
    sys.exit(main())
