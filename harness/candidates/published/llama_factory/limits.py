"""Cases that LLaMA-Factory, or its wiring, cannot run."""

from harness.candidates.published.library import Limit
from harness.candidates.published.wiring import limits
from harness.case import Case


def trainer(case: Case) -> str | None:
    """Refuse what neither batching strategy runs."""
    return limits.transformers(case) or limits.first(
        case.loss != "token-mean" and f"loss={case.loss}: it averages over tokens",
        case.sp == 1
        and limits.any_has_only_single_tokens(case)
        and "a batch of one token: nothing is left of it to predict, and on one rank that fails",
    )


def padded(case: Case) -> str | None:
    """Refuse what cannot run with rows in a table."""
    return trainer(case) or limits.first(
        limits.any_is_padded_on_the_left(case) and "it pads on the right"
    )


LIMITS: dict[str, Limit] = {"padded": padded, "packed": trainer}
