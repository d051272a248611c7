"""A failure shown again: whether it is the same one, and what else can be found out about it."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from msgspec import to_builtins

from harness.case import Case
from harness.compare import Comparison
from harness.failure.bundle import Bundle
from harness.failure.bundle.keep import keep_bundle
from harness.failure.confirm import name_stale_state, run_history
from harness.failure.same_numbers import find_same_numbers
from harness.failure.shrink import can_shrink
from harness.failure.signature import Mark, mark_of
from harness.failure.smallest import fewest_layers, shrink_and_confirm
from harness.judge import Job, Session, add_diagnosis
from harness.judge.known import mark_known
from harness.report import comparison_record, explain


@dataclass(frozen=True, slots=True)
class BundleMatch:
    """How a replayed failure relates to the one in its bundle."""

    outcome: Literal["same", "changed", "gone"]
    was: Mark
    now: Mark
    # The sentence for people.
    says: str


@dataclass(slots=True)
class Shown:
    """A replayed comparison with further findings: a line for people, a field for programs."""

    comparison: Comparison
    lines: list[str] = field(default_factory=list)
    fields: dict[str, Any] = field(default_factory=dict)

    @property
    def verdict(self) -> str:
        return mark_known(self.comparison).verdict.name

    @property
    def failed(self) -> bool:
        """Whether its case failed, so that it can be shrunk and diagnosed."""
        return can_shrink(self.comparison)

    def beside(self, bundle: Bundle, device: str) -> None:
        """Add whether it is the failure in a bundle."""
        match = match_bundle(bundle, self.comparison, device)
        self._add("again", match.outcome, match.says, to_builtins(match))

    def bisect_layers(self, session: Session) -> None:
        """Add the fewest layers with which it still fails."""
        case = self.comparison.case
        fewest = fewest_layers(self.comparison, session).case
        line = (
            f"{fewest.layers} of {case.layers} still fail: {fewest}"
            if fewest.layers < case.layers
            else f"with fewer than {case.layers} it does not fail"
        )
        value = {"fewest": fewest.layers, "of": case.layers, "case": str(fewest)}
        self._add("layers", "layers", line, value)

    def diagnose(self, session: Session) -> None:
        """Name the failure by experiments on other cases."""
        self.comparison = add_diagnosis(self.comparison, session)

    def compare_with_known(self, session: Session) -> None:
        """Add the mutants that give the same wrong numbers, and how many were compared."""
        found, compared = find_same_numbers(self.comparison, session)
        cited = [
            f"the same numbers as {mutant.key}: {mutant.sentence} ({', '.join(mutant.threads)})"
            for mutant in found
        ]
        for line in [*(cited or ["no known bug gives the same numbers"]), compared]:
            self.lines.append(f"  like    {line}")
        self.fields["like"] = [
            {"key": mutant.key, "sentence": mutant.sentence, "threads": mutant.threads}
            for mutant in found
        ]

    def shrink(self, session: Session) -> None:
        """Replace the comparison with that of its smallest case."""
        was, shrunk = self.comparison.case, shrink_and_confirm(self.comparison, session)
        self.comparison = shrunk.smallest
        end = "" if shrunk.finished else "; time ran out before everything was tried"
        self._add(
            "shrunk",
            "shrunk",
            f"in {shrunk.tried} tries from {was}{end}",
            {"from": str(was), "tried": shrunk.tried, "finished": shrunk.finished},
        )

    def keep(self, session: Session, campaign: dict[str, Any] | None = None) -> None:
        """Write its bundle, and add the path."""
        place = keep_bundle(self.comparison, session.pool, campaign=campaign)
        self._add("bundle", "bundle", place, place)

    def _add(self, name: str, head: str, line: str, value: object) -> None:
        self.lines.append(f"  {head:<7} {line}")
        self.fields[name] = value

    def text(self) -> str:
        return "\n".join([explain(mark_known(self.comparison)), *self.lines])

    def record(self) -> dict[str, Any]:
        return {**comparison_record(mark_known(self.comparison)), **self.fields}


def replay(job: Job, session: Session, before: Sequence[Case] = (), ranks: int = 0) -> Shown:
    """Run the cases before it, then trace the job on everything that its candidate emits.

    `ranks` is how many ranks were asked for, or 0 if that is as many as the cases need.
    """
    ran = run_history(before, job, session)
    traced = session.trace(job).found_out(before=ran, ranks=ranks)
    return Shown(name_stale_state(ran, traced, session))


def match_bundle(bundle: Bundle, comparison: Comparison, device: str) -> BundleMatch:
    """Compare the mark in a bundle with that of a comparison made on this device."""
    was, now, other = bundle.mark, mark_of(comparison), bundle.origin.device
    if now == was:
        return BundleMatch("same", was, now, f"as in the bundle: {was}")
    why = (
        f"; that was on {other}, and it was not seen on {device}: it may depend on the device"
        if other not in ("", device)
        else ""
    )
    if comparison.verdict.passed:
        return BundleMatch("gone", was, now, f"it passes now; in the bundle it is {was}{why}")
    return BundleMatch("changed", was, now, f"in the bundle it is {was}; now it is {now}{why}")
