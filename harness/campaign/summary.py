"""What a run of `check` found, as data: added up, written, read back. Needs no torch."""

import importlib.metadata
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict
from itertools import chain
from typing import Any, Final, Literal

import msgspec

import harness
from harness.campaign.counts import Amount, Whole, together
from harness.campaign.digest import Begun
from harness.campaign.request import Request
from harness.campaign.tally import BUCKETS, Tally, worst
from harness.engine.lot import Lot, Part
from harness.untrusted import fitted

FORMAT = 12
INTERRUPTED: Final = "interrupted"
LIMIT: Final = "limit"
Ended = Literal["", "interrupted", "limit"]
# What is told of where ranks ran.
PLACE = ("device", "devices", "transport", "ranks")


def versions() -> dict[str, str]:
    """Versions of all that decides what is drawn, and how it is computed."""
    others = {name: importlib.metadata.version(name) for name in ("hypothesis", "torch")}
    return {"harness": harness.__version__, **others}


class Summary(msgspec.Struct, kw_only=True):
    """A campaign, or the shards of it that were examined."""

    request: Request
    # No case of the campaign needs more of them.
    ranks: int
    versions: dict[str, str]
    # What cannot be seen where it ran; nothing in particular in most places.
    unseen: str = ""
    # How many of its cases these shards have.
    size: int
    # By the number of each lot, which of its cases were begun here.
    begun: dict[str, Begun] = {}
    of: int
    shards: tuple[int, ...]
    # Shards that should have been merged and were not; nothing is known of their cases.
    missing: tuple[int, ...] = ()
    tallies: dict[str, Tally]
    # Zeros as well: what was never met tells as much.
    situations: Counter[str]
    # Situations of cases that some candidate does not support.
    refused: Counter[str] = msgspec.field(default_factory=Counter)
    cases: Whole = 0
    seconds: Amount = 0.0
    # Where ranks ran, and on what.
    placement: dict[str, str] = {}
    # Why not every case was judged, where somebody or --limit ended it before; or nothing.
    ended: Ended = ""

    def __add__(self, other: "Summary") -> "Summary":
        """Both, of one campaign."""
        situations = Counter(self.situations)
        situations.update(other.situations)
        endings = {self.ended, other.ended}
        return msgspec.structs.replace(
            self,
            size=self.size + other.size,
            begun=together(self.begun, other.begun),
            shards=tuple(sorted({*self.shards, *other.shards})),
            tallies={name: each + other.tallies[name] for name, each in self.tallies.items()},
            situations=situations,
            refused=self.refused + other.refused,
            cases=self.cases + other.cases,
            seconds=round(self.seconds + other.seconds, 3),
            placement=_both(self.placement, other.placement),
            ended=next((why for why in (INTERRUPTED, LIMIT) if why in endings), ""),
        )

    @property
    def verdict(self) -> str:
        gaps = ["FAULT"] if self.missing or self.ended == INTERRUPTED else []
        return worst([*gaps, *(tally.verdict for tally in self.tallies.values())])

    def record(self) -> dict[str, Any]:
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
        """Some error where it is not one; what is derived must be as it would be written.

        In a part of a campaign there may be candidates that were not asked any more.
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
        shards = {*self.shards, *self.missing}
        judged = [tally.judged for tally in self.tallies.values()]
        return (
            min(self.refused.values(), default=1) > 0
            and self.refused.keys() <= self.situations.keys()
            and 1 <= self.of <= self.request.count
            and 1 <= self.size <= self.request.count
            and len(self.shards) > 0
            and self._is_of_these_lots()
            and all(1 <= shard <= self.of for shard in shards)
            and len(shards) == len(self.shards) + len(self.missing)
            and self.tallies.keys() == set(self.request.candidates)
            and all(tally.is_sound() for tally in self.tallies.values())
            and max(judged) <= min(self.cases, self.size)
            and self.cases <= sum(judged)
            and max(self.situations.values(), default=0) <= self.cases
            and not (self.placement and set(PLACE) - self.placement.keys())
        )

    def _is_of_these_lots(self) -> bool:
        """Whether what was begun are cases of these shards."""
        sizes = {str(lot.number): lot.size for lot in self._lots()}
        return all(n in sizes and each.is_of(sizes[n]) for n, each in self.begun.items())

    def _lots(self) -> Iterator[Lot]:
        parts = (Part(shard, self.of) for shard in self.shards)
        return chain.from_iterable(part.lots(self.request.count) for part in parts)

    def is_whole(self) -> bool:
        """Whether all cases of these shards were judged, as far as there is no reason against."""
        # Spared the rest of its cases is a candidate that failed, who was stopped, and one for
        # which there are no more that it supports.
        return self.size == sum(map(len, self._lots())) and all(
            self.ended
            or tally.failures
            or (tally.verdicts["UNSUPPORTED"] and not tally.lacking)
            or tally.judged + tally.lacking >= self.size
            for tally in self.tallies.values()
        )


def _both(one: dict[str, str], other: dict[str, str]) -> dict[str, str]:
    """Where ranks ran, for each thing that is told of it once, if it was the same."""
    told = {
        name: [*one.get(name, "none").split("; "), *other.get(name, "none").split("; ")]
        for name in {**one, **other}
    }
    return {name: "; ".join(dict.fromkeys(each)) for name, each in told.items()}
