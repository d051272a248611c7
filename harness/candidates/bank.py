"""The native step with one thing changed: mutants, which must be found, and benign variants.

A mutant is a bug that somebody had, reduced to the step of ours that it would be in; the docstring
is the bug in a sentence. A benign variant is a change that someone could take for a bug.
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
class Mutant:
    """A deliberate fault, where it comes from, and what is known of it beforehand."""

    # That of the bug in the catalogue; a letter follows where one bug has several faces.
    key: str
    stage: str
    candidate: Candidate
    sentence: str
    # owner/name#number of the discussions that it is distilled from.
    threads: tuple[str, ...]
    # Without these a case cannot show it: situations by name, or a field as in "sp>1".
    needs: tuple[str, ...]
    # What a failure of it must be called.
    anomaly: str


@dataclass(frozen=True, slots=True)
class Benign:
    """A change that must not be flagged, and what it could be taken for."""

    key: str
    candidate: Candidate
    sentence: str
    looks_like: str


MUTANTS: dict[str, Mutant] = {}
BENIGN: dict[str, Benign] = {}


def mutant(key: str, *threads: str, needs: tuple[str, ...], named: str) -> Callable[[Kind], Kind]:
    """Register a class derived from the native step."""

    def register(kind: Kind) -> Kind:
        stage = kind.__module__.rpartition(".")[2]
        _refuse_second(key, MUTANTS)
        MUTANTS[key] = Mutant(
            key, stage, _named(kind, f"mutants.{key}"), _sentence(kind), threads, needs, named
        )
        return kind

    return register


def benign(key: str, *, looks_like: str) -> Callable[[Kind], Kind]:
    """Register a class derived from the native step."""

    def register(kind: Kind) -> Kind:
        _refuse_second(key, BENIGN)
        BENIGN[key] = Benign(key, _named(kind, f"benign.{key}"), _sentence(kind), looks_like)
        return kind

    return register


def _named(kind: Callable[[], Candidate], name: str) -> Candidate:
    candidate = kind()
    candidate.name = name
    return candidate


def _refuse_second(key: str, bank: dict[str, Mutant] | dict[str, Benign]) -> None:
    if key in bank:
        raise ValueError(f"key={key}: taken by {bank[key].candidate}")


def _sentence(kind: object) -> str:
    text = kind.__doc__
    if not text:
        raise ValueError(f"{kind}: has no docstring to say what the change is")
    return " ".join(text.split())
