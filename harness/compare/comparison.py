"""The record of a judgement: what one candidate did on one case."""

from dataclasses import dataclass, field, replace
from typing import Any

from harness.against import PLAIN, Against
from harness.case import Case
from harness.compare.columns import BatchColumn
from harness.compare.measurement import KeyResult, Measurement
from harness.compare.picture import Picture
from harness.trace import Fault
from harness.verdict import Verdict


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
class Inquiry:
    """What was found out about a failure: its names, and what it takes to see it again."""

    # Names that follow from its own tensors, the root cause first. Empty before it was named.
    seen: tuple[Look, ...] = ()
    # Names that experiments on other cases found; empty without experiments or a finding.
    diagnosis: tuple[Look, ...] = ()
    # The columns of its recipe's batch, for a reader.
    columns: tuple[BatchColumn, ...] = field(default=(), repr=False, compare=False)
    # A picture of a divergence, for a reader.
    picture: Picture | None = field(default=None, repr=False, compare=False)
    # The failure whose case was shrunk to this one.
    larger: "Comparison | None" = field(default=None, repr=False, compare=False)
    # The comparison on the same case with all listed bugs of the candidate mended.
    mended: "Comparison | None" = field(default=None, repr=False, compare=False)
    # By rank, the end of its output, if the run was traced or ended in a fault.
    logs: dict[int, str] = field(default_factory=dict, repr=False, compare=False)
    # Cases that the same ranks must run first to get this outcome.
    before: tuple[Case, ...] = ()
    # The number of ranks, if the outcome depends on it and the cases need fewer; else 0.
    ranks: int = 0

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


@dataclass(frozen=True, slots=True)
class RanOn:
    """The ranks that a case ran on, and the seconds that it had."""

    device: str
    transport: str
    ranks: int
    deadline: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """The outcome of judging one candidate on one case."""

    case: Case
    candidate: str
    verdict: Verdict
    # Which reference it was compared with.
    against: Against = PLAIN
    # None if no rank had part in it.
    ran_on: RanOn | None = field(default=None, compare=False)
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
    fault: Fault | None = None
    # Empty if nothing was compared.
    measured: Measurement = field(default_factory=Measurement)
    # Empty unless it failed.
    inquiry: Inquiry = field(default_factory=Inquiry)

    @property
    def gradients(self) -> tuple[KeyResult, ...]:
        """The gradients that were compared; none if the case could not be judged."""
        return () if self.verdict is Verdict.UNSUPPORTED else self.measured.gradients

    def found_out(self, **fields: Any) -> "Comparison":
        """Return a copy with these fields of the inquiry."""
        return replace(self, inquiry=replace(self.inquiry, **fields))

    def named(self, *seen: Look) -> "Comparison":
        """Return a copy with these names from tensors, the root cause first."""
        return self.found_out(seen=seen)

    def rooted(self, name: str, why: str) -> "Comparison":
        """Return a copy with one more name from tensors, in front of the others."""
        return self.named(Look(name, why), *self.inquiry.seen)

    def __bool__(self) -> bool:
        raise TypeError("a Comparison has six outcomes; look at .verdict")
