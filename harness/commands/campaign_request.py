"""From the options of a command to the request of a campaign: sizes, ranks, mutant keys."""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from difflib import get_close_matches

from harness.against import ITSELF, PLAIN, RECIPE_LIMITS, names_recipe
from harness.campaign.request import NAMED, Request
from harness.case.stated import fields_to_prove
from harness.commands.options import Campaign, Step
from harness.commands.values import UsageError

# Sizes that are drawn by default, and sizes beyond them that a few cases have as well.
USUAL_SPS, USUAL_DPS = (1, 2, 4), (1, 2)
# Sizes of all small cases.
SMALL_SPS = (1, 2, 3, 4)
RARE_SPS, RARE_DPS = (3, 5, 8), (4,)
DIALECTS = ("native-gather", "native-local")

ONLY_SP_1 = "--sp=1: is what --against self compares with; ask for a larger one"


def read_request(
    options: Campaign,
    candidates: Sequence[str] = (),
    step: Step = Step(),
    sps_by_default: Sequence[int] = USUAL_SPS,
) -> tuple[Request, int]:
    """Return the request that the options of a campaign state, and the number of ranks."""
    sps, dps = _read_sizes(options, sps_by_default)
    ranks = _count_ranks(options, sps, dps)
    assert options.seed is not None
    values, defaults = {**vars(options), **vars(step)}, {**vars(Campaign), **vars(Step)}
    named = [name for name in NAMED if values[name] != defaults[name]]
    request = Request(
        candidates=tuple(dict.fromkeys(candidates or DIALECTS)),
        sps=sps,
        dps=dps,
        dtypes=options.dtype,
        losses=options.loss,
        count=options.cases,
        seed=options.seed,
        kernels=step.kernel,
        wrappers=step.wrapper,
        stated=step.set,
        against=options.against or PLAIN,
        named=tuple(dict.fromkeys((*named, *fields_to_prove(step.set)))),
        rare_sps=() if options.sp else RARE_SPS,
        rare_dps=() if options.dp else RARE_DPS,
    )
    if names_recipe(request.against):
        from harness.campaign.case_source import narrow

        request = narrow(request, RECIPE_LIMITS)
    return request, ranks


def every_small(request: Request, options: Campaign, ranks: int, tokens: int) -> Request:
    """Return the request of all cases of up to so many tokens.

    What the user did not name, and what makes the cases many times as many, has one value.
    """
    from harness.campaign.case_source import small

    if options.cases != Campaign.cases:
        raise UsageError(f"--cases={options.cases}: --all-up-to has all there are; leave it out")
    request = replace(
        request,
        up_to=tokens,
        dtypes=request.dtypes if "dtype" in request.named else ("fp64",),
        kernels=request.kernels if "kernel" in request.named else ("eager",),
        rare_sps=(),
        rare_dps=(),
    )
    count = len(small(request, ranks))
    if not count:
        raise UsageError(
            f"--all-up-to={tokens}: there is no such case with what else is asked for"
        )
    return replace(request, count=count)


def _read_sizes(
    options: Campaign, sps_by_default: Sequence[int]
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return sps and dps: those of the options, or the usual ones that --ranks allows."""
    dps = options.dp or USUAL_DPS
    sps = options.sp or usual_sps(options.ranks, min(dps), sps_by_default)
    if options.against == ITSELF:
        sps = tuple(sp for sp in sps if sp > 1)
        if not sps:
            raise UsageError(ONLY_SP_1)
    if not options.dp and options.ranks is not None:
        dps = tuple(dp for dp in dps if dp * min(sps) <= options.ranks) or dps[:1]
    return sps, dps


def usual_sps(ranks: int | None, dp: int = 1, usual: Sequence[int] = USUAL_SPS) -> tuple[int, ...]:
    """Return the usual sps that fit so many ranks; raise `UsageError` if only sp 1 does."""
    sps = tuple(sp for sp in usual if sp * dp <= (math.inf if ranks is None else ranks))
    if max(sps, default=1) == 1:
        raise UsageError(
            f"--ranks={ranks}: no sequence can be shared; use at least {2 * dp} ranks, or "
            "ask for --sp 1"
        )
    return sps


def _count_ranks(options: Campaign, sps: tuple[int, ...], dps: tuple[int, ...]) -> int:
    """Return --ranks, or as many as the largest mesh needs; every size must fit some mesh."""
    ranks = max(sps) * max(dps) if options.ranks is None else options.ranks
    for option, numbers, least in (("--sp", sps, min(dps)), ("--dp", dps, min(sps))):
        if max(numbers) * least > ranks:
            raise UsageError(
                f"--ranks={ranks}: {option}={max(numbers)} needs {max(numbers) * least} ranks; "
                f"ask for more ranks, or for a smaller {option}"
            )
    return ranks


def read_keys(text: str, known: Mapping[str, Collection[str]]) -> list[str]:
    """Return the keys that `mutants --only` names, in the order of `known`.

    `known` maps the name of each group to its keys; the name of a group stands for all of them.
    """
    chosen: set[str] = set()
    ordered = dict.fromkeys(key for keys in known.values() for key in keys)
    for word in text.split(","):
        if word not in known and word not in ordered:
            near = ", ".join(get_close_matches(word, [*known, *ordered], 3, 0.0))
            raise UsageError(f"--only={word}: there is no such mutant or variant; near: {near}")
        chosen.update(known.get(word, {word}))
    return [key for key in ordered if key in chosen]
