"""What each entry refuses."""

from harness.candidates.published.library import Limit
from harness.candidates.published.wiring.limits import all_have_targets, decoder, first
from harness.case import Case

DTYPES = ("fp64", "fp32", "bf16")


def attention(case: Case) -> str | None:
    return decoder(case, DTYPES)


def trained(case: Case) -> str | None:
    return decoder(case, DTYPES) or first(
        case.loss != "micro-mean" and f"loss={case.loss}: it averages the means of micro-batches",
        not all_have_targets(case)
        and "a micro-batch without targets: its mean of nothing is NaN, as torch's is",
    )


LIMITS: dict[str, Limit] = {"attention": attention, "shifted": trained, "sft": trained}
