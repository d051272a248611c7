"""Cases that each entry refuses."""

from functools import partial

from harness.candidates.published.library import Limit
from harness.candidates.published.wiring.averages import (
    micro_batches,
    micro_batches_of_all_replicas,
    other_average,
    whole,
)
from harness.candidates.published.wiring.limits import (
    OF_RECIPES,
    any_has_only_single_tokens,
    first,
    transformers,
    within,
)
from harness.case import Case, Row

# A model of scores has no head to tie.
OF_SCORES = f"{OF_RECIPES} tied=0"
OF_PAIRS_OF_SCORES = f"{OF_SCORES} group=2"
# Prompts begin a table.
OF_PROMPTED_PAIRS = f"{OF_RECIPES} group=2 side=right targets=answer"


def supervised(case: Case) -> str | None:
    """Refuse losses other than one mean over all targets of a step."""
    return (
        transformers(case)
        or other_average(case, whole, "it averages over all tokens of a step")
        or first(
            any_has_only_single_tokens(case)
            and "a micro-batch of rows of one token: squeeze(1) takes their dim, on one rank too"
        )
    )


def strided(case: Case) -> str | None:
    """Refuse an odd number of kv heads, of which two travel together."""
    return supervised(case) or first(
        case.kv_heads % 2 != 0 and f"kv_heads={case.kv_heads}: ring_attn_head_stride=2 needs pairs"
    )


def reinforced(case: Case, *, tokens: bool = True, rows: bool = True) -> str | None:
    """Refuse losses other than means over actions (`tokens`) or rows with actions (`rows`)."""
    one = len(case.rows) == 1
    computes = {
        "token-mean": tokens or one,
        "micro-mean": (tokens or one) and case.dp == case.micro_batches == 1,
        "row-mean": (rows or one) and all(row.supervised() for row in case.rows),
    }
    has_action = [
        any(case.rows[row].supervised() for row in rows)
        for rows in micro_batches_of_all_replicas(case)
    ]
    return transformers(case) or first(
        not computes[case.loss] and f"loss={case.loss}: it averages over what has an action",
        not all(has_action)
        and "no action in a micro-batch of any replica: its log divides by their number",
    )


def dynamic(case: Case) -> str | None:
    """Refuse given micro-batches: the trainer makes its own, from the lengths of rows."""
    return reinforced(case) or first(
        case.micro_batches > 1 and f"micro={case.micro_batches}: it makes its own",
        not all(row.supervised() for row in case.rows)
        and "a row without an action: alone in a micro-batch, its log divides by zero",
    )


def rewarded(case: Case) -> str | None:
    """Refuse what is no step of pairs."""
    return within(case, OF_PAIRS_OF_SCORES) or first(
        any_has_only_single_tokens(case)
        and "rows of one token only: squeeze(1) takes their dim, on one rank too"
    )


def acting(case: Case, limits: str) -> str | None:
    """Refuse a replica without an action."""
    batches = micro_batches(case)
    return within(case, limits) or first(
        not all(any(case.rows[row].supervised() for row in rows) for rows in batches)
        and "no action in a replica: its log divides by their number",
    )


def prompted(case: Case) -> str | None:
    """Refuse pairs of answers to prompts that are not as long."""
    refused = within(case, OF_PROMPTED_PAIRS)
    if refused:
        return refused
    of_replicas = [rows for micro in micro_batches(case) for rows in pairwise_of(list(micro))]
    return first(
        any(prompt_of(case.rows[a]) != prompt_of(case.rows[b]) for a, b in of_replicas)
        and "prompts of a pair that are not as long"
    )


def pairwise_of(rows: list[int]) -> list[tuple[int, int]]:
    return list(zip(rows[0::2], rows[1::2], strict=True))


def prompt_of(row: Row) -> int:
    """Return how many tokens come before the targets."""
    return min(row.supervised())


LIMITS: dict[str, Limit] = {
    "sft": supervised,
    "sft-loss-mean": supervised,
    "sft-stride": strided,
    "ppo": reinforced,
    "ppo-gspo": partial(reinforced, tokens=False),
    "ppo-dynamic": dynamic,
    "ppo-kl": partial(reinforced, rows=False),
    "ppo-log": reinforced,
    "reward": rewarded,
    "dpo": prompted,
    "critic": partial(acting, limits=OF_SCORES),
    "actor": partial(acting, limits=OF_RECIPES),
}
STATED = {
    **dict.fromkeys(LIMITS, "dtype=fp32"),
    "ppo-dynamic": "dtype=fp32 micro=1",
    "reward": OF_PAIRS_OF_SCORES,
    "critic": OF_SCORES,
    "dpo": OF_PROMPTED_PAIRS,
    "actor": OF_RECIPES,
}
