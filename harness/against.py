"""The references of a candidate: plain training, or its own step at sp 1.

With `plain`, the candidate must compute the harness's own model, or bring its recipe. With `self`,
the reference is the candidate's own step at sp 1, so it can be any model; a bug that sp 1 has too
stays hidden. The name of a recipe, such as `mine.py:grpo`, stands for its plain training.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Final

from harness.case import Case

# What a comparison is made with: one of the names below, or that of a recipe.
Against = str
PLAIN: Final = "plain"
ITSELF: Final = "self"
# Plain training of the model and the loss that a candidate brings itself.
RECIPE: Final = "recipe"
# What messages call the reference, in the middle of a sentence.
NAMES: Final = {
    PLAIN: "plain training",
    ITSELF: "its own step at sp 1, dp 1 and one micro-batch",
    RECIPE: "plain training of its recipe",
}
# Plain training of a recipe takes one step, whose loss is that of the recipe.
RECIPE_LIMITS = "steps=1 loss=token-mean"
AGAINST_ITSELF = f"compared with {NAMES[ITSELF]}: what is wrong there as well does not show here"
IS_KEPT = (
    "cases of micro-mean over several steps are compared with it at sp 1 and as many replicas and "
    "micro-batches as they have: a factor of these does not show there"
)
_is_oracle_run = ContextVar("oracle", default=False)


def needs_own_mesh(case: Case) -> bool:
    """Return whether the reference at sp 1 keeps the replicas and micro-batches of the case.

    A micro-mean of one step is the mean of runs of one micro-batch each. Over several steps it
    is not: the weights of the second step follow from all micro-batches of the first.
    """
    return case.loss == "micro-mean" and case.steps > 1


def describe_self_sizes(case: Case) -> str:
    """Return in words the sizes at which the candidate's own step is the reference of a case."""
    if needs_own_mesh(case):
        return (
            f"at sp 1 with dp={case.dp} and micro={case.micro_batches} as here, because a "
            f"micro-mean over {case.steps} steps cannot be taken apart"
        )
    parts = case.dp * case.micro_batches
    if case.loss == "micro-mean" and parts > 1:
        return f"at sp 1, the mean of {parts} runs of one micro-batch each"
    return "at sp 1, dp 1 and one micro-batch"


def names_recipe(against: Against) -> bool:
    """Return whether the reference is a recipe that the user names."""
    return ":" in against


def is_reference(against: Against) -> bool:
    """Return whether a comparison can be made with it."""
    return against in NAMES or names_recipe(against)


def is_of_recipe(against: Against) -> bool:
    """Return whether it is plain training of a recipe, the candidate's own or a named one."""
    return against == RECIPE or names_recipe(against)


def compared_with(against: Against) -> str:
    """Return in words what the user asked to compare cases with; empty for plain training."""
    if against == ITSELF:
        return AGAINST_ITSELF
    return f"compared with plain training of {against}" if names_recipe(against) else ""


def reference_name(case: Case, against: Against) -> str:
    """Return the name of the reference of a case, for the middle of a sentence."""
    if against == ITSELF:
        return f"its own step {describe_self_sizes(case)}"
    return f"plain training of {against}" if names_recipe(against) else NAMES[against]


def asked_for_an_oracle() -> bool:
    """Return whether the candidate is asked to run as its own oracle, which is always in fp64."""
    return _is_oracle_run.get()


@contextmanager
def asking(*, oracle: bool) -> Iterator[None]:
    """Set what `asked_for_an_oracle` returns inside the block."""
    token = _is_oracle_run.set(oracle)
    try:
        yield
    finally:
        _is_oracle_run.reset(token)
