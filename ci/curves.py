#!/usr/bin/env -S .venv/bin/python
"""Find the bugs that no loss of their step shows, and draw what they cost, for docs/equal-loss.md.

A native mutant is one of them if it diverges on some of the drawn cases, and on all of these the
loss and each token's loss are those of plain training. Then it trains for fifty steps on one of
these cases, and so does plain training: of those on the fewest ranks, the one with most targets.

Run it as `.venv/bin/python ci/curves.py`; it takes some minutes.
"""

import argparse
import math
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from project import ROOT

from harness.campaign.markdown import replace_marked, table
from harness.candidates import locate
from harness.candidates.bank import Mutant
from harness.candidates.own.mutants import NATIVE
from harness.case import Case
from harness.generation import cases, draw_list
from harness.judge import Job, Session
from harness.ranks.pool import RankPool
from harness.reference import reference
from harness.trace import Assembly
from harness.verdict import Verdict

PAGE = ROOT / "docs" / "equal-loss.md"
RANKS, SEED = 4, 7
STEPS = (1, *range(10, 51, 10))
BARS = "▁▂▃▄▅▆▇█"
HEADS = ("mutant", "the bug", "first loss", "with the bug", f"loss of step {STEPS[-1]}",
         "with the bug", "plain training", "with the bug")  # fmt: skip


@dataclass(frozen=True, slots=True)
class Lesson:
    """A bug that no loss of its step shows, and the case on which its curve is drawn."""

    mutant: Mutant
    case: Case


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", type=int, default=12, help="default: 12")
    count = parser.parse_args().cases
    batch = draw_list(cases(max_ranks=RANKS, dtypes=("fp64",), max_steps=1), count, SEED)
    with RankPool(RANKS) as pool:
        rows = []
        for lesson in unseen(batch, Session(pool)):
            rows.append(row(lesson, pool))
            print(*rows[-1], flush=True)
    PAGE.write_text(replace_marked(PAGE.read_text(), "curves", section(rows, count)))


def section(rows: Sequence[tuple[str, ...]], count: int) -> str:
    """Return what the page says of these rows, and their table."""
    alike = sum(is_alike(*map(float, each[4:6])) for each in rows)
    counted = (
        f"{len(rows)} of {len(NATIVE)} native mutants are of this kind on {count} cases. "
        f"After {STEPS[-1]} steps {alike} of them have a loss within a tenth of plain training's."
    )
    return f"{textwrap.fill(counted, 99)}\n\n{table(HEADS, rows)}"


def unseen(batch: Sequence[Case], session: Session) -> Iterator[Lesson]:
    """Yield the native mutants that diverge, and whose losses are right wherever they do."""
    for mutant in NATIVE.values():
        diverged, named = [], locate(mutant.candidate.name)
        for comparison in session.judge(Job(case, named) for case in batch):
            wrong = {result.key for result in comparison.measured.keys if result.wrong}
            if comparison.verdict is Verdict.FAULT or wrong & {"loss", "nll"}:
                break
            if comparison.verdict is Verdict.DIVERGED:
                diverged.append(comparison.case)
        else:
            if diverged:
                yield Lesson(mutant, max(diverged, key=ease))


def ease(case: Case) -> tuple[int, int]:
    """Return how well a case suits a long run: few ranks first, then many tokens that count."""
    return -case.sp * case.dp, sum(len(row.supervised()) for row in case.rows)


def row(lesson: Lesson, pool: RankPool) -> tuple[str, ...]:
    """Return the row of a table: the bug, both losses of the last step, and both curves."""
    taken = [replace(lesson.case, steps=steps) for steps in STEPS]
    plain = [float(reference(case, torch.float64)["loss"].values.item()) for case in taken]
    wrong = [step_loss(case, lesson.mutant, pool) for case in taken]
    highest = max(filter(math.isfinite, (*plain, *wrong)))
    losses = (f"{loss:.3f}" for loss in (plain[0], wrong[0], plain[-1], wrong[-1]))
    mutant = lesson.mutant
    curves = (curve(each, highest) for each in (plain, wrong))
    return mutant.key, mutant.sentence, *losses, *curves


def is_alike(plain: float, wrong: float) -> bool:
    """Whether a loss would pass for that of plain training on a curve that is looked at."""
    return abs(wrong - plain) <= 0.1 * plain


def step_loss(case: Case, mutant: Mutant, pool: RankPool) -> float:
    """Return the loss that the mutant has at its last step; NaN if it does not get there."""
    outcome = pool.run(case, locate(mutant.candidate.name))
    if not isinstance(outcome, Assembly):
        return math.nan
    return float(outcome.trace["loss"].values.item())


def curve(losses: Sequence[float], highest: float) -> str:
    """Draw each loss as a bar, or a cross where it is no number."""
    top = len(BARS) - 1
    bars = (BARS[round(x / highest * top)] if math.isfinite(x) else "✗" for x in losses)
    return f"`{''.join(bars)}`"


if __name__ == "__main__":
    main()
