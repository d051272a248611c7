"""The cases that a candidate is examined on."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import islice, product
from typing import Any, get_args

from harness.candidates.published.library import Published
from harness.case import Case, Dtype, InvalidCase, Kernel, LossContract, Model
from harness.case.stated import ASKED
from harness.conformance.request import Request
from harness.generation import cases, drawn, generate

DTYPES: tuple[Dtype, ...] = ("fp64", "fp32", "bf16")
SPS = (2, 4)
MOST_RANKS = 4
ARGUMENTS = {**ASKED, "model": "architectures"}
# The examination says these, whatever a candidate states of them.
ASKED_FOR = {"sp", "dp", "ranks"}
# Enough to tell what a candidate takes.
PROBED = 400
# A candidate that refuses most of what is drawn has this many times as many drawn.
DRAWN_AT_MOST = 16


def as_stated(candidate: Published) -> dict[str, Any]:
    """How its cases are drawn, so that few are drawn in vain."""
    arguments: dict[str, Any] = {"stated": []}
    for limit in candidate.limits.split():
        name, _, values = limit.partition("=")
        if name in ASKED_FOR:
            continue
        if name in ARGUMENTS:
            arguments[ARGUMENTS[name]] = tuple(values.split(","))
        else:
            arguments["stated"].append(limit)
    return arguments


def what_it_takes(candidate: Published, seed: int) -> dict[str, list[str]]:
    """The finest dtype, and of losses, architectures and kernels those that it takes any of."""
    fields: dict[str, Sequence[Any]] = {
        "dtype": DTYPES,
        "loss": get_args(LossContract),
        "model": get_args(Model),
        "kernel": get_args(Kernel),
    }
    all_there_are = {"dtypes": DTYPES, "architectures": get_args(Model)}
    probe = cases(
        sps=(1, *SPS),
        max_ranks=MOST_RANKS,
        max_steps=1,
        **(all_there_are | as_stated(candidate)),
    )
    taken = [c for c in generate(probe, PROBED, seed) if candidate.supports(c) is None]
    takes = {
        name: [value for value in values if any(getattr(c, name) == value for c in taken)]
        for name, values in fields.items()
    }
    takes["dtype"] = takes["dtype"][:1]
    return takes


def runnable(
    candidate: Published, takes: dict[str, list[Any]], sp: int, count: int, request: Request
) -> Iterator[Case]:
    """Cases until so many of them can be run, in the order of the ranks that they need."""
    if not all(takes.values()):
        return
    taken = {ARGUMENTS[name]: values for name, values in takes.items()}
    strategy = cases(
        sps=(sp,),
        dps=(1,) if sp == 1 else (1, 2),
        max_ranks=MOST_RANKS,
        **(as_stated(candidate) | taken),
    )
    chosen, left = list[Case](), count
    for case in islice(drawn(strategy, request.seed), DRAWN_AT_MOST * count):
        chosen.append(case)
        left -= candidate.supports(case) is None
        if not left:
            break
    yield from sorted(chosen, key=lambda case: case.ranks)


def by_sp(
    candidate: Published, takes: dict[str, list[Any]], request: Request
) -> Iterator[tuple[int, Iterator[Case]]]:
    """Generated cases for each sp."""
    for sp in SPS:
        yield sp, runnable(candidate, takes, sp, request.count, request)


def on_meshes(
    goldens: Iterable[Case], candidate: Published, takes: dict[str, list[Any]]
) -> Iterator[Case]:
    """Each golden's batch at every sp, as near to it as the candidate takes it."""
    meshed = (nearest(golden, sp, candidate, takes) for golden in goldens for sp in SPS)
    found = dict.fromkeys(c for c in meshed if c is not None and c.ranks <= MOST_RANKS)
    yield from sorted(found, key=lambda case: case.ranks)


def nearest(
    golden: Case, sp: int, candidate: Published, takes: dict[str, list[Any]]
) -> Case | None:
    """With its own loss, model and kernel, or with others where it is refused with these."""
    # The last is the first to be given up.
    order = ("dtype", "kernel", "model", "loss")
    nearer = [sorted(takes[name], key=getattr(golden, name).__ne__) for name in order]
    variants = []
    for values in product(*nearer):
        try:
            variants.append(replace(golden, sp=sp, **dict(zip(order, values, strict=True))))
        except InvalidCase:
            continue
    taken = (case for case in variants if candidate.supports(case) is None)
    return next(taken, next(iter(variants), None))
