"""Try a bank of mutants and benign variants on one pool or several, and score the trials."""

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from statistics import median
from typing import Any

from harness.against import PLAIN, Against
from harness.candidates.bank import Benign, Mutant
from harness.case import Case
from harness.compare import Comparison
from harness.detection.trial import Trial, try_benign, try_mutant
from harness.engine.engine import Engine, ThisProcess, run_all
from harness.failure.smallest import shrink_and_confirm
from harness.judge import Session

# At least this share of the killed mutants must be named right.
NAMED_RIGHT = 0.9


@dataclass(kw_only=True)
class Score:
    """All trials, in the order of their keys in the bank."""

    mutants: list[Trial] = field(default_factory=list)
    benign: list[Trial] = field(default_factory=list)
    seconds: float = 0.0
    against: Against = PLAIN

    @property
    def killed(self) -> list[Trial]:
        return [trial for trial in self.mutants if trial.failed]

    @property
    def hidden(self) -> list[Trial]:
        """Mutants that are wrong at sp 1 too, if sp 1 is what they are compared with."""
        return [trial for trial in self.mutants if trial.hidden]

    @property
    def survivors(self) -> list[Trial]:
        return [trial for trial in self.mutants if not trial.failed and not trial.hidden]

    @property
    def named_right(self) -> list[Trial]:
        return [trial for trial in self.mutants if trial.named_right]

    @property
    def flagged(self) -> list[Trial]:
        return [trial for trial in self.benign if trial.failed]

    @property
    def median_seconds(self) -> float:
        return median(trial.seconds for trial in self.killed) if self.killed else 0.0

    @property
    def passed(self) -> bool:
        """Whether no mutant survives, nearly all are named right, and no variant is flagged.

        Names are required against plain training only: experiments, which give them, need it. A
        score without a kill and without a benign variant shows nothing, and does not pass.
        """
        unnamed = len(self.named_right) < NAMED_RIGHT * len(self.killed)
        return (
            bool(self.killed or self.benign)
            and not self.survivors
            and not (unnamed and self.against == PLAIN)
            and not self.flagged
        )

    def record(self) -> dict[str, Any]:
        """Return the score and all trials, as JSON has them."""
        return {
            "score": {
                "mutants": len(self.mutants),
                "killed": len(self.killed),
                "hidden": len(self.hidden),
                "named_right": len(self.named_right),
                "benign": len(self.benign),
                "flagged": len(self.flagged),
                "median_seconds": self.median_seconds,
            },
            "seconds": self.seconds,
            "passed": self.passed,
            "against": self.against,
            "mutants": [asdict(trial) for trial in self.mutants],
            "benign": [asdict(trial) for trial in self.benign],
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Trier:
    """Tries mutants and benign variants on the same cases."""

    cases: Sequence[Case]
    session: Session
    shrinks: bool = False
    required_only: bool = False
    against: Against = PLAIN

    def attempt(self, entry: Mutant | Benign) -> Trial:
        """Judge a mutant or benign variant until its first failure."""
        if isinstance(entry, Benign):
            return try_benign(entry, self.cases, self.session, against=self.against)
        return try_mutant(
            entry,
            self.cases,
            self.session,
            self._shrink if self.shrinks else None,
            required_only=self.required_only,
            against=self.against,
        )

    def _shrink(self, failure: Comparison) -> Comparison:
        before = self.cases[: self.cases.index(failure.case)]
        return shrink_and_confirm(failure, self.session, before).smallest


def score_here(
    mutants: Sequence[Mutant],
    variants: Sequence[Benign],
    trier: Trier,
) -> Score:
    """Try all mutants and variants in this process, one after the other."""
    entries: dict[str, Mutant | Benign] = {entry.key: entry for entry in mutants}
    entries |= {entry.key: entry for entry in variants}
    engine = ThisProcess[str, Trial](lambda key: trier.attempt(entries[key]))
    keys = [mutant.key for mutant in mutants], [variant.key for variant in variants]
    return score(*keys, engine, against=trier.against)


def score(
    mutants: Sequence[str],
    variants: Sequence[str],
    engine: Engine[str, Trial],
    on_trial: Callable[[Trial], None] = lambda _trial: None,
    *,
    against: Against = PLAIN,
) -> Score:
    """Have an engine try all keys; call `on_trial` with each trial when it is done.

    Benign variants go first: they are judged on all cases, and so take longest.
    """
    started, trials = time.monotonic(), dict[str, Trial]()
    for key, trial in run_all([*variants, *mutants], engine):
        trials[key] = trial
        on_trial(trial)
    return Score(
        mutants=[trials[key] for key in mutants],
        benign=[trials[key] for key in variants],
        seconds=round(time.monotonic() - started, 3),
        against=against,
    )
