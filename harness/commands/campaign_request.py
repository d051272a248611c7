"""What a campaign is asked for, made of its options: sizes, ranks, keys."""

import math
from collections.abc import Collection, Mapping, Sequence
from difflib import get_close_matches

from harness.against import ITSELF, PLAIN
from harness.campaign.request import NAMED, Request
from harness.case.stated import read_stated
from harness.commands.options import Campaign, Step
from harness.commands.values import UsageError

# Sizes that are drawn where nobody asked for others; and, seldom, beyond them.
USUAL_SPS, USUAL_DPS = (1, 2, 4), (1, 2)
RARE_SPS, RARE_DPS = (3, 5, 8), (4,)
OWN = ("native-gather", "native-local")

ONLY_SP_1 = "--sp=1: is what --against self compares with; ask for a larger one"


def read_request(
    asked: Campaign, candidates: Sequence[str] = (), step: Step = Step()
) -> tuple[Request, int]:
    """What `check` or `mutants` was asked to examine, and on how many ranks."""
    sps, dps = _meshes(asked)
    ranks = _ranks_for(asked, sps, dps)
    assert asked.seed is not None
    values, usual = {**vars(asked), **vars(step)}, {**vars(Campaign), **vars(Step)}
    named = [name for name in NAMED if values[name] != usual[name]]
    stated = [read_stated(text)[0] for text in step.set]
    request = Request(
        candidates=tuple(dict.fromkeys(candidates or OWN)),
        sps=sps,
        dps=dps,
        dtypes=asked.dtype,
        losses=asked.loss,
        count=asked.cases,
        seed=asked.seed,
        kernels=step.kernel,
        wrappers=step.wrapper,
        stated=step.set,
        against=asked.against or PLAIN,
        named=tuple(dict.fromkeys((*named, *stated))),
        rare_sps=() if asked.sp else RARE_SPS,
        rare_dps=() if asked.dp else RARE_DPS,
    )
    return request, ranks


def _meshes(asked: Campaign) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The sizes asked for; if nobody asked, the usual ones for which there are ranks."""
    dps = asked.dp or USUAL_DPS
    sps = asked.sp or usual_sps(asked.ranks, min(dps))
    if asked.against == ITSELF:
        sps = tuple(sp for sp in sps if sp > 1)
        if not sps:
            raise UsageError(ONLY_SP_1)
    if not asked.dp and asked.ranks is not None:
        dps = tuple(dp for dp in dps if dp * min(sps) <= asked.ranks) or dps[:1]
    return sps, dps


def usual_sps(ranks: int | None, dp: int = 1) -> tuple[int, ...]:
    """The usual sizes for which there are ranks."""
    sps = tuple(sp for sp in USUAL_SPS if sp * dp <= (math.inf if ranks is None else ranks))
    if max(sps, default=1) == 1:
        raise UsageError(
            f"--ranks={ranks}: no sequence can be shared; use at least {2 * dp} ranks, or "
            "ask for --sp 1"
        )
    return sps


def _ranks_for(asked: Campaign, sps: tuple[int, ...], dps: tuple[int, ...]) -> int:
    """As many as there are to be, or as the sizes need; each size has a mesh that fits."""
    ranks = max(sps) * max(dps) if asked.ranks is None else asked.ranks
    for option, numbers, least in (("--sp", sps, min(dps)), ("--dp", dps, min(sps))):
        if max(numbers) * least > ranks:
            raise UsageError(
                f"--ranks={ranks}: {option}={max(numbers)} needs {max(numbers) * least} ranks; "
                f"ask for more ranks, or for a smaller {option}"
            )
    return ranks


def read_keys(text: str, known: Mapping[str, Collection[str]]) -> list[str]:
    """The keys that `mutants --only` names, in the order of the bank; a group names all of its."""
    chosen: set[str] = set()
    every = set().union(*known.values())
    for word in text.split(","):
        if word not in known and word not in every:
            near = ", ".join(get_close_matches(word, [*known, *every], 3, 0.0))
            raise UsageError(f"--only={word}: there is no such mutant or variant; near: {near}")
        chosen.update(known.get(word, {word}))
    return [
        key
        for key in dict.fromkeys(key for keys in known.values() for key in keys)
        if key in chosen
    ]
