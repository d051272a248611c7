"""The register of mutants, which the check must find, and of benign variants, which must pass.

A mutant is a right step with one bug from a real project. A benign variant is a right step with
one change that could be taken for a bug. The right step is the native one, or that of a recipe on
shards. Each is a class whose docstring describes the change in one sentence; pages and output
show this sentence.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from harness.candidates.protocol import Candidate

Kind = TypeVar("Kind", bound=Callable[[], Candidate])

STAGES = (
    "batching",
    "labels",
    "slicing",
    "exchange",
    "attention",
    "loss",
    "gradients",
    "mesh",
    "numerics",
    "runtime",
)


@dataclass(frozen=True, slots=True)
class Changed:
    """A right step with one change, which its sentence describes."""

    # A mutant has the number of its bug in the catalogue, and a letter if a bug takes several
    # forms.
    key: str
    candidate: Candidate
    sentence: str

    @property
    def trains(self) -> str:
        """The right step of the same recipe, as FAMILY__LOSS; empty for the native step."""
        return self.candidate.trains() if hasattr(self.candidate, "trains") else ""

    @property
    def limits(self) -> str:
        """What bounds the cases that it is tried on; nothing bounds those of the native step."""
        return getattr(self.candidate, "limits", "") if self.trains else ""


@dataclass(frozen=True, slots=True)
class Mutant(Changed):
    """One bug: where it comes from, what shows it, and what it must be named."""

    stage: str
    # The public discussions of the bug, as owner/name#number.
    threads: tuple[str, ...]
    # What a case must have to show the bug: names of situations, or fields as in "sp>1".
    needs: tuple[str, ...]
    # The anomaly that the diagnosis must name.
    anomaly: str


@dataclass(frozen=True, slots=True)
class Benign(Changed):
    """One harmless change that the check must pass, and the bug that it looks like."""

    looks_like: str


MUTANTS: dict[str, Mutant] = {}
BENIGN: dict[str, Benign] = {}


def mutant(key: str, *threads: str, needs: tuple[str, ...], named: str) -> Callable[[Kind], Kind]:
    """Register a subclass of a right step as a mutant; its module, or package, is its stage."""

    def register(kind: Kind) -> Kind:
        stage = next(name for name in kind.__module__.split(".") if name in STAGES)
        _refuse_taken(key, MUTANTS)
        candidate = _instance(kind, f"mutants.{key}")
        MUTANTS[key] = Mutant(key, candidate, _sentence(kind), stage, threads, needs, named)
        return kind

    return register


def benign(key: str, *, looks_like: str) -> Callable[[Kind], Kind]:
    """Register a subclass of a right step as a benign variant."""

    def register(kind: Kind) -> Kind:
        _refuse_taken(key, BENIGN)
        BENIGN[key] = Benign(key, _instance(kind, f"benign.{key}"), _sentence(kind), looks_like)
        return kind

    return register


def _instance(kind: Callable[[], Candidate], name: str) -> Candidate:
    candidate = kind()
    candidate.name = name
    return candidate


def _refuse_taken(key: str, bank: dict[str, Mutant] | dict[str, Benign]) -> None:
    if key in bank:
        raise ValueError(f"key={key}: taken by {bank[key].candidate}")


def _sentence(kind: object) -> str:
    text = kind.__doc__
    if not text:
        raise ValueError(f"{kind}: has no docstring to say what the change is")
    return " ".join(text.split())
