"""Choose the cases that a candidate is examined on."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import islice, product
from typing import Any, get_args

from harness.candidates.published.library import Published
from harness.case import Case, Dtype, InvalidCase, Kernel, LossContract, Model
from harness.case.line import SETTING
from harness.case.stated import ASKED
from harness.conformance.request import Request
from harness.generation import cases, draw_cases, draw_list

DTYPES: tuple[Dtype, ...] = ("fp64", "fp32", "bf16")
SPS = (2, 4)
MOST_RANKS = 4
# The argument of `generation.cases` for a field of a case.
ARGUMENTS = {**ASKED, "model": "architectures"}
# Limits that drawing ignores: the examination itself sets these sizes.
SET_HERE = {"sp", "dp", "ranks"}
# So many cases are enough to see which values of a field a candidate takes.
PROBED = 400
# If a candidate refuses most cases, at most so many times the wanted number are drawn.
DRAWN_AT_MOST = 16


def drawing_arguments(candidate: Published, request: Request) -> dict[str, Any]:
    """Return arguments of `generation.cases` that keep to the limits of a candidate."""
    arguments: dict[str, Any] = {"stated": []}
    settings = request.settings.get(candidate.key, {})
    for limit in candidate.limits.split():
        name, _, values = limit.partition("=")
        if name in SET_HERE:
            continue
        setting = name.removeprefix(SETTING)
        if name.startswith(SETTING) and setting in settings:
            arguments["stated"].append(f"{name}={settings[setting]}")
        elif name in ARGUMENTS:
            arguments[ARGUMENTS[name]] = tuple(values.split(","))
        else:
            arguments["stated"].append(limit)
    return arguments


def supported_values(candidate: Published, request: Request) -> dict[str, list[str]]:
    """Return the finest dtype that a candidate takes, and all losses, models and kernels."""
    fields: dict[str, Sequence[Any]] = {
        "dtype": DTYPES,
        "loss": get_args(LossContract),
        "model": get_args(Model),
        "kernel": get_args(Kernel),
    }
    every_value = {"dtypes": DTYPES, "architectures": get_args(Model)}
    probe = cases(
        sps=(1, *SPS),
        max_ranks=MOST_RANKS,
        max_steps=1,
        **(every_value | drawing_arguments(candidate, request)),
    )
    taken = [c for c in draw_list(probe, PROBED, request.seed) if candidate.supports(c) is None]
    takes = {
        name: [value for value in values if any(getattr(c, name) == value for c in taken)]
        for name, values in fields.items()
    }
    takes["dtype"] = takes["dtype"][:1]
    return takes


def draw_supported(
    candidate: Published, takes: dict[str, list[Any]], sp: int, count: int, request: Request
) -> Iterator[Case]:
    """Draw cases until the candidate supports `count` of them; yield those of few ranks first.

    The cases that it refuses are among them: a stage counts refusals too.
    """
    if not all(takes.values()):
        return
    taken = {ARGUMENTS[name]: values for name, values in takes.items()}
    strategy = cases(
        sps=(sp,),
        dps=(1,) if sp == 1 else (1, 2),
        max_ranks=MOST_RANKS,
        **(drawing_arguments(candidate, request) | taken),
    )
    chosen, left = list[Case](), count
    for case in islice(draw_cases(strategy, request.seed), DRAWN_AT_MOST * count):
        chosen.append(case)
        left -= candidate.supports(case) is None
        if not left:
            break
    yield from sorted(chosen, key=lambda case: case.ranks)


def generated_by_sp(
    candidate: Published, takes: dict[str, list[Any]], request: Request
) -> Iterator[tuple[int, Iterator[Case]]]:
    """Yield each sp, and the generated cases for it."""
    for sp in SPS:
        yield sp, draw_supported(candidate, takes, sp, request.count, request)


def goldens_by_sp(
    goldens: Iterable[Case], candidate: Published, takes: dict[str, list[Any]]
) -> Iterator[Case]:
    """Yield each golden at every sp, changed as little as the candidate needs."""
    variants = (nearest_variant(golden, sp, candidate, takes) for golden in goldens for sp in SPS)
    found = dict.fromkeys(c for c in variants if c is not None and c.ranks <= MOST_RANKS)
    yield from sorted(found, key=lambda case: case.ranks)


def nearest_variant(
    golden: Case, sp: int, candidate: Published, takes: dict[str, list[Any]]
) -> Case | None:
    """Return a golden at this sp, with as many of its own fields as the candidate supports.

    If the candidate supports no variant, return the one nearest to the golden; return None if no
    variant is a valid case.
    """
    # The last field of the product varies first, and so is given up first.
    order = ("dtype", "kernel", "model", "loss")
    choices = [sorted(takes[name], key=getattr(golden, name).__ne__) for name in order]
    variants = []
    for values in product(*choices):
        try:
            variants.append(replace(golden, sp=sp, **dict(zip(order, values, strict=True))))
        except InvalidCase:
            continue
    taken = (case for case in variants if candidate.supports(case) is None)
    return next(taken, next(iter(variants), None))
