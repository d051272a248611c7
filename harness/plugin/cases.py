"""Strategies for the cases of a test: those that fit the pool and the limits of the candidate."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from harness.against import ITSELF, RECIPE_LIMITS, Against, names_recipe
from harness.campaign.case_source import NothingToDraw, drawing_arguments, in_full, narrow
from harness.campaign.coverage import sharing_requirement
from harness.campaign.request import Request
from harness.case.stated import ASKED, fields_to_prove, read_stated, split_by_option
from harness.generation import cases, strategies

if TYPE_CHECKING:
    from hypothesis.strategies import SearchStrategy

    from harness.case import Case

# The values that are drawn by default, for each option that `check` has as well.
USUAL: dict[str, tuple[Any, ...]] = {
    "sps": (2, 1, 3, 4),
    "dps": (1, 2),
    "dtypes": ("fp64", "fp32"),
    "losses": strategies.LOSSES,
    "kernels": strategies.KERNELS,
    "wrappers": strategies.WRAPPERS,
}


def strategy_for(
    candidate: str,
    limits: str,
    ranks: int,
    *,
    against: Against,
    stated: Sequence[str] = (),
    min_ranks: int = 1,
    **options: Any,
) -> "SearchStrategy[Case]":
    """Return a strategy for cases that fit so many ranks; other options are those of `cases`.

    A stated field that has an option of its own, as in "dtype=bf16", sets that option. Raise
    `NothingToDraw` if the limits of the candidate leave no case.
    """
    from_stated, others = split_by_option(stated)
    for text in others:
        read_stated(text)
    further = dict(**options, **from_stated)
    drawn: Any = {name: tuple(further.pop(name, usual)) for name, usual in USUAL.items()}
    if against == ITSELF:
        drawn["sps"] = tuple(sp for sp in drawn["sps"] if sp > 1)
        if not drawn["sps"]:
            raise NothingToDraw("sp 1 is what against='self' compares with; ask for a larger one")
    named = ("dp",) if "dps" in {**options, **from_stated} else ()
    request = Request(
        candidates=(candidate,), count=0, seed=0, stated=others, named=named, **drawn
    )
    if names_recipe(against):
        request = narrow(request, RECIPE_LIMITS)
    request, least = in_full(request, ranks, limits)
    fitting = {"min_ranks": max(min_ranks, least), "max_ranks": ranks}
    return cases(**{**drawing_arguments(request), **fitting, **further})


def named_fields(stated: Sequence[str] = (), **options: Any) -> tuple[str, ...]:
    """Return the fields whose values a test names, except sp, which coverage always counts."""
    from_stated, others = split_by_option(stated)
    named = {**options, **from_stated}
    with_option = [field for field, option in ASKED.items() if option in named and field != "sp"]
    return (*with_option, *fields_to_prove(others))


def impossible_values(
    limits: str,
    ranks: int,
    *,
    stated: Sequence[str] = (),
    max_ranks: int | None = None,
    **options: Any,
) -> list[str]:
    """Return the values that a test names and that the ranks or the candidate's limits exclude.

    They are written as in the counters of `Coverage`.
    """
    from_stated, others = split_by_option(stated)
    named = {**options, **from_stated}
    drawn = {**USUAL, **named}
    most = min(ranks, max_ranks or ranks)
    largest = {"sp": most // min(drawn["dps"]), "dp": most // min(drawn["sps"])}
    listed = dict(limit.split("=", 1) for limit in limits.split())
    found = []
    for field, option in ASKED.items():
        values = named.get(option, ())
        possible = listed[field].split(",") if field in listed else [*map(str, values)]
        for value in values:
            if str(value) not in possible or value > largest.get(field, value):
                found += [sharing_requirement(value)] if field == "sp" else [f"{field}={value}"]
    for text in others:
        name, (attribute, values) = text.partition("=")[0], read_stated(text)
        words = text.partition("=")[2].split(",")
        possible = listed.get(name, ",".join(words)).split(",")
        found += [
            f"{attribute}={value}"
            for word, value in zip(words, values, strict=True)
            if word not in possible
        ]
    return [value for value in found if value != sharing_requirement(1)]
