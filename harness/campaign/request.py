"""What a campaign examines. Standard library only."""

from dataclasses import asdict, dataclass
from typing import Any

from harness.against import PLAIN, Against
from harness.case import Dtype, Kernel, LossContract, Wrapper
from harness.engine.lot import WHOLE, Part

# Fields with an option of their own, of which each value has to be judged if somebody named it.
NAMED = ("dp", "dtype", "loss", "kernel", "wrapper")


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What to check, and how much: the same for every shard of a campaign."""

    candidates: tuple[str, ...]
    sps: tuple[int, ...]
    dps: tuple[int, ...]
    dtypes: tuple[Dtype, ...]
    losses: tuple[LossContract, ...]
    count: int
    seed: int
    kernels: tuple[Kernel, ...] = ("eager", "sdpa")
    wrappers: tuple[Wrapper, ...] = ("none",)
    # Fields of a case that are not drawn, as `read_stated` reads them.
    stated: tuple[str, ...] = ()
    against: Against = PLAIN
    # Fields of a case of which somebody named values: those of NAMED, and what is stated.
    named: tuple[str, ...] = ()
    # Sizes that were not asked for, which a few cases may have all the same.
    rare_sps: tuple[int, ...] = ()
    rare_dps: tuple[int, ...] = ()
    # How many different failures of a candidate are looked for; then it is asked no more.
    keep_going: int = 1


def origin(request: Request, part: Part = WHOLE) -> dict[str, Any]:
    """Where a failure was found, for its bundle."""
    return {**asdict(request), "shard": str(part)}
