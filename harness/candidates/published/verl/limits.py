"""Cases that the steps of verl cannot run."""

from functools import partial

from harness.candidates.published.library import Limit
from harness.candidates.published.verl.settings import ACTOR, CRITIC, ENGINE
from harness.candidates.published.wiring.averages import other_average, whole
from harness.candidates.published.wiring.limits import (
    OF_RECIPES,
    all_have_targets,
    first,
    has_targets,
    transformers,
    within,
)
from harness.case import Case
from harness.case.settings import as_limits

# The worker makes micro-batches itself.
OF_WORKERS = f"{OF_RECIPES.replace(' micro=1', '')} {as_limits(ENGINE)}"
OF_ACTOR = f"{OF_WORKERS} {as_limits(ACTOR)}"
# The release refuses to pad micro-batches to a length where it distils.
OF_DISTILLED = OF_ACTOR.replace("pad_to_length=false,true", "pad_to_length=false")
# A model of values has no head to tie.
OF_CRITIC = f"{OF_WORKERS} tied=0 {as_limits(CRITIC)}"

attention = partial(transformers, dtypes=("fp32", "bf16"))


def engine(case: Case) -> str | None:
    """Refuse losses other than one mean over all tokens, and micro-batches of unlike sizes."""
    rows = len(case.rows) // case.dp
    return (
        transformers(case)
        or other_average(case, whole, "it averages over all tokens")
        or first(
            rows % case.micro_batches != 0
            and f"micro={case.micro_batches}: {rows} rows cannot be cut evenly, which it asserts"
        )
    )


def some_targets(case: Case) -> str | None:
    """Refuse a batch without targets, which has no loss."""
    return engine(case) or first(not has_targets(case) and "no target: its loss is 0/0")


def distilled(case: Case) -> str | None:
    """Refuse a micro-batch without targets, of whose losses the log takes the least."""
    all_rows_have = all(row.supervised() for row in case.rows)
    all_parts_have = all_rows_have if is_by_tokens(case) else all_have_targets(case)
    return worker(case, OF_DISTILLED) or first(
        not all_parts_have and "no target in a micro-batch: min() of nothing raises"
    )


def is_by_tokens(case: Case) -> bool:
    """Whether a budget of tokens makes micro-batches, of any rows."""
    return ("use_dynamic_bsz", "true") in case.settings


def worker(case: Case, limits: str) -> str | None:
    """Refuse rows that replicas, or micro-batches of one size, do not share evenly; no target."""
    rows, left = divmod(len(case.rows), case.dp)
    return within(case, limits) or first(
        left != 0 and f"{len(case.rows)} rows for {case.dp} replicas, which it asserts",
        rows % case.micro_batches != 0
        and f"micro={case.micro_batches}: {rows} rows cannot be cut evenly, which it asserts",
        is_by_tokens(case)
        and case.micro_batches > 1
        and f"micro={case.micro_batches}: a budget of tokens makes others",
        not has_targets(case) and "no target: its loss is 0/0",
    )


OF_ENTRIES = {
    **dict.fromkeys(("actor", "actor-on-policy"), OF_ACTOR),
    "actor-distilled": OF_DISTILLED,
    **dict.fromkeys(("critic", "critic-own-values"), OF_CRITIC),
}
LIMITS: dict[str, Limit] = {
    "attention": attention,
    "attention-sdpa": attention,
    "engine": some_targets,
    "engine-any-mask": engine,
    **{key: partial(worker, limits=limits) for key, limits in OF_ENTRIES.items()},
    "actor-distilled": distilled,
}
STATED = OF_ENTRIES
