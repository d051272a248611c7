"""Cases that areal refuses, or that its loss cannot express."""

from functools import partial

from harness.candidates.published.areal.settings import ACTOR, CRITIC, ENGINE, NORMED, REWARDS
from harness.candidates.published.library import Limit
from harness.candidates.published.wiring import limits
from harness.case import Case
from harness.case.settings import as_limits

FEWER_ROWS = "micro: a replica has fewer rows than micro-batches"
NO_TARGET = "no target: it refuses such a batch"
# The engine has one supervised loss, and computes log-probabilities in fp32.
_ENGINE = "dtype=fp32 loss=token-mean model=qwen2,qwen3 ranks=all"


def engine(case: Case) -> str | None:
    """Refuse what the engine fails on, loudly, before it trains."""
    return limits.every_wiring(case) or limits.first(
        case.dtype != "fp32" and f"dtype={case.dtype}: it computes log-probabilities in fp32",
        case.loss != "token-mean" and f"loss={case.loss}: its loss is a mean over tokens",
        case.model == "llama"
        and "model=llama: it hands over a dict as mask, which this model cannot read",
        case.heads % case.sp != 0 and "heads: must be divisible by sp",
        case.kv_heads % case.sp != 0
        and case.sp % case.kv_heads != 0
        and "kv heads: must divide sp, or sp must divide them",
        len(case.rows) // case.dp < case.micro_batches and FEWER_ROWS,
        not limits.has_targets(case) and NO_TARGET,
    )


def full(case: Case) -> str | None:
    """Refuse what the engine refuses, and windows."""
    return engine(case) or limits.first(case.window is not None and "window: not with this kernel")


def update(case: Case, stated: str) -> str | None:
    """Refuse what an update of an actor or of a critic does not take."""
    replicas = [case.rows[replica :: case.dp] for replica in range(case.dp)]
    chosen = dict(case.settings)
    return limits.within(case, stated) or limits.first(
        len(case.rows) // case.dp < case.micro_batches and FEWER_ROWS,
        not limits.has_targets(case) and NO_TARGET,
        not all(any(row.supervised() for row in rows) for rows in replicas)
        and "a replica without targets, of which a listed bug is",
        chosen.get("use_sapo_loss") == chosen.get("use_decoupled_loss") == "true"
        and "SAPO with a decoupled loss, which its configuration refuses",
    )


def rewarded(case: Case, stated: str) -> str | None:
    """Refuse pairs that are none, and a loss of zero."""
    chosen = dict(case.settings)
    norms = {chosen.get("reward_norm"), chosen.get("adv_norm")}
    is_own = "true" in (chosen.get("use_decoupled_loss"), chosen.get("recompute_logprob"))
    return update(case, stated) or limits.first(
        bool(norms & {"group", "group-rloo"})
        and len(case.rows) % (2 * case.dp) != 0
        and "rows that are no pairs, as many in each replica",
        is_own
        and chosen.get("adv_norm", "none") != "none"
        and "centred advantages and ratios of one: the loss is nothing but rounding",
    )


# The engine makes micro-batches itself.
_OF_UPDATES = limits.OF_RECIPES.replace(" micro=1", "").replace("dtype=fp32", "dtype=fp64,fp32")
OF_UPDATES = f"{_OF_UPDATES} {as_limits(ENGINE)}"
OF_ENTRIES = {
    "actor": f"{OF_UPDATES} {as_limits(ACTOR)}",
    "actor-rewards": f"{OF_UPDATES} {as_limits(REWARDS)}",
    "actor-normed": f"{OF_UPDATES} {as_limits(NORMED)}",
    **dict.fromkeys(("actor-loglinear", "actor-k3"), OF_UPDATES),
    # A model of values has no head to tie.
    **dict.fromkeys(("critic", "critic-own"), f"{OF_UPDATES} tied=0 {as_limits(CRITIC)}"),
}
LIMITS: dict[str, Limit] = {
    "sft": engine,
    "sft-sdpa": full,
    **{key: partial(update, stated=stated) for key, stated in OF_ENTRIES.items()},
    **{
        key: partial(rewarded, stated=OF_ENTRIES[key]) for key in ("actor-rewards", "actor-normed")
    },
}
STATED = {"sft": _ENGINE, "sft-sdpa": f"{_ENGINE} window=none", **OF_ENTRIES}
