"""The summary of a run of `check`, as data: added up, written, read back. Needs no torch."""

import importlib.metadata
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict
from itertools import chain
from typing import Any, Final, Literal

import msgspec

import harness
from harness.campaign.counts import Amount, Count, add_by_name
from harness.campaign.coverage import named_values
from harness.campaign.digest import BegunCases
from harness.campaign.request import Request
from harness.campaign.tally import BUCKETS, Tally, worst
from harness.engine.lot import Lot, Part
from harness.untrusted import fitted

FORMAT = 13
INTERRUPTED: Final = "interrupted"
LIMIT: Final = "limit"
Ended = Literal["", "interrupted", "limit"]
# Keys that every placement has; its other keys are versions and hardware.
PLACEMENT_KEYS = ("device", "devices", "transport", "ranks")


def versions() -> dict[str, str]:
    """Return the versions of the packages that decide which cases are drawn and how they run."""
    others = {name: importlib.metadata.version(name) for name in ("hypothesis", "torch")}
    return {"harness": harness.__version__, **others}


class Summary(msgspec.Struct, kw_only=True):
    """A campaign, or the shards of it that were examined."""

    request: Request
    # The size of the pool; no case of the campaign needs more ranks.
    ranks: int
    versions: dict[str, str]
    # A sentence about what cannot be seen where the ranks ran; empty in most places.
    unseen: str = ""
    # How many cases of the campaign these shards have.
    size: int
    # By the number of each lot, the cases of it that these shards have begun.
    begun: dict[str, BegunCases] = {}
    of: int
    shards: tuple[int, ...]
    # Shards of which `merge` was given no document.
    missing: tuple[int, ...] = ()
    tallies: dict[str, Tally]
    # By situation, how many judged cases met it; zero where none did.
    situations: Counter[str]
    # By situation, how many cases that met it were refused by some candidate.
    refused: Counter[str] = msgspec.field(default_factory=Counter)
    cases: Count = 0
    seconds: Amount = 0.0
    # Devices, transport and hardware of the ranks.
    placement: dict[str, str] = {}
    # Why the run ended before every case was judged; empty if it did not.
    ended: Ended = ""

    def __add__(self, other: "Summary") -> "Summary":
        """Add two parts of one campaign."""
        situations = Counter(self.situations)
        situations.update(other.situations)
        endings = {self.ended, other.ended}
        return msgspec.structs.replace(
            self,
            size=self.size + other.size,
            begun=add_by_name(self.begun, other.begun),
            shards=tuple(sorted({*self.shards, *other.shards})),
            tallies={name: tally + other.tallies[name] for name, tally in self.tallies.items()},
            situations=situations,
            refused=self.refused + other.refused,
            cases=self.cases + other.cases,
            seconds=round(self.seconds + other.seconds, 3),
            placement=_both_placements(self.placement, other.placement),
            ended=next((why for why in (INTERRUPTED, LIMIT) if why in endings), ""),
        )

    @property
    def verdict(self) -> str:
        """The worst of all candidates, and FAULT if cases are missing that were asked for."""
        gaps = self.missing or self.ended == INTERRUPTED or self.undrawn
        verdicts = [tally.verdict for tally in self.tallies.values()]
        return worst([*verdicts, *(["FAULT"] if gaps else [])])

    @property
    def undrawn(self) -> list[str]:
        """The values that the user named and that no case had; none if shards are missing.

        A candidate that failed or was given up is judged on no further lots, so it does not show
        what they had.
        """
        judged = (tally for tally in self.tallies.values() if not (tally.failed or tally.lacking))
        counted = [tally.coverage.asked for tally in judged]
        if len(self.shards) < self.of or not counted:
            return []
        return [value for value in named_values(self.request) if not counted[0][value]]

    def record(self) -> dict[str, Any]:
        """Return the document of the campaign, which `check --json` prints."""
        campaign = {**asdict(self.request), "ranks": self.ranks}
        return {
            "format": FORMAT,
            "campaign": {k: list(v) if type(v) is tuple else v for k, v in campaign.items()},
            "versions": self.versions,
            "unseen": self.unseen,
            "size": self.size,
            "begun": msgspec.to_builtins(self.begun),
            "shards": {
                "of": self.of,
                "examined": list(self.shards),
                "missing": list(self.missing),
            },
            "placement": self.placement,
            "ended": self.ended,
            "verdict": self.verdict,
            "cases": self.cases,
            "seconds": self.seconds,
            "situations": dict(self.situations),
            "refused": dict(self.refused),
            "buckets": list(BUCKETS),
            "candidates": {name: tally.record() for name, tally in self.tallies.items()},
        }

    @classmethod
    def from_record(cls, record: dict[str, Any], *, partial: bool = False) -> "Summary":
        """Read a record; raise an error if it is none, or contradicts itself.

        The error is a `ValueError`, `LookupError`, `TypeError` or `AttributeError`. A `partial`
        record is that of one lot, without candidates that failed in an earlier one.
        """
        campaign, shards = record["campaign"], record["shards"]
        parts = {
            "request": campaign,
            "ranks": campaign["ranks"],
            "of": shards["of"],
            "shards": shards["examined"],
            "missing": shards["missing"],
            "tallies": {name: Tally.from_record(t) for name, t in record["candidates"].items()},
        }
        summary = fitted({**record, **parts}, cls)
        sound = summary.is_sound() and (partial or summary.is_whole())
        if summary.record() != record or not sound:
            raise ValueError("the parts of the record contradict one another")
        return summary

    def is_sound(self) -> bool:
        """Whether the counts fit each other and the request."""
        shards = {*self.shards, *self.missing}
        judged = [tally.judged for tally in self.tallies.values()]
        return (
            min(self.refused.values(), default=1) > 0
            and self.refused.keys() <= self.situations.keys()
            and 1 <= self.of <= self.request.count
            and 1 <= self.size <= self.request.count
            and len(self.shards) > 0
            and self._has_only_its_lots()
            and all(1 <= shard <= self.of for shard in shards)
            and len(shards) == len(self.shards) + len(self.missing)
            and self.tallies.keys() == set(self.request.candidates)
            and all(tally.is_sound() for tally in self.tallies.values())
            and max(judged) <= min(self.cases, self.size)
            and self.cases <= sum(judged)
            and max(self.situations.values(), default=0) <= self.cases
            and not (self.placement and set(PLACEMENT_KEYS) - self.placement.keys())
        )

    def _has_only_its_lots(self) -> bool:
        """Whether the cases that were begun can be those of these shards."""
        sizes = {str(lot.number): lot.size for lot in self._lots()}
        return all(n in sizes and cases.is_possible(sizes[n]) for n, cases in self.begun.items())

    def _lots(self) -> Iterator[Lot]:
        parts = (Part(shard, self.of) for shard in self.shards)
        return chain.from_iterable(part.lots(self.request.count) for part in parts)

    def is_whole(self) -> bool:
        """Whether each candidate was judged on all cases of these shards, or has a reason why not.

        The reasons are: the run ended early, the candidate failed, or there are no more cases that
        it supports.
        """
        return self.size == sum(map(len, self._lots())) and all(
            self.ended
            or tally.failures
            or (tally.verdicts["UNSUPPORTED"] and not tally.lacking)
            or tally.judged + tally.lacking >= self.size
            for tally in self.tallies.values()
        )


def _both_placements(one: dict[str, str], other: dict[str, str]) -> dict[str, str]:
    """Join the values that two placements have for each key; name equal values once."""
    values = {
        name: [*one.get(name, "none").split("; "), *other.get(name, "none").split("; ")]
        for name in {**one, **other}
    }
    return {name: "; ".join(dict.fromkeys(listed)) for name, listed in values.items()}
