"""What each entry refuses."""

from functools import partial

from harness.candidates.published.library import Limit
from harness.candidates.published.wiring.limits import first, transformers
from harness.case import Case


def equal(case: Case) -> bool:
    """Whether all micro-batches have equally many rows."""
    return len(case.rows) % (case.dp * case.micro_batches) == 0


def token_mean(case: Case) -> str | None:
    """Losses are summed, and the collator has divided by all targets."""
    one = case.dp == 1 and case.micro_batches == 1
    computes = {"token-mean": True, "micro-mean": one, "row-mean": len(case.rows) == 1}
    return transformers(case) or first(
        not computes[case.loss] and f"loss={case.loss}: its collator averages over all targets"
    )


def padded(case: Case) -> str | None:
    """All replicas have tables of one width, padded on the left."""
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


def reduced(case: Case) -> str | None:
    """Every loss of a case has a `loss_reduction`."""
    return transformers(case) or first(
        case.loss == "micro-mean"
        and not equal(case)
        and "micro-batches of unlike sizes: its configuration refuses them",
    )


def row_mean(case: Case, *, alike: bool) -> str | None:
    """The loss is a mean of rows' means."""
    one = len(case.rows) == 1
    parts = case.dp * case.micro_batches == len(case.rows)
    computes = {"token-mean": one, "micro-mean": parts, "row-mean": True}
    return transformers(case) or first(
        not computes[case.loss] and f"loss={case.loss}: it averages means of rows",
        alike
        and not equal(case)
        and "micro-batches of unlike sizes: its configuration refuses them",
    )


def prompt_mean(case: Case) -> str | None:
    """Targets of a prompt are averaged, and then prompts."""
    return reduced(case) or first(
        case.loss == "token-mean"
        and len(case.rows) > 1
        and "loss=token-mean: prompts have their own means"
    )


LIMITS: dict[str, Limit] = {
    "sft": token_mean,
    "sft-padded": padded,
    "sft-sdpa": padded,
    "table": transformers,
    "table-padded": transformers,
    "rl": reduced,
    "rl-prompt-mean": prompt_mean,
    "rl-tokens": reduced,
    "rl-kl": partial(row_mean, alike=False),
    "critic": partial(row_mean, alike=True),
    "critic-tokens": partial(row_mean, alike=False),
}
STATED = dict.fromkeys(LIMITS, "dtype=fp32")
