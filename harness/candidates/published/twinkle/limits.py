"""Cases that twinkle, or its wiring, cannot run."""

from functools import partial

from harness.candidates.published.library import Limit
from harness.candidates.published.twinkle import settings
from harness.candidates.published.wiring import limits
from harness.candidates.published.wiring.averages import micro_batches, other_average
from harness.candidates.published.wiring.limits import OF_RECIPES
from harness.case import Case
from harness.case.settings import as_limits
from harness.case.stated import ALL_RANKS


def trainer(case: Case, dtype: str = "fp32") -> str | None:
    """Refuse what no entry runs."""
    return limits.transformers(case, (dtype,))


def over_all(case: Case) -> str | None:
    """Refuse losses other than a sum divided by the tokens of all micro-batches and replicas."""
    return limits.first(
        case.loss != "token-mean" and f"loss={case.loss}: its sum is divided by the tokens of all"
    )


def summed(case: Case, dtype: str = "fp32") -> str | None:
    """Refuse what entries with a summed loss cannot run."""
    return (
        trainer(case, dtype)
        or over_all(case)
        or limits.first(
            case.dp * case.micro_batches > 1
            and not limits.all_have_targets(case)
            and "a micro-batch without targets counts as one token, on one rank too: an entry"
        )
    )


def averaged(case: Case) -> str | None:
    """Refuse losses other than the mean of the means of micro-batches."""
    return trainer(case) or other_average(case, micro_batches, "each micro-batch is averaged")


def several(case: Case) -> str | None:
    """Refuse what twinkle's processor cannot collate."""
    return limits.first(
        any(
            len(rows) > 1 and any(len(row) == 1 for row in rows)
            for rows in limits.rows_by_micro_batch(case)
        )
        and "a row of one token beside others: collating raises, on one rank too"
    )


def table(case: Case) -> str | None:
    """Refuse what cannot run with rows in a table."""
    sides = {
        row.side
        for rows in limits.rows_by_micro_batch(case)
        for row in rows
        if len(row) < max(map(len, rows))
    }
    return several(case) or limits.first(
        len(sides) > 1 and "a processor pads all rows on one side",
        case.kernel != "sdpa" and f"kernel={case.kernel}: attention is fused, which rounds more",
        needs_ring(case)
        and f"kv_heads={case.kv_heads} sp={case.sp}: a ring, which takes packed rows only",
    )


def needs_ring(case: Case) -> bool:
    """Whether there are too few kv heads to share them among all ranks of a sequence."""
    return limits.ulysses_ranks(case) < case.sp


def stream(case: Case) -> str | None:
    """Refuse what cannot run with all rows of a micro-batch in one."""
    return limits.first(
        needs_ring(case)
        and f"kv_heads={case.kv_heads} sp={case.sp}: a ring, which is an entry of its own"
    )


def packed(case: Case) -> str | None:
    """Refuse what entries with a summed loss cannot run on rows that the processor packs."""
    return summed(case) or several(case) or stream(case)


def ring(case: Case) -> str | None:
    """Refuse what is not a ring of groups that share heads."""
    return (
        # As for flash-attn: in fp32 a ring's buffers would be the same memory as its sums.
        summed(case, "bf16")
        or several(case)
        or limits.first(
            case.sp > 1
            and not needs_ring(case)
            and f"kv_heads={case.kv_heads} sp={case.sp}: no ring is needed",
            case.window is not None and "window: its ring fails on one, loudly",
        )
    )


# The trainer makes micro-batches itself, and both attentions compute in any dtype. With a tied
# head tokens are nearly certain, and rounding hides what differences of logits come to.
OF_LOSSES = f"{OF_RECIPES.replace(' micro=1', '').replace('dtype=fp32', 'dtype=fp64,fp32')} tied=0"
OF_ENTRIES = {
    "grpo": f"{OF_LOSSES} {as_limits(settings.GRPO)}",
    "ppo": f"{OF_LOSSES} {as_limits(settings.PPO)}",
    "dpo": f"{OF_LOSSES} group=2 targets=some {as_limits(settings.DPO)}",
    "pairs": f"{OF_LOSSES} group=2 targets=some {as_limits(settings.PAIRS)}",
    "value": f"{OF_LOSSES} {as_limits(settings.VALUE)}",
}


def beyond(case: Case, limits_of: str, *, is_packed: bool) -> str | None:
    """Refuse what entries with a recipe cannot run."""
    layout = (several(case) or stream(case)) if is_packed else table(case)
    return limits.within(case, limits_of) or layout


def grpo(case: Case, *, is_packed: bool) -> str | None:
    """Refuse what CISPO does otherwise on one rank, too."""
    is_cispo = ("loss", "CISPOLoss") in case.settings
    return beyond(case, OF_ENTRIES["grpo"], is_packed=is_packed) or limits.first(
        is_cispo
        and ("epsilon_high", "0.28") in case.settings
        and "epsilon_high=0.28: CISPO does not read it, on one rank too",
        is_cispo
        and not limits.all_have_targets(case)
        and "a micro-batch without targets: CISPO divides by their number, on one rank too",
    )


def pairs(case: Case, key: str, *, is_packed: bool) -> str | None:
    """Refuse what pairs of answers cannot have, on one rank either."""
    return beyond(case, OF_ENTRIES[key], is_packed=is_packed) or limits.first(
        ("label_smoothing", "0.1") in case.settings
        and not {("loss_type", name) for name in settings.DPO["loss_type"][1:]}.isdisjoint(
            case.settings
        )
        and "label_smoothing=0.1: the release has it for the sigmoid alone",
    )


def with_recipes(key: str) -> dict[str, Limit]:
    """Return the limits of an entry with a recipe, with rows in a table and packed."""
    of = partial(beyond, limits_of=OF_ENTRIES[key])
    if key == "grpo":
        of = partial(grpo)
    elif key in ("dpo", "pairs"):
        of = partial(pairs, key=key)
    return {key: partial(of, is_packed=False), f"packed-{key}": partial(of, is_packed=True)}


LIMITS: dict[str, Limit] = {
    "padded": lambda case: summed(case) or table(case),
    "padded-flash": lambda case: summed(case) or table(case),
    "packed": packed,
    "packed-dataset": lambda case: summed(case) or stream(case),
    "ring": ring,
    "without-targets": lambda case: trainer(case) or over_all(case) or table(case),
    "mean": lambda case: averaged(case) or table(case),
    "packed-mean": lambda case: averaged(case) or several(case) or stream(case),
    "chunked": lambda case: summed(case) or table(case),
    "packed-chunked": packed,
    "chunked-mean": lambda case: averaged(case) or table(case),
    "fused": lambda case: summed(case) or table(case),
    "packed-fused": packed,
}
for _key in OF_ENTRIES:
    LIMITS |= with_recipes(_key)
SUM, TABLE = "dtype=fp32 loss=token-mean", "kernel=sdpa"
# Only a ring makes groups of its own; other entries use the harness's.
STATED = {
    **dict.fromkeys(
        ("padded", "padded-flash", "without-targets", "chunked", "fused"), f"{SUM} {TABLE}"
    ),
    **dict.fromkeys(("packed", "packed-dataset", "packed-chunked", "packed-fused"), SUM),
    **dict.fromkeys(("mean", "chunked-mean"), f"dtype=fp32 {TABLE}"),
    "packed-mean": "dtype=fp32",
    "ring": f"dtype=bf16 loss=token-mean {ALL_RANKS}",
    **{key: f"{line} kernel=sdpa" for key, line in OF_ENTRIES.items()},
    **{f"packed-{key}": line for key, line in OF_ENTRIES.items()},
}
