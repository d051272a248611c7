"""Score rivals on mutants: each on the shapes of its own tests, and on generated cases."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from harness.candidates import locate
from harness.candidates.bank import Mutant
from harness.case import Case
from harness.compare import Verdict
from harness.judge.stages import reference_traces
from harness.ranks.pool import RankPool
from harness.trace import Assembly, Fault
from properties.helpers.judging import evaluate_traced
from properties.rivals.rule import Rival
from properties.rivals.table import RIVALS

# How many generated cases each rule judges, besides its own shapes.
GENERATED = 20
# Correct steps; a rule that rejects them raises a false alarm.
CLEAN = ("native-gather", "native-local")


@dataclass
class Standing:
    """The score of one rule."""

    name: str
    source: str = ""
    shapes: tuple[Case, ...] = ()
    # Mutants that it rejects on a shape of its own tests, and on a generated case.
    on_own: list[str] = field(default_factory=list)
    on_generated: list[str] = field(default_factory=list)
    # Correct candidates that it rejects on any case.
    false_alarms: list[str] = field(default_factory=list)


def contest(
    mutants: Sequence[Mutant],
    cases: Sequence[Case],
    pool: RankPool,
    rivals: Sequence[Rival] = RIVALS,
) -> list[Standing]:
    """Give every rule the traces of every mutant; the harness comes first."""
    cases = cases[:GENERATED]
    # The harness has no shapes of its own, since it generates its cases.
    harness = Standing("this harness")
    standings = {rival.name: Standing(rival.name, rival.source, rival.shapes) for rival in rivals}
    own = {
        shape: [rival for rival in rivals if shape in rival.shapes]
        for rival in rivals
        for shape in rival.shapes
    }
    generated = {case: list(rivals) for case in cases}
    for mutant in mutants:
        name = mutant.candidate.name
        for rival in _rejecting(name, own, pool):
            standings[rival].on_own.append(mutant.key)
        for rival in _rejecting(name, generated, pool):
            standings[rival].on_generated.append(mutant.key)
        if _found_by_harness(name, cases, pool):
            harness.on_generated.append(mutant.key)
    for name in CLEAN:
        for rival in _rejecting(name, own, pool) + _rejecting(name, generated, pool):
            standings[rival].false_alarms.append(name)
        if _found_by_harness(name, cases, pool):
            harness.false_alarms.append(name)
    return [harness, *standings.values()]


def _found_by_harness(candidate: str, cases: Iterable[Case], pool: RankPool) -> bool:
    verdicts = (evaluate_traced(case, candidate, pool).verdict for case in cases)
    return any(verdict in (Verdict.DIVERGED, Verdict.FAULT) for verdict in verdicts)


def _rejecting(candidate: str, judges: Mapping[Case, list[Rival]], pool: RankPool) -> list[str]:
    """Return the rules that reject the candidate on one of their cases."""
    rejecting: list[str] = []
    for case, rivals in judges.items():
        undecided = [rival for rival in rivals if rival.name not in rejecting]
        if not undecided or case.ranks > pool.size:
            continue
        outcome = pool.run(case, locate(candidate), traced=True)
        if isinstance(outcome, Fault):
            # A crash or a hang fails any test, whatever it compares.
            rejecting += [rival.name for rival in undecided]
        if not isinstance(outcome, Assembly):
            continue
        plain, trace = reference_traces(case, traced=True)[1], outcome.trace
        rejecting += [rival.name for rival in undecided if not rival.accepts(case, plain, trace)]
    return rejecting


def on_own_shapes(standing: Standing, ranks: int) -> str:
    """Describe how many mutants a rule rejects on those of its shapes that fit the ranks."""
    if not standing.shapes:
        return "none"
    fit = [shape.ranks <= ranks for shape in standing.shapes]
    if not any(fit):
        return "not run"
    return f"{len(standing.on_own)}{'' if all(fit) else ' in part'}"
