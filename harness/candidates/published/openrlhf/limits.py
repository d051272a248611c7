"""Cases that each entry refuses."""

from functools import partial

from harness.candidates.published.library import Limit
from harness.candidates.published.wiring.averages import (
    micro_batches_of_all_replicas,
    other_average,
    whole,
)
from harness.candidates.published.wiring.limits import (
    any_has_only_single_tokens,
    first,
    transformers,
)
from harness.case import Case


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


LIMITS: dict[str, Limit] = {
    "sft": supervised,
    "sft-loss-mean": supervised,
    "sft-stride": strided,
    "ppo": reinforced,
    "ppo-gspo": partial(reinforced, tokens=False),
    "ppo-dynamic": dynamic,
    "ppo-kl": partial(reinforced, rows=False),
    "ppo-log": reinforced,
}
STATED = {**dict.fromkeys(LIMITS, "dtype=fp32"), "ppo-dynamic": "dtype=fp32 micro=1"}
