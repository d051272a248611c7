"""The cases of a test: what a candidate's own limits leave of what is asked for."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from harness.against import ITSELF, Against
from harness.campaign.case_source import NothingToDraw, bounds, within
from harness.campaign.coverage import sharing
from harness.campaign.request import Request
from harness.case.stated import ASKED, divided, read_stated, spans_all_ranks
from harness.generation import cases, strategies

if TYPE_CHECKING:
    from hypothesis.strategies import SearchStrategy

    from harness.case import Case

# What `check` has options for, and what is drawn where nothing else is said.
USUAL: dict[str, tuple[Any, ...]] = {
    "sps": (2, 1, 3, 4),
    "dps": (1, 2),
    "dtypes": ("fp64", "fp32"),
    "losses": strategies.LOSSES,
    "kernels": strategies.KERNELS,
    "wrappers": strategies.WRAPPERS,
}


def of(
    candidate: str,
    limits: str,
    ranks: int,
    *,
    against: Against,
    stated: Sequence[str] = (),
    min_ranks: int = 1,
    **options: Any,
) -> "SearchStrategy[Case]":
    """A strategy for cases that fit so many ranks; other options are those of `cases`.

    A field that is stated and has an option of its own, as in "dtype=bf16", is that option.
    """
    asked, others = divided(stated)
    for text in others:
        read_stated(text)
    said = dict(**options, **asked)
    named: Any = {name: tuple(said.pop(name, usual)) for name, usual in USUAL.items()}
    if against == ITSELF:
        named["sps"] = tuple(sp for sp in named["sps"] if sp > 1)
        if not named["sps"]:
            raise NothingToDraw("sp 1 is what against='self' compares with; ask for a larger one")
    request = Request(candidates=(candidate,), count=0, seed=0, stated=others, **named)
    least = max(min_ranks, ranks if spans_all_ranks(limits) else 1)
    fitting = {"min_ranks": least, "max_ranks": ranks}
    return cases(**{**bounds(within(request, limits)), **fitting, **said})


def fields_named(stated: Sequence[str] = (), **options: Any) -> tuple[str, ...]:
    """Fields of a case of which a test names values; sp is looked after anyway."""
    asked, others = divided(stated)
    said = {**options, **asked}
    own = [field for field, option in ASKED.items() if option in said and field != "sp"]
    return (*own, *(read_stated(text)[0] for text in others))


def never_drawn(
    limits: str,
    ranks: int,
    *,
    stated: Sequence[str] = (),
    max_ranks: int | None = None,
    **options: Any,
) -> list[str]:
    """Each value that was asked for by name, and that these ranks or the candidate cannot do."""
    asked, others = divided(stated)
    said = {**USUAL, **options, **asked}
    most = min(ranks, max_ranks or ranks)
    room = {"sp": most // min(said["dps"]), "dp": most // min(said["sps"])}
    listed = dict(limit.split("=", 1) for limit in limits.split())
    told = []
    for field, option in ASKED.items():
        named = said[option] if option in options or option in asked else ()
        possible = listed[field].split(",") if field in listed else [*map(str, named)]
        for value in named:
            if str(value) not in possible or value > room.get(field, value):
                told += [sharing(value)] if field == "sp" else [f"{field}={value}"]
    for text in others:
        name, (attribute, values) = text.partition("=")[0], read_stated(text)
        words = text.partition("=")[2].split(",")
        possible = listed.get(name, ",".join(words)).split(",")
        told += [
            f"{attribute}={value}"
            for word, value in zip(words, values, strict=True)
            if word not in possible
        ]
    return [what for what in told if what != sharing(1)]
