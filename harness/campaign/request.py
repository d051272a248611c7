"""What a run of `check` examines, and how several runs share it. Standard library only."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, TypeVar

from harness.against import PLAIN, Against
from harness.case import Dtype, Kernel, LossContract, Wrapper
from harness.outside import BadInput

Item = TypeVar("Item")
# Fields of which each value has to be judged if somebody named it.
NAMED = ("dp", "dtype", "loss", "kernel", "wrapper")


class EmptyPart(BadInput):
    """There are more parts than cases, so that some would examine nothing."""


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
    # Those of NAMED of which somebody did.
    named: tuple[str, ...] = ()
    # Sizes that were not asked for, which a few cases may have all the same.
    rare_sps: tuple[int, ...] = ()
    rare_dps: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Part:
    """Every n-th case of a campaign, from the k-th on: small and large ones for each.

    `--shard` names it; in code a shard is what one rank holds of a sequence.
    """

    number: int
    of: int

    def share(self, batch: Sequence[Item]) -> list[Item]:
        """What is in it; no part is empty."""
        if len(batch) < self.of:
            raise EmptyPart(
                f"--shard={self}: distinct cases={len(batch)} are too few for {self.of} shards"
            )
        return list(batch[self.number - 1 :: self.of])

    def __str__(self) -> str:
        return f"{self.number}/{self.of}"


WHOLE = Part(1, 1)


def origin(request: Request, part: Part = WHOLE) -> dict[str, Any]:
    """Where a failure was found, for its bundle."""
    return {**asdict(request), "shard": str(part)}
