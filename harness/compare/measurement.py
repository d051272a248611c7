"""What was compared with the reference on one case, and what differs."""

from dataclasses import dataclass, field
from typing import Literal

from harness.compare.budget import MOST_SLACK
from harness.compare.differing import Differing
from harness.compare.scale import Scale
from harness.trace import GRADIENT, Misfit


@dataclass(frozen=True, slots=True)
class Divergence:
    """One wrong element, by its place in the whole batch or tensor."""

    key: str
    index: tuple[int, ...]
    expected: float
    got: float
    error: float
    allowed: float
    # The row and position of its token, and the rank that has it; -1 if the tensor has no tokens.
    row: int = -1
    position: int = -1
    owner: int = -1
    # "first" if the token before it in its row is on another rank, "last" if the one after it is.
    edge: Literal["", "first", "last"] = ""


@dataclass(frozen=True, slots=True)
class KeyResult:
    """The result of comparing one tensor."""

    key: str
    elements: int
    wrong: int
    # The largest error as a share of its budget.
    used: float
    # How far the tensor as a whole may stray, as a share of its own size.
    slack: float = 0.0
    # Whether it is zero in the reference, so that a wrong factor would not show in it.
    zero: bool = False
    # Whether it is the gradient of a parameter that plain training does not train.
    frozen: bool = False
    # By what share of itself it is larger than the baseline, along the oracle. None if plain
    # training has no error of its own, or one so large that the lean means little.
    lean: float | None = None

    @property
    def is_weak(self) -> bool:
        """Whether its budget is so large that a zero tensor would pass."""
        return self.slack > MOST_SLACK


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """How far the tensors of one run are from those of the reference."""

    first: Divergence | None = None
    misfits: tuple[Misfit, ...] = ()
    keys: tuple[KeyResult, ...] = ()
    scale: Scale | None = None
    # Keys that were emitted and that the reference does not have.
    uncompared: tuple[str, ...] = ()
    # Whether it diverged in fp64 by no more than fp32 would.
    as_in_fp32: bool = False
    # The number of judged targets whose label is on another rank; None if the candidate does not
    # show which rank has which token.
    at_edge: int | None = None
    # Whether no rank sent anything to another, although the case has sp above 1.
    silent: bool = False
    # Packages that plain torch replaced on the ranks, such as flash-attn without a GPU.
    stood_in: tuple[str, ...] = ()
    # The expected and the candidate's loss, for a reader; nothing is judged from them.
    loss: tuple[float, float] | None = None
    # The tensors with wrong elements, in execution order, as many as there was room for.
    differing: tuple[Differing, ...] = field(default=(), repr=False, compare=False)

    @property
    def elements(self) -> int:
        """The number of elements that were examined, without those of weak tensors."""
        return sum(result.elements for result in self.keys if not result.is_weak)

    @property
    def unjudged(self) -> tuple[str, ...]:
        """The weak tensors: a zero in their place would pass in the case's dtype."""
        return tuple(result.key for result in self.keys if result.is_weak)

    @property
    def gradients(self) -> tuple[KeyResult, ...]:
        """The gradients that were compared."""
        return tuple(result for result in self.keys if result.key.startswith(GRADIENT))

    @property
    def used(self) -> float:
        """The largest error as a share of its budget."""
        return max((result.used for result in self.keys), default=0.0)
