"""The record of a judgement."""

from dataclasses import dataclass, field, replace
from typing import Literal

from harness.against import PLAIN, Against
from harness.case import Case
from harness.compare.budget import MOST_SLACK
from harness.compare.differing import Differing
from harness.compare.picture import Picture
from harness.compare.scale import Scale
from harness.trace import GRADIENT, Fault, Misfit
from harness.verdict import Verdict


@dataclass(frozen=True, slots=True)
class Divergence:
    """One element that is wrong, in global coordinates."""

    key: str
    index: tuple[int, ...]
    expected: float
    got: float
    error: float
    allowed: float
    # For a tensor of tokens; -1 otherwise.
    row: int = -1
    position: int = -1
    owner: int = -1
    # Its neighbour in the row, on this side, belongs to another rank.
    edge: Literal["", "first", "last"] = ""


@dataclass(frozen=True, slots=True)
class KeyResult:
    """How one tensor fared."""

    key: str
    elements: int
    wrong: int
    used: float
    # What the whole tensor may stray as a share of it.
    slack: float = 0.0
    # Whether it is zero in the reference, so that nothing can be wrong with its size.
    zero: bool = False
    # By what share of itself it is larger than in plain training in the case's own dtype; nothing
    # where that has no error of its own, or so much that this says little.
    lean: float | None = None

    @property
    def weak(self) -> bool:
        """Whether it cannot be told from zero."""
        return self.slack > MOST_SLACK


@dataclass(frozen=True, slots=True)
class Look:
    """What a failure is called, and what shows it."""

    name: str
    why: str
    # It was seen in the larger case that this one was made of.
    larger: bool = False
    # Which of several things that have this name; the text does not depend on the case.
    how: str = ""
    # Whether this case speaks for it, or only not against it.
    shown: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """The outcome of judging one candidate on one case."""

    case: Case
    candidate: str
    verdict: Verdict
    reason: str = ""
    # Where nobody could judge the case in its dtype: what rounding hides, the worst first.
    swallowed: tuple[str, ...] = ()
    # All of the candidate's limits, where the case is outside them.
    limits: str = ""
    # Whether plain training had to be asked again.
    asked_again: bool = False
    # Where it should have been asked before this divergence was told, and why it could not.
    unasked: str = ""
    first: Divergence | None = None
    misfits: tuple[Misfit, ...] = ()
    keys: tuple[KeyResult, ...] = ()
    scale: Scale | None = None
    # What its own tensors look like, the root first; empty where nothing failed, or nobody has
    # looked yet.
    seen: tuple[Look, ...] = ()
    # What experiments on other cases show; empty if there were none, or they showed nothing.
    diagnosis: tuple[Look, ...] = ()
    # Keys that were emitted, and that there is nothing to compare with.
    uncompared: tuple[str, ...] = ()
    fault: Fault | None = None
    # Whether it diverged in fp64, and by no more than fp32 would.
    as_in_fp32: bool = False
    # What it was compared with.
    against: Against = PLAIN
    # How many targets were judged whose label is on another rank; nothing where a candidate shows
    # too little of who holds what.
    at_edge: int | None = None
    # Whether any rank was seen to send anything to another.
    silent: bool = False
    # Packages that ranks had in plain torch instead.
    stood_in: tuple[str, ...] = ()
    # Expected and got, for a reader; never judged from here.
    loss: tuple[float, float] | None = None
    # In execution order, as many as there was room for.
    differing: tuple[Differing, ...] = field(default=(), repr=False, compare=False)
    # A picture of a divergence, for a reader as well.
    picture: Picture | None = field(default=None, repr=False, compare=False)
    # The failure that this one was made of by shrinking its case.
    larger: "Comparison | None" = field(default=None, repr=False, compare=False)
    # What the case comes to without any of the bugs that are listed of the candidate.
    mended: "Comparison | None" = field(default=None, repr=False, compare=False)
    # The end of what each rank printed, of a run that was looked at closely.
    logs: dict[int, str] = field(default_factory=dict, repr=False, compare=False)
    # Options of the command that runs it again, if ranks would not run so by themselves.
    options: tuple[str, ...] = field(default=(), compare=False)
    # What the same ranks must have run before, for it to come out like this.
    before: tuple[Case, ...] = ()
    # How many ranks there were, where that matters and is not as many as the cases need.
    ranks: int = 0

    @property
    def elements(self) -> int:
        """How many elements were examined."""
        return sum(result.elements for result in self.keys if not result.weak)

    @property
    def unjudged(self) -> tuple[str, ...]:
        """Tensors that nobody could tell from zero in the case's dtype."""
        return tuple(result.key for result in self.keys if result.weak)

    @property
    def gradients(self) -> tuple[KeyResult, ...]:
        """Gradients that were compared; there are none if nothing could be judged."""
        judged = () if self.verdict is Verdict.UNSUPPORTED else self.keys
        return tuple(result for result in judged if result.key.startswith(GRADIENT))

    @property
    def used(self) -> float:
        """The largest error as a share of its budget."""
        return max((result.used for result in self.keys), default=0.0)

    @property
    def looks(self) -> tuple[Look, ...]:
        """What it is called and why, the root first: one case alone fits many names.

        So what experiments found is told where they found anything, and else what was seen.
        """
        return self.diagnosis or self.seen

    @property
    def called(self) -> str:
        """The first of its names; empty where it has none."""
        return self.looks[0].name if self.looks else ""

    @property
    def seen_as(self) -> str:
        """What its own tensors look like; empty where nobody has looked."""
        return self.seen[0].name if self.seen else ""

    def named(self, *seen: Look) -> "Comparison":
        """Return it with these names, the root first: all naming by tensors goes through here."""
        return replace(self, seen=seen)

    def rooted(self, name: str, why: str) -> "Comparison":
        """Return it with one more name in front of the others."""
        return self.named(Look(name, why), *self.seen)

    def __bool__(self) -> bool:
        raise TypeError("a Comparison has six outcomes; look at .verdict")
