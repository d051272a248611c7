"""The record of a judgement: what one candidate did on one case."""

from dataclasses import dataclass, field, replace
from typing import Literal

from harness.against import PLAIN, Against
from harness.case import Case
from harness.compare.budget import MOST_SLACK
from harness.compare.columns import BatchColumn
from harness.compare.differing import Differing
from harness.compare.picture import Picture
from harness.compare.scale import Scale
from harness.trace import GRADIENT, Fault, Misfit
from harness.verdict import Verdict


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
    # By what share of itself it is larger than the baseline, along the oracle. None if plain
    # training has no error of its own, or one so large that the lean means little.
    lean: float | None = None

    @property
    def is_weak(self) -> bool:
        """Whether its budget is so large that a zero tensor would pass."""
        return self.slack > MOST_SLACK


@dataclass(frozen=True, slots=True)
class Look:
    """One name of a failure, with the evidence for it."""

    name: str
    why: str
    # Whether the evidence is from the larger case that was shrunk to this one.
    larger: bool = False
    # Which variant of the anomaly it is, in words that do not depend on the case.
    how: str = ""
    # Whether this case is evidence for it, or merely does not contradict it.
    shown: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """The outcome of judging one candidate on one case."""

    case: Case
    candidate: str
    verdict: Verdict
    # Why it is UNSUPPORTED, KNOWN or a FAULT that comparing found.
    reason: str = ""
    # If the case cannot be judged in its dtype: the tensors that rounding hides, worst first.
    swallowed: tuple[str, ...] = ()
    # All limits of the candidate, if the case violates one of them.
    limits: str = ""
    # Whether the reference was computed in further ways before this verdict.
    asked_again: bool = False
    # Why plain training could not be computed on the candidate's device, before this divergence.
    unasked: str = ""
    first: Divergence | None = None
    misfits: tuple[Misfit, ...] = ()
    keys: tuple[KeyResult, ...] = ()
    scale: Scale | None = None
    # Names that follow from its own tensors, the root cause first. Empty if nothing failed, or
    # before the failure was named.
    seen: tuple[Look, ...] = ()
    # Names that experiments on other cases found; empty without experiments or a finding.
    diagnosis: tuple[Look, ...] = ()
    # Keys that were emitted and that the reference does not have.
    uncompared: tuple[str, ...] = ()
    fault: Fault | None = None
    # Whether it diverged in fp64 by no more than fp32 would.
    as_in_fp32: bool = False
    # Which reference it was compared with.
    against: Against = PLAIN
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
    # The columns of its recipe's batch, if it failed and has a recipe, for a reader.
    columns: tuple[BatchColumn, ...] = field(default=(), repr=False, compare=False)
    # A picture of a divergence, for a reader.
    picture: Picture | None = field(default=None, repr=False, compare=False)
    # The failure whose case was shrunk to this one.
    larger: "Comparison | None" = field(default=None, repr=False, compare=False)
    # The comparison on the same case with all listed bugs of the candidate mended.
    mended: "Comparison | None" = field(default=None, repr=False, compare=False)
    # By rank, the end of its output, if the run was traced or ended in a fault.
    logs: dict[int, str] = field(default_factory=dict, repr=False, compare=False)
    # Options that the command to run it again needs, to get ranks like these.
    options: tuple[str, ...] = field(default=(), compare=False)
    # Cases that the same ranks must run first to get this outcome.
    before: tuple[Case, ...] = ()
    # The number of ranks, if the outcome depends on it and the cases need fewer; else 0.
    ranks: int = 0

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
        """The gradients that were compared; none if the case could not be judged."""
        judged = () if self.verdict is Verdict.UNSUPPORTED else self.keys
        return tuple(result for result in judged if result.key.startswith(GRADIENT))

    @property
    def used(self) -> float:
        """The largest error as a share of its budget."""
        return max((result.used for result in self.keys), default=0.0)

    @property
    def looks(self) -> tuple[Look, ...]:
        """The names to show, the root cause first: those of experiments, or else of tensors.

        Experiments take precedence because the tensors of one case alone fit many names.
        """
        return self.diagnosis or self.seen

    @property
    def called(self) -> str:
        """The first of the names to show; empty if there is none."""
        return self.looks[0].name if self.looks else ""

    @property
    def seen_as(self) -> str:
        """The first name that follows from its tensors; empty if there is none."""
        return self.seen[0].name if self.seen else ""

    def named(self, *seen: Look) -> "Comparison":
        """Return a copy with these names from tensors, the root cause first."""
        return replace(self, seen=seen)

    def rooted(self, name: str, why: str) -> "Comparison":
        """Return a copy with one more name from tensors, in front of the others."""
        return self.named(Look(name, why), *self.seen)

    def __bool__(self) -> bool:
        raise TypeError("a Comparison has six outcomes; look at .verdict")
