"""Cases that each entry refuses."""

from functools import partial

from harness.candidates.published.library import Limit
from harness.candidates.published.skyrl.settings import CRITIC, POLICY, TEMPERED
from harness.candidates.published.wiring import averages
from harness.candidates.published.wiring.averages import other_average
from harness.candidates.published.wiring.limits import (
    OF_RECIPES,
    first,
    transformers,
    within,
)
from harness.case import Case
from harness.case.settings import as_limits

NO_RATIO = "rows of one token: cispo has no ratio to log"
UNLIKE_SIZES = "micro-batches of unlike sizes: its configuration refuses them"


def has_equal_micro_batches(case: Case) -> bool:
    """Whether all micro-batches have equally many rows."""
    return len(case.rows) % (case.dp * case.micro_batches) == 0


def token_mean(case: Case) -> str | None:
    """Refuse losses other than a sum over targets, divided by their number in all rows."""
    return transformers(case) or other_average(
        case, averages.whole, "its collator averages over all targets"
    )


def padded(case: Case) -> str | None:
    """Refuse tables of one width for all replicas of which one rank would have all tokens."""
    width = max(map(len, case.rows))
    columns = -(-width // case.sp)
    longest = [max(map(len, case.rows[d :: case.dp])) for d in range(case.dp)]
    return token_mean(case) or first(
        case.sp > 1
        and any(
            each >= 2 * case.sp and (width - each) // columns == (width - 1) // columns
            for each in longest
        )
        and "rows so short beside another replica's that one rank has all of them"
    )


def answered(case: Case) -> str | None:
    """Refuse rows without a response, on which cispo raises: it logs the largest of no ratios."""
    return transformers(case) or first(max(map(len, case.rows)) < 2 and NO_RATIO)


def reduced(case: Case) -> str | None:
    """Refuse what cannot run with the `loss_reduction` of the case's loss."""
    return answered(case) or first(
        case.loss == "micro-mean" and not has_equal_micro_batches(case) and UNLIKE_SIZES
    )


def row_mean(case: Case, *, alike: bool) -> str | None:
    """Refuse losses other than a mean of rows' means; if `alike`, also unlike micro-batches."""
    return (
        transformers(case)
        or other_average(case, averages.single_rows, "it averages means of rows")
        or first(alike and not has_equal_micro_batches(case) and UNLIKE_SIZES)
    )


def penalised(case: Case) -> str | None:
    """Refuse what cannot run as a policy whose only loss is the mean of rows' means."""
    return answered(case) or row_mean(case, alike=False)


def prompt_mean(case: Case) -> str | None:
    """Refuse losses other than a mean of the means of prompts."""
    return reduced(case) or first(
        case.loss == "token-mean"
        and len(case.rows) > 1
        and "loss=token-mean: prompts have their own means"
    )


def worker(case: Case, limits: str) -> str | None:
    """Refuse micro-batches of unlike sizes, and what has no ratio for `cispo` to log."""
    return within(case, limits) or first(
        not has_equal_micro_batches(case) and UNLIKE_SIZES,
        ("policy_loss_type", "cispo") in case.settings
        and max(map(len, case.rows)) < 2
        and NO_RATIO,
    )


# The worker makes micro-batches itself.
OF_WORKERS = OF_RECIPES.replace(" micro=1", "").replace("dtype=fp32", "dtype=fp64,fp32")
OF_ENTRIES = {
    "policy": f"{OF_WORKERS} {as_limits(TEMPERED)}",
    "policy-own": f"{OF_WORKERS} {as_limits(POLICY)}",
    "policy-tempered": OF_WORKERS,
    **dict.fromkeys(("policy-tokens", "policy-tokens-log"), f"{OF_WORKERS} micro=1"),
    # A model of values has no head to tie.
    **dict.fromkeys(("value", "value-own"), f"{OF_WORKERS} tied=0 {as_limits(CRITIC)}"),
}
LIMITS: dict[str, Limit] = {
    "sft": token_mean,
    "sft-padded": padded,
    "sft-sdpa": padded,
    "table": transformers,
    "table-padded": transformers,
    "rl": reduced,
    "rl-prompt-mean": prompt_mean,
    "rl-tokens": reduced,
    "rl-kl": penalised,
    "critic": partial(row_mean, alike=True),
    "critic-tokens": partial(row_mean, alike=False),
    **{key: partial(worker, limits=limits) for key, limits in OF_ENTRIES.items()},
}
STATED = dict.fromkeys(LIMITS, "dtype=fp32") | OF_ENTRIES
