"""A failure seen again: whether it is the same, and how little it takes to see it."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from msgspec import to_builtins

from harness.case import Case
from harness.compare import Comparison
from harness.failure.bundle import Bundle
from harness.failure.bundle.keep import keep
from harness.failure.confirm import rooted_in, run_before
from harness.failure.same_numbers import known_alike
from harness.failure.shrink import worth_shrinking
from harness.failure.signature import Mark, mark_of
from harness.failure.smallest import fewest_layers, smallest
from harness.judge import Job, Session, diagnosed
from harness.judge.known import recognised
from harness.report import comparison_record, explain


@dataclass(frozen=True, slots=True)
class Again:
    """What has become of a failure, and that in words."""

    outcome: Literal["same", "changed", "gone"]
    was: Mark
    now: Mark
    says: str


@dataclass(slots=True)
class Shown:
    """A comparison, and what else was found out: a line for people, a field for programs."""

    comparison: Comparison
    lines: list[str] = field(default_factory=list)
    fields: dict[str, Any] = field(default_factory=dict)

    @property
    def verdict(self) -> str:
        return recognised(self.comparison).verdict.name

    @property
    def failed(self) -> bool:
        """Whether it can be looked at any closer."""
        return worth_shrinking(self.comparison)

    def beside(self, bundle: Bundle, device: str) -> None:
        """Say whether it is the failure in a bundle."""
        seen = again(bundle, self.comparison, device)
        self._add("again", seen.outcome, seen.says, to_builtins(seen))

    def bisect_layers(self, session: Session) -> None:
        """Say with how few layers it still fails."""
        case = self.comparison.case
        fewest = fewest_layers(self.comparison, session).case
        says = (
            f"{fewest.layers} of {case.layers} still fail: {fewest}"
            if fewest.layers < case.layers
            else f"with fewer than {case.layers} it does not fail"
        )
        value = {"fewest": fewest.layers, "of": case.layers, "case": str(fewest)}
        self._add("layers", "layers", says, value)

    def diagnose(self, session: Session) -> None:
        """Name it by experiments."""
        self.comparison = diagnosed(self.comparison, session)

    def compare_with_known(self, session: Session) -> None:
        """Cite the mutants that give the same wrong numbers."""
        found, compared = known_alike(self.comparison, session)
        said = [
            f"the same numbers as {each.key}: {each.sentence} ({', '.join(each.threads)})"
            for each in found
        ]
        for line in [*(said or ["no known bug gives the same numbers"]), compared]:
            self.lines.append(f"  like    {line}")
        self.fields["like"] = [
            {"key": mutant.key, "sentence": mutant.sentence, "threads": mutant.threads}
            for mutant in found
        ]

    def shrink(self, session: Session) -> None:
        """Show a smaller case instead."""
        was, shrunk = self.comparison.case, smallest(self.comparison, session)
        self.comparison = shrunk.smallest
        end = "" if shrunk.finished else "; time ran out before everything was tried"
        self._add(
            "shrunk",
            "shrunk",
            f"in {shrunk.tried} tries from {was}{end}",
            {"from": str(was), "tried": shrunk.tried, "finished": shrunk.finished},
        )

    def keep(self, session: Session, campaign: dict[str, Any] | None = None) -> None:
        """Write a bundle of it; the path stands last."""
        place = keep(self.comparison, session.pool, campaign=campaign)
        self._add("bundle", "bundle", place, place)

    def _add(self, name: str, head: str, says: str, value: object) -> None:
        self.lines.append(f"  {head:<7} {says}")
        self.fields[name] = value

    def text(self) -> str:
        return "\n".join([explain(recognised(self.comparison)), *self.lines])

    def record(self) -> dict[str, Any]:
        return {**comparison_record(recognised(self.comparison)), **self.fields}


def look(job: Job, session: Session, before: Sequence[Case] = (), ranks: int = 0) -> Shown:
    """Trace a job fully on ranks that ran these before it; as many as were asked for."""
    ran = run_before(before, job, session)
    seen = session.trace(job)
    return Shown(rooted_in(ran, replace(seen, before=ran, ranks=ranks), session))


def again(bundle: Bundle, seen: Comparison, device: str) -> Again:
    """What was kept beside what is seen now, on this device."""
    was, now, other = bundle.mark, mark_of(seen), bundle.origin.device
    if now == was:
        return Again("same", was, now, f"as in the bundle: {was}")
    why = (
        f"; that was on {other}, and it was not seen on {device}: it may depend on the device"
        if other not in ("", device)
        else ""
    )
    if seen.verdict.passed:
        return Again("gone", was, now, f"it passes now; in the bundle it is {was}{why}")
    return Again("changed", was, now, f"in the bundle it is {was}; now it is {now}{why}")
