"""The cases of a test: what a candidate's own limits leave of what is asked for."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from harness.against import ITSELF, Against
from harness.campaign.request import Request
from harness.campaign.supply import NothingToDraw, bounds, within
from harness.case.stated import divided, read_stated, spans_all_ranks
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


def never_drawn(
    limits: str,
    ranks: int,
    *,
    stated: Sequence[str] = (),
    max_ranks: int | None = None,
    **options: Any,
) -> list[int]:
    """Each sp that was asked for by name, and that these ranks or the candidate cannot do."""
    said = {**options, **divided(stated)[0]}
    most = min(ranks, max_ranks or ranks) // min(said.get("dps", USUAL["dps"]))
    listed = (
        limit.removeprefix("sp=").split(",") for limit in limits.split() if limit.startswith("sp=")
    )
    sps = said.get("sps", ())
    possible = next(listed, [str(sp) for sp in sps])
    return [sp for sp in sps if sp > 1 and (sp > most or str(sp) not in possible)]
