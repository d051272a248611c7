"""Cases that each entry refuses."""

from functools import partial

from harness.candidates.published.library import Limit
from harness.candidates.published.openrlhf.settings import (
    ACTOR,
    CRITIC,
    DPO,
    FAMILIES,
    REINFORCING,
    REWARD,
    REWARDING,
    TRAINING,
    without_family,
)
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
    has_targets,
    transformers,
    within,
)
from harness.case import Case, Row
from harness.case.settings import as_limits

# The trainers make micro-batches themselves.
_OF_TRAINERS = OF_RECIPES.replace(" micro=1", "")
# A model of scores has no head to tie.
_OF_SCORES = f"{_OF_TRAINERS} tied=0"
# Prompts begin a table.
_OF_PROMPTED = f"{_OF_TRAINERS} group=2 side=right targets=answer"
OF_ENTRIES = {
    "sft-balanced": f"{_OF_TRAINERS} {as_limits(TRAINING)}",
    "reward": f"{_OF_SCORES} group=2 {as_limits({**REWARD, **REWARDING})}",
    "reward-logexp": f"{_OF_SCORES} group=2 {as_limits({**FAMILIES, **REWARDING})}",
    "dpo": f"{_OF_PROMPTED} {as_limits({**DPO, **TRAINING})}",
    "dpo-balanced": f"{_OF_PROMPTED} {as_limits({**without_family(DPO), **TRAINING})}",
    "critic": f"{_OF_SCORES} {as_limits({**CRITIC, **REINFORCING})}",
    "actor": f"{_OF_TRAINERS} {as_limits({**ACTOR, **REINFORCING})}",
    "actor-balanced": f"{_OF_TRAINERS} {as_limits({**without_family(ACTOR), **TRAINING})}",
}


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


def trained(case: Case, stated: str) -> str | None:
    """Refuse what no step of a recipe takes."""
    is_padded = chosen(case, "packing_samples") == "false"
    return within(case, stated) or first(
        is_padded and case.sp > 1 and "packing_samples=false: it refuses a ring without",
    )


def texts(case: Case, stated: str) -> str | None:
    """Refuse a step without targets, and what the trainer fails on."""
    return trained(case, stated) or first(
        not has_targets(case) and "no target, of which a listed bug is",
        any_has_only_single_tokens(case)
        and "a micro-batch of rows of one token: squeeze(1) takes their dim, on one rank too",
    )


def rewarded(case: Case, stated: str) -> str | None:
    """Refuse what is no step of pairs."""
    return trained(case, stated) or first(
        any_has_only_single_tokens(case)
        and "rows of one token only: squeeze(1) takes their dim, on one rank too",
        chosen(case, "loss_type") == "logexp"
        and chosen(case, "margin_loss_enable") == "true"
        and "margins with logexp, of which a listed bug is",
    )


def acting(case: Case, stated: str) -> str | None:
    """Refuse a micro-batch without an action, and settings that go without one another."""
    batches = micro_batches(case)
    is_dynamic = chosen(case, "dynamic_batch_enable") == "true"
    return trained(case, stated) or first(
        not all(any(case.rows[row].supervised() for row in rows) for rows in batches)
        and "no action in a micro-batch: its log divides by their number",
        is_dynamic
        and not all(row.supervised() for row in case.rows)
        and "a row without an action: alone in a micro-batch, its log divides by zero",
        is_dynamic
        and case.micro_batches > 1
        and f"micro={case.micro_batches}: with dynamic batches it makes its own",
        is_dynamic and len(case.rows) % case.dp != 0 and "replicas of fewer rows: it drops a row",
        chosen(case, "policy_loss_type") == "gspo"
        and chosen(case, "is_correction") not in (None, "off")
        and "GSPO with a correction: it takes other ratios, and no bound",
        chosen(case, "kl_loss") in (None, "none")
        and chosen(case, "unbiased_gradient") == "true"
        and "unbiased_gradient without a KL loss",
    )


def chosen(case: Case, name: str) -> str | None:
    """Return what a case states of a setting."""
    return dict(case.settings).get(name)


def prompted(case: Case, stated: str) -> str | None:
    """Refuse pairs of answers to prompts that are not as long."""
    refused = trained(case, stated)
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


LIMIT_OF = {
    "sft-balanced": texts,
    **dict.fromkeys(("reward", "reward-logexp"), rewarded),
    **dict.fromkeys(("dpo", "dpo-balanced"), prompted),
    **dict.fromkeys(("critic", "actor", "actor-balanced"), acting),
}
LIMITS: dict[str, Limit] = {
    "sft": supervised,
    "sft-loss-mean": supervised,
    "sft-stride": strided,
    "ppo": reinforced,
    "ppo-gspo": partial(reinforced, tokens=False),
    "ppo-dynamic": dynamic,
    "ppo-kl": partial(reinforced, rows=False),
    "ppo-log": reinforced,
    **{key: partial(LIMIT_OF[key], stated=stated) for key, stated in OF_ENTRIES.items()},
}
STATED = {
    **dict.fromkeys(LIMITS, "dtype=fp32"),
    "ppo-dynamic": "dtype=fp32 micro=1",
    **OF_ENTRIES,
}
