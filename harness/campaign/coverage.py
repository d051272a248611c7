"""Coverage: how much of what was requested was judged. Needs no torch.

Every case can pass, and the run can still prove nothing: the candidate refused each case that
shares a sequence, or each that has a target. So coverage counts, among the cases that were drawn,
how many share a sequence over each sp, and how many have a target whose label is on another rank;
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

from harness.campaign.counts import Count, add_by_name
from harness.campaign.request import Request
from harness.case import Case
from harness.case.stated import ASKED, read_stated, value_of
from harness.plan import plan
from harness.untrusted import fitted
from harness.verdict import Verdict

if TYPE_CHECKING:
    from harness.compare import Comparison

# One of so many drawn cases must be judged, up to ENOUGH of them.
ENOUGH, DRAWN_FOR_ONE = 7, 4
AT_AN_EDGE = "a target whose label is on another rank"
SHARING = "a sequence over sp"
LAYER = re.compile(r"layers\.\d+")
# `harness.trace` has this prefix too, and needs numpy.
GRADIENT = "grad."


def without_layer_number(key: str) -> str:
    """Return `grad.layers.1.attn.q` as `grad.layers.*.attn.q`: few cases have many layers."""
    return LAYER.sub("layers.*", key)


def sharing_requirement(sp: int) -> str:
    """Name the requirement that a case shares a sequence over so many ranks."""
    return f"{SHARING} {sp}"


def _field_value(case: Case, field: str) -> str:
    """Name the requirement that a field of a case has the value that it has in this case."""
    return f"{field}={value_of(case, field)}"


def named_values(request: Request) -> Iterator[str]:
    """Name the requirement of each value that the user of a campaign named."""
    if not request.rare_sps:
        yield from (sharing_requirement(sp) for sp in request.sps if sp > 1)
    values = dict(map(read_stated, request.stated))
    for field in request.named:
        of_field = values[field] if field in values else getattr(request, ASKED[field])
        yield from (f"{field}={value}" for value in of_field)


class Gradient(msgspec.Struct, forbid_unknown_fields=True):
    """In how many cases one gradient was compared, and in how many of these it was not zero."""

    compared: Count = 0
    alive: Count = 0

    def __add__(self, other: "Gradient") -> "Gradient":
        return Gradient(self.compared + other.compared, self.alive + other.alive)


class Coverage(msgspec.Struct, forbid_unknown_fields=True):
    """How many cases with each requirement one candidate was asked for, and was judged on."""

    asked: Counter[str] = msgspec.field(default_factory=Counter)
    judged: Counter[str] = msgspec.field(default_factory=Counter)
    # By the name of the gradient, whatever the layer.
    gradients: dict[str, Gradient] = {}

    @classmethod
    def of_cases(cls, cases: Iterable[Case], named: Sequence[str] = ()) -> "Coverage":
        """Require these cases of a candidate, and each value of the named fields."""
        coverage = cls()
        for case in cases:
            coverage.ask(case, named)
        return coverage

    def ask(self, case: Case, named: Sequence[str] = ()) -> None:
        """Count a case that the candidate is to be judged on."""
        self.asked.update(_field_value(case, field) for field in named)
        if case.sp > 1:
            self.asked[sharing_requirement(case.sp)] += 1
            self.asked[AT_AN_EDGE] += plan(case).live_boundary_labels(case) > 0

    def add(self, comparison: "Comparison") -> None:
        """Count a case that was judged; one that was refused or ended in a fault is not."""
        if comparison.verdict in (Verdict.UNSUPPORTED, Verdict.FAULT):
            return
        case, at_edge = comparison.case, comparison.measured.at_edge
        named = dict.fromkeys(
            requirement.partition("=")[0] for requirement in self.asked if "=" in requirement
        )
        self.judged.update(_field_value(case, field) for field in named)
        if case.sp > 1:
            self.judged[sharing_requirement(case.sp)] += 1
            if at_edge is None:
                # The candidate does not show which rank holds a label: assume that it cuts the
                # stream as our own step does.
                at_edge = plan(case).live_boundary_labels(case)
            self.judged[AT_AN_EDGE] += at_edge > 0
        alive = dict[str, bool]()
        for result in comparison.measured.keys:
            if result.key.startswith(GRADIENT) and not result.frozen:
                name = without_layer_number(result.key)
                alive[name] = alive.get(name, False) or not result.zero
        for name, is_alive in alive.items():
            gradient = self.gradients.setdefault(name, Gradient())
            gradient.compared += 1
            gradient.alive += is_alive

    def __add__(self, other: "Coverage") -> "Coverage":
        gradients = add_by_name(self.gradients, other.gradients)
        return Coverage(self.asked + other.asked, self.judged + other.judged, gradients)

    def lacks(self, *, shared: bool = False) -> Iterator[str]:
        """Yield in words what was requested and not judged often enough.

        With `shared`, some case must share a sequence. A command sets it if its user cannot ask
        for sp 1 alone.
        """
        if shared and not any(n for name, n in self.asked.items() if "=" not in name):
            yield "no case that shares a sequence"
        for requirement, asked in sorted(self.asked.items()):
            judged = self.judged[requirement]
            if judged < min(ENOUGH, -(-asked // DRAWN_FOR_ONE)):
                yield f"{judged or 'none'} of {asked} cases with {requirement}"
        dead = [name for name, gradient in self.gradients.items() if not gradient.alive]
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
        """Whether no gradient was alive in more cases than it was compared in."""
        return all(gradient.alive <= gradient.compared for gradient in self.gradients.values())
