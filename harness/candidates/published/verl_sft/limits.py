"""Cases that verl's first SFT trainer cannot run: it has only one loss."""

from functools import partial

from harness.candidates.published.library import Limit
from harness.candidates.published.wiring.averages import (
    micro_batches,
    micro_batches_of_all_replicas,
    other_average,
)
from harness.candidates.published.wiring.limits import transformers
from harness.case import Case


def limit(case: Case, *, balanced: bool) -> str | None:
    """Refuse other losses than means of micro-batches, which span all replicas if `balanced`."""
    average = micro_batches_of_all_replicas if balanced else micro_batches
    return transformers(case) or other_average(case, average, "it averages means of micro-batches")


LIMITS: dict[str, Limit] = {
    "packed": partial(limit, balanced=False),
    "single-turn": partial(limit, balanced=False),
    "balanced": partial(limit, balanced=True),
}
