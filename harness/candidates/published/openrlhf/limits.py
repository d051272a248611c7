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
    any_is_padded_on_the_left,
    first,
    transformers,
    whole_pairs,
    within,
)
from harness.case import Case, Row

# A model of scores has no head to tie.
OF_SCORES = f"{OF_RECIPES} tied=0"


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
    return (
        within(case, OF_SCORES)
        or whole_pairs(case)
        or first(
            any_has_only_single_tokens(case)
            and "rows of one token only: squeeze(1) takes their dim, on one rank too"
        )
    )


def acting(case: Case, limits: str) -> str | None:
    """Refuse a replica without an action."""
    batches = micro_batches(case)
    return within(case, limits) or first(
        not all(any(case.rows[row].supervised() for row in rows) for rows in batches)
        and "no action in a replica: its log divides by their number",
    )


def prompted(case: Case) -> str | None:
    """Refuse pairs whose targets are not all that follows a prompt, as long in both rows."""
    refused = within(case, OF_RECIPES) or whole_pairs(case)
    if refused:
        return refused
    of_replicas = [rows for micro in micro_batches(case) for rows in pairwise_of(list(micro))]
    return first(
        any_is_padded_on_the_left(case) and "padding before a row: prompts begin a table",
        any(prompt_of(case.rows[a]) != prompt_of(case.rows[b]) for a, b in of_replicas)
        and "prompts of a pair that are not as long",
        not all(map(prompt_of, case.rows)) and "targets that are not all that follows a prompt",
    )


def pairwise_of(rows: list[int]) -> list[tuple[int, int]]:
    return list(zip(rows[0::2], rows[1::2], strict=True))


def prompt_of(row: Row) -> int:
    """Return how many tokens come before the targets, or 0 if these are not all the others."""
    targets = list(row.supervised())
    return targets[0] if targets and targets == [*range(targets[0], len(row))] else 0


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
    **dict.fromkeys(("reward", "critic"), OF_SCORES),
    **dict.fromkeys(("dpo", "actor"), OF_RECIPES),
}
