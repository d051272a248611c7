"""Published acceptance rules on the same mutants: each on its own shapes, and on our cases."""

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

# How many generated cases each rule is given, beside its own shapes.
GENERATED = 20
# Right by all accounts: who rejects them raises a false alarm.
CLEAN = ("native-gather", "native-local")


@dataclass
class Standing:
    """How a rule did."""

    name: str
    source: str = ""
    shapes: tuple[Case, ...] = ()
    # Mutants that it rejects on a shape of its own test, and on a generated case.
    on_own: list[str] = field(default_factory=list)
    on_generated: list[str] = field(default_factory=list)
    # Clean candidates that it rejects, on whatever.
    false_alarms: list[str] = field(default_factory=list)


def contest(
    mutants: Sequence[Mutant],
    cases: Sequence[Case],
    pool: RankPool,
    rivals: Sequence[Rival] = RIVALS,
) -> list[Standing]:
    """Give every rule the traces of every mutant; ours comes first."""
    cases = cases[:GENERATED]
    # It has no shapes of its own: it generates them.
    ours = Standing("this harness")
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
        if _found_by_us(name, cases, pool):
            ours.on_generated.append(mutant.key)
    for name in CLEAN:
        for rival in _rejecting(name, own, pool) + _rejecting(name, generated, pool):
            standings[rival].false_alarms.append(name)
        if _found_by_us(name, cases, pool):
            ours.false_alarms.append(name)
    return [ours, *standings.values()]


def _found_by_us(candidate: str, cases: Iterable[Case], pool: RankPool) -> bool:
    verdicts = (evaluate_traced(case, candidate, pool).verdict for case in cases)
    return any(verdict in (Verdict.DIVERGED, Verdict.FAULT) for verdict in verdicts)


def _rejecting(candidate: str, asked: Mapping[Case, list[Rival]], pool: RankPool) -> list[str]:
    """Rules that reject the candidate on one of the cases that they are asked about."""
    rejected: list[str] = []
    for case, rivals in asked.items():
        left = [rival for rival in rivals if rival.name not in rejected]
        if not left or case.ranks > pool.size:
            continue
        outcome = pool.run(case, locate(candidate), traced=True)
        if isinstance(outcome, Fault):
            # Whoever runs it sees it crash or hang, whatever is compared.
            rejected += [rival.name for rival in left]
        if not isinstance(outcome, Assembly):
            continue
        plain = reference_traces(case, traced=True)[1]
        rejected += [rival.name for rival in left if not rival.accepts(case, plain, outcome.trace)]
    return rejected


def on_own_shapes(standing: Standing, ranks: int) -> str:
    """How many it rejected there; a shape that needs more ranks than there are was not run."""
    if not standing.shapes:
        return "none"
    fit = [shape.ranks <= ranks for shape in standing.shapes]
    if not any(fit):
        return "not run"
    return f"{len(standing.on_own)}{'' if all(fit) else ' in part'}"
