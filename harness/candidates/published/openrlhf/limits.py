"""What each entry refuses."""

from functools import partial
from itertools import islice

from harness.candidates.published.library import Limit
from harness.candidates.published.wiring.limits import first, rows_by_micro_batch, transformers
from harness.case import Case


def alone(case: Case) -> bool:
    """Whether all rows are one micro-batch."""
    return case.dp == case.micro_batches == 1


def supervised(case: Case) -> str | None:
    """The loss is one mean over all targets of a step."""
    computes = {"token-mean": True, "micro-mean": alone(case), "row-mean": len(case.rows) == 1}
    return transformers(case) or first(
        not computes[case.loss] and f"loss={case.loss}: it averages over all tokens of a step",
        any(max(map(len, rows)) == 1 for rows in rows_by_micro_batch(case))
        and "a micro-batch of rows of one token: squeeze(1) takes their dim, on one rank too",
    )


def strided(case: Case) -> str | None:
    """Keys of two kv heads travel together."""
    return supervised(case) or first(
        case.kv_heads % 2 != 0 and f"kv_heads={case.kv_heads}: ring_attn_head_stride=2 needs pairs"
    )


def reinforced(case: Case, *, tokens: bool = True, rows: bool = True) -> str | None:
    """The loss is a mean over actions (`tokens`), over rows with actions (`rows`), or either."""
    one = len(case.rows) == 1
    computes = {
        "token-mean": tokens or one,
        "micro-mean": (tokens or one) and alone(case),
        "row-mean": (rows or one) and all(row.supervised() for row in case.rows),
    }
    each = list(rows_by_micro_batch(case))
    together = [
        [row for rows in islice(each, number, None, case.micro_batches) for row in rows]
        for number in range(case.micro_batches)
    ]
    return transformers(case) or first(
        not computes[case.loss] and f"loss={case.loss}: it averages over what has an action",
        not all(any(row.supervised() for row in rows) for rows in together)
        and "no action in a micro-batch of any replica: its log divides by their number",
    )


def dynamic(case: Case) -> str | None:
    """The trainer makes micro-batches by itself, of rows by their lengths."""
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
STATED = {
    "sft": "dtype=fp32",
    "sft-loss-mean": "dtype=fp32",
    "sft-stride": "dtype=fp32",
    "ppo": "dtype=fp32",
    "ppo-gspo": "dtype=fp32",
    "ppo-dynamic": "dtype=fp32 micro=1",
    "ppo-kl": "dtype=fp32",
    "ppo-log": "dtype=fp32",
}
