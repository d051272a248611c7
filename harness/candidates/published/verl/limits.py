"""Cases that the steps of verl cannot run."""

from functools import partial

from harness.candidates.published.library import Limit
from harness.candidates.published.wiring.averages import other_average, whole
from harness.candidates.published.wiring.limits import first, has_targets, transformers
from harness.case import Case

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


LIMITS: dict[str, Limit] = {
    "attention": attention,
    "attention-sdpa": attention,
    "engine": some_targets,
    "engine-any-mask": engine,
}
