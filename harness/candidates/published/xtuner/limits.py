"""Cases that each entry refuses."""

from functools import partial

from harness.candidates.published.library import Limit
from harness.candidates.published.wiring.limits import ALL_DTYPES, all_have_targets, decoder, first
from harness.case import Case

attention = partial(decoder, dtypes=ALL_DTYPES)


def trained(case: Case) -> str | None:
    """Refuse losses other than the mean of the means of micro-batches."""
    return attention(case) or first(
        case.loss != "micro-mean" and f"loss={case.loss}: it averages the means of micro-batches",
        not all_have_targets(case)
        and "a micro-batch without targets: its mean of nothing is NaN, as torch's is",
    )


LIMITS: dict[str, Limit] = {"attention": attention, "shifted": trained, "sft": trained}
