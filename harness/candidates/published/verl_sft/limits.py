"""What verl's first SFT trainer cannot do: it has one loss, and says which."""

from functools import partial

from harness.candidates.published.library import Limit
from harness.candidates.published.wiring.limits import first, transformers
from harness.case import Case


def limit(case: Case, *, balanced: bool) -> str | None:
    """The loss averages means of micro-batches; with `balanced` each mean spans all replicas."""
    alike = case.dp == 1 if balanced else True
    whole = case.micro_batches == 1 and (balanced or case.dp == 1)
    own = case.micro_batches * case.dp == len(case.rows)
    computes = {"micro-mean": alike, "token-mean": whole, "row-mean": alike and own}
    return transformers(case) or first(
        not computes[case.loss] and f"loss={case.loss}: it averages means of micro-batches"
    )


LIMITS: dict[str, Limit] = {
    "packed": partial(limit, balanced=False),
    "single-turn": partial(limit, balanced=False),
    "balanced": partial(limit, balanced=True),
}
