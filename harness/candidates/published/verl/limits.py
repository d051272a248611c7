"""What the steps of verl cannot do."""

from functools import partial

from harness.candidates.published.library import Limit
from harness.candidates.published.wiring.limits import first, transformers
from harness.case import Case

attention = partial(transformers, dtypes=("fp32", "bf16"))


def engine(case: Case) -> str | None:
    """The engine has one loss, and micro-batches of one size."""
    rows = len(case.rows) // case.dp
    return transformers(case) or first(
        not _averages_all_tokens(case) and f"loss={case.loss}: it averages over all tokens",
        rows % case.micro_batches != 0
        and f"micro={case.micro_batches}: {rows} rows cannot be cut evenly, which it asserts",
    )


def some_targets(case: Case) -> str | None:
    """A mask, as in real use, has a target somewhere, and no row's first token."""
    return engine(case) or first(
        not any(row.supervised() for row in case.rows) and "no target: its loss is 0/0"
    )


def _averages_all_tokens(case: Case) -> bool:
    """Whether a loss is one mean over all tokens, also under another name."""
    sets = {
        "token-mean": 1,
        "micro-mean": case.dp * case.micro_batches,
        "row-mean": len(case.rows),
    }
    return sets[case.loss] == 1


LIMITS: dict[str, Limit] = {
    "attention": attention,
    "attention-sdpa": attention,
    "engine": some_targets,
    "engine-any-mask": engine,
}
