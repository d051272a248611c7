"""The whole bank, tried on several pools side by side, and its score."""

import queue
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from statistics import median
from typing import Any

from harness.against import PLAIN, Against
from harness.candidates.bank import Benign, Mutant
from harness.case import Case
from harness.compare import Comparison
from harness.detection.trial import Trial, try_benign, try_mutant
from harness.ranks.pool import RankPool

# So much of what is found has to be called by its name.
NAMED_RIGHT = 0.9

ShrinkOn = Callable[[Comparison, RankPool], Comparison]


@dataclass(kw_only=True)
class Power:
    """All trials, in the order of the bank."""

    mutants: list[Trial] = field(default_factory=list)
    benign: list[Trial] = field(default_factory=list)
    seconds: float = 0.0
    against: Against = PLAIN

    @property
    def killed(self) -> list[Trial]:
        return [trial for trial in self.mutants if trial.failed]

    @property
    def hidden(self) -> list[Trial]:
        """Those that are wrong at sp 1 too, where that is what they are compared with."""
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
        """Every mutant found that can be, nearly every one named, and nothing right flagged.

        Experiments, which give the names, need a reference of our own.
        """
        unnamed = len(self.named_right) < NAMED_RIGHT * len(self.killed)
        return (
            bool(self.killed or self.benign)
            and not self.survivors
            and not (unnamed and self.against == PLAIN)
            and not self.flagged
        )

    def record(self) -> dict[str, Any]:
        """As JSON."""
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


def measure(
    mutants: Sequence[Mutant],
    variants: Sequence[Benign],
    cases: Sequence[Case],
    pools: Sequence[RankPool],
    shrink: ShrinkOn | None = None,
    told: Callable[[Trial], None] = lambda _trial: None,
    *,
    required_only: bool = False,
    against: Against = PLAIN,
) -> Power:
    """Try all; each pool takes the next one as soon as it is free."""
    started = time.monotonic()
    free: queue.SimpleQueue[RankPool] = queue.SimpleQueue()
    for pool in pools:
        free.put(pool)
    telling = threading.Lock()

    def attempt(entry: Mutant | Benign) -> Trial:
        pool = free.get()
        try:
            if isinstance(entry, Benign):
                trial = try_benign(entry, cases, pool, against=against)
            else:
                smaller = (lambda failure: shrink(failure, pool)) if shrink else None
                trial = try_mutant(
                    entry, cases, pool, smaller, required_only=required_only, against=against
                )
        finally:
            free.put(pool)
        with telling:
            told(trial)
        return trial

    with ExitStack() as stack:
        threads = stack.enter_context(ThreadPoolExecutor(len(pools)))
        # A Ctrl-C must not wait for a whole bank.
        stack.callback(threads.shutdown, wait=True, cancel_futures=True)
        # What takes longest goes first.
        late = [threads.submit(attempt, variant) for variant in variants]
        soon = [threads.submit(attempt, mutant) for mutant in mutants]
        power = Power(
            mutants=[future.result() for future in soon],
            benign=[future.result() for future in late],
            against=against,
        )
    power.seconds = round(time.monotonic() - started, 3)
    return power
