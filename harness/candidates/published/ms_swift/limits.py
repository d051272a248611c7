"""Cases that ms-swift, or its wiring, cannot run."""

from functools import partial

from harness.candidates.published.library import Limit
from harness.candidates.published.ms_swift.settings import FIPO, GRPO, RLOO
from harness.candidates.published.wiring import limits
from harness.candidates.published.wiring.limits import OF_RECIPES, ulysses_ranks
from harness.case import Case
from harness.case.settings import as_limits
from harness.case.stated import ALL_RANKS


def trainer(case: Case, dtype: str = "fp32") -> str | None:
    """Refuse what no entry runs."""
    return limits.transformers(case, (dtype,)) or limits.first(
        not limits.has_targets(case)
        and "no target at all: the trainer divides by their number, also on one rank",
        case.loss == "micro-mean"
        and case.micro_batches > 1
        and "loss=micro-mean micro_batches>1: micro-batches are weighed by their tokens",
        case.loss == "micro-mean"
        and not limits.all_have_targets(case)
        and "loss=micro-mean: a replica without targets divides by zero, also on one rank",
    )


def token_mean(case: Case, dtype: str = "fp32") -> str | None:
    """Refuse what entries that do not weigh tokens cannot run."""
    return trainer(case, dtype) or limits.first(
        case.loss == "row-mean" and "loss=row-mean: only loss_scale weighs rows"
    )


def plain(case: Case, dtype: str = "fp32") -> str | None:
    """Refuse what entries that leave the loss on one rank to the model cannot run."""
    return token_mean(case, dtype) or limits.first(
        case.sp == 1
        and not limits.all_have_targets(case)
        and "a micro-batch without targets: on one rank the mean over nothing is NaN"
    )


def padded(case: Case) -> str | None:
    """Refuse what cannot run with rows in a table."""
    return limits.first(
        case.kernel != "sdpa" and f"kernel={case.kernel}: attention is fused, which rounds more",
        ulysses_ranks(case) < case.sp
        and f"kv_heads={case.kv_heads} sp={case.sp}: its ring takes no padded rows",
        case.sp > 1
        and limits.any_is_padded_on_the_left(case)
        and "its template refuses padding on the left where the sequence is shared",
    )


def packed(case: Case) -> str | None:
    """Refuse what cannot run with all rows of a micro-batch in one."""
    return limits.first(
        ulysses_ranks(case) < case.sp
        and f"kv_heads={case.kv_heads} sp={case.sp}: a ring, which is an entry of its own"
    )


def ring(case: Case) -> str | None:
    """Refuse what is not a ring of groups that share heads."""
    return limits.first(
        case.sp > 1
        and ulysses_ranks(case) == case.sp
        and f"kv_heads={case.kv_heads} sp={case.sp}: no ring is needed",
        case.sp > 1
        and ulysses_ranks(case) == 1
        and f"kv_heads={case.kv_heads} sp={case.sp}: nothing but a ring, without an all-to-all",
        case.window is not None and "window: its ring fails on one, loudly",
    )


def channel(case: Case) -> str | None:
    """Refuse what differs from a mean over all tokens in every micro-batch and replica."""
    return token_mean(case) or limits.first(
        case.loss == "micro-mean" and "loss=micro-mean: a channel is averaged over tokens",
        case.steps > 1 and "steps>1: a channel is averaged over the steps between two logs",
    )


# The trainers make micro-batches themselves, and both attentions compute in any dtype.
OF_RLHF = OF_RECIPES.replace(" micro=1", "").replace("dtype=fp32", "dtype=fp64,fp32")
OF_ANSWERS = {
    key: f"{OF_RLHF} targets=some {as_limits(settings)}"
    for key, settings in {
        "grpo": GRPO,
        "packed-grpo": GRPO,
        "packed-rloo": RLOO,
        "packed-fipo": FIPO,
    }.items()
}
OF_PAIRS = f"{OF_RLHF} group=2"


def pairs(case: Case) -> str | None:
    """Refuse what is no step of pairs, or needs a ring."""
    return limits.within(case, OF_PAIRS) or packed(case)


def answers(case: Case, stated: str) -> str | None:
    """Refuse what cannot be two answers to each prompt, which ranks make and share."""
    return (
        limits.within(case, stated)
        or packed(case)
        or limits.first(
            len(case.rows) % (2 * case.dp) != 0
            and "rows that are no pairs, as many in each replica",
            len(case.rows) % (case.ranks * case.micro_batches) != 0
            and "rows that ranks and micro-batches cannot share evenly",
        )
    )


LIMITS: dict[str, Limit] = {
    "padded": lambda case: plain(case) or padded(case),
    "packed": lambda case: plain(case) or packed(case),
    # As for flash-attn: in fp32 a ring's buffers would be the same memory as its sums.
    "ring": lambda case: plain(case, "bf16") or ring(case),
    "loss-scale": lambda case: trainer(case) or padded(case),
    "packed-loss-scale": lambda case: trainer(case) or packed(case),
    "cross-entropy": lambda case: token_mean(case) or padded(case),
    "packed-cross-entropy": lambda case: token_mean(case) or packed(case),
    "channel": lambda case: channel(case) or padded(case),
    "packed-channel": lambda case: channel(case) or packed(case),
    "dpo": pairs,
    "packed-dpo": pairs,
    **{key: partial(answers, stated=stated) for key, stated in OF_ANSWERS.items()},
}
# Only a ring makes groups of its own; other entries use the harness's.
STATED = {
    **dict.fromkeys(LIMITS, "dtype=fp32"),
    "ring": f"dtype=bf16 {ALL_RANKS}",
    **dict.fromkeys(("dpo", "packed-dpo"), OF_PAIRS),
    **OF_ANSWERS,
}
