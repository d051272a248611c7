"""What was examined of what was asked for: a run that left it out is no pass. Needs no torch.

Every case can pass, and the run can still prove nothing: the candidate refused each case that
shares a sequence, or each that has a target. So coverage counts, of the cases that were drawn, how
many share a sequence over each sp, and how many have a target whose label is on another rank;
enough of these must have been judged. It also counts in how many cases each gradient was compared,
and in how many of them it was not zero.

Enough is a quarter of what was drawn, and never more than ENOUGH: a candidate may refuse most of
what is drawn. ENOUGH is so large that a fault which shows in half of the cases that can show it is
overlooked less than once in a hundred runs: 0.5 ** 7 < 0.01. 139 of 158 known bugs show so often.
"""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from harness.campaign.counts import Whole, together
from harness.case import Case
from harness.plan import plan
from harness.untrusted import fitted
from harness.verdict import Verdict

if TYPE_CHECKING:
    from harness.compare import Comparison

ENOUGH, A_SHARE_OF = 7, 4
AT_AN_EDGE = "a target whose label is on another rank"
LAYER = re.compile(r"layers\.\d+")
# As a trace has it, which needs numpy.
GRADIENT = "grad."


def of_any_layer(key: str) -> str:
    """`grad.layers.1.attn.q` as `grad.layers.*.attn.q`: few cases have many layers."""
    return LAYER.sub("layers.*", key)


def sharing(sp: int) -> str:
    """What it is called that a case shares a sequence over so many ranks."""
    return f"a sequence over sp {sp}"


def having(case: Case, field: str) -> str:
    """What it is called that a case has this value of a field."""
    return f"{field}={getattr(case, field)}"


class Gradient(msgspec.Struct, forbid_unknown_fields=True):
    """In how many cases one was compared, and in how many it was not zero."""

    compared: Whole = 0
    alive: Whole = 0

    def __add__(self, other: "Gradient") -> "Gradient":
        return Gradient(self.compared + other.compared, self.alive + other.alive)


class Coverage(msgspec.Struct, forbid_unknown_fields=True):
    """What one candidate was asked for, and what of it was judged."""

    asked: Counter[str] = msgspec.field(default_factory=Counter)
    judged: Counter[str] = msgspec.field(default_factory=Counter)
    # By name, whatever the layer.
    gradients: dict[str, Gradient] = {}

    @classmethod
    def asks(cls, cases: Iterable[Case], named: Sequence[str] = ()) -> "Coverage":
        """Start with cases that a candidate is to be judged on, and each value of named fields."""
        coverage = cls()
        for case in cases:
            coverage.ask(case, named)
        return coverage

    def ask(self, case: Case, named: Sequence[str] = ()) -> None:
        self.asked.update(having(case, field) for field in named)
        if case.sp > 1:
            self.asked[sharing(case.sp)] += 1
            self.asked[AT_AN_EDGE] += plan(case).live_boundary_labels(case) > 0

    def add(self, comparison: "Comparison") -> None:
        if comparison.verdict in (Verdict.UNSUPPORTED, Verdict.FAULT):
            return
        case, at_edge = comparison.case, comparison.at_edge
        named = dict.fromkeys(what.partition("=")[0] for what in self.asked if "=" in what)
        self.judged.update(having(case, field) for field in named)
        if case.sp > 1:
            self.judged[sharing(case.sp)] += 1
            if at_edge is None:
                # It shows who holds which target only, and not who holds the labels.
                at_edge = plan(case).live_boundary_labels(case)
            self.judged[AT_AN_EDGE] += at_edge > 0
        alive = dict[str, bool]()
        for result in comparison.keys:
            if result.key.startswith(GRADIENT):
                name = of_any_layer(result.key)
                alive[name] = alive.get(name, False) or not result.zero
        for name, one in alive.items():
            gradient = self.gradients.setdefault(name, Gradient())
            gradient.compared += 1
            gradient.alive += one

    def __add__(self, other: "Coverage") -> "Coverage":
        gradients = together(self.gradients, other.gradients)
        return Coverage(self.asked + other.asked, self.judged + other.judged, gradients)

    def lacks(self, *, shared: bool = False) -> Iterator[str]:
        """What was asked for and not examined enough, in words.

        Where nobody can ask for sp 1 alone, some case has to have `shared` a sequence.
        """
        if shared and not any(n for what, n in self.asked.items() if "=" not in what):
            yield "no case that shares a sequence"
        for what, asked in sorted(self.asked.items()):
            judged = self.judged[what]
            if judged < min(ENOUGH, -(-asked // A_SHARE_OF)):
                yield f"{judged or 'none'} of {asked} cases with {what}"
        dead = [name for name, each in self.gradients.items() if not each.alive]
        if dead and len(dead) == len(self.gradients):
            yield "no gradient, because all of them were zero in every case"
            return
        for name in dead:
            compared = self.gradients[name].compared
            if compared >= ENOUGH:
                yield f"no element of {name}, which was zero in all {compared} cases"

    def record(self) -> dict[str, Any]:
        record: dict[str, Any] = msgspec.to_builtins(self)
        return record

    @classmethod
    def from_record(cls, record: dict[str, Any]) -> "Coverage":
        return fitted(record, cls)

    def is_sound(self) -> bool:
        return all(each.alive <= each.compared for each in self.gradients.values())
