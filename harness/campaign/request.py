"""The request of a campaign: what it examines. Standard library only."""

from dataclasses import asdict, dataclass
from typing import Any

from harness.against import PLAIN, Against
from harness.case import Dtype, Kernel, LossContract, Wrapper
from harness.engine.lot import WHOLE, Part

# Fields that have an option of their own. If the user gives the option, each of its values must
# be judged.
NAMED = ("dp", "dtype", "loss", "kernel", "wrapper")


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """Candidates, the cases to judge them on, and when to stop; equal for all shards."""

    candidates: tuple[str, ...]
    sps: tuple[int, ...]
    dps: tuple[int, ...]
    dtypes: tuple[Dtype, ...]
    losses: tuple[LossContract, ...]
    count: int
    seed: int
    kernels: tuple[Kernel, ...] = ("eager", "sdpa")
    wrappers: tuple[Wrapper, ...] = ("none",)
    # Fields of a case that are stated instead of drawn, as `read_stated` reads them.
    stated: tuple[str, ...] = ()
    against: Against = PLAIN
    # Fields of a case for which the user gave values: by the options of NAMED, or with --set.
    named: tuple[str, ...] = ()
    # Sizes that the user did not ask for, and that a few cases may have.
    rare_sps: tuple[int, ...] = ()
    rare_dps: tuple[int, ...] = ()
    # After so many different failures a candidate is not judged any further.
    keep_going: int = 1
    # If it is above 0, the campaign has no drawn cases, but every one of up to so many tokens.
    up_to: int = 0


def campaign_record(request: Request, part: Part = WHOLE) -> dict[str, Any]:
    """Return the campaign that found a failure, for the failure's bundle."""
    return {**asdict(request), "shard": str(part)}
