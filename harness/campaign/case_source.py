"""The cases of a lot, and more in the place of those that a candidate does not support.

Each lot is drawn from its number. What is drawn in the place of its cases are lots as well, with
numbers that the campaign does not have.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from functools import lru_cache
from itertools import count, islice, product
from typing import TYPE_CHECKING, Any

from harness.campaign.coverage import Coverage
from harness.campaign.digest import digest
from harness.campaign.request import Request
from harness.campaign.tally import Tally
from harness.candidates import locate
from harness.case import Case, InvalidCase, Row
from harness.case.stated import ALL_RANKS, ASKED, read_stated, spans_all_ranks
from harness.engine.lot import SIZE, WHOLE, Lot
from harness.generation import beyond, cases, drawn
from harness.untrusted import BadInput

if TYPE_CHECKING:
    from harness.ranks.pool import RankPool

# A candidate that supports none of so many cases is given no more; nor one that does not support
# so many for each that it was to be judged on.
NONE_OF, TIMES = 200, 20
# Fields that a few cases may have beyond what was asked for.
RARE = {"sp": "rare_sps", "dp": "rare_dps"}
# A campaign of so many cases leaves the usual sizes in every so many of them.
BEYOND_FROM, BEYOND_EVERY = 60, 6
# No case draws a seed as large: so the cases of two lots differ in theirs.
SEEDS = 1 << 17
# The seed of a campaign is below it: so no lot is drawn from the seed of another.
SEEDS_OF_CAMPAIGNS = 1 << 64


class NothingToDraw(BadInput):
    """What is stated of fields leaves no case."""


class Supply:
    """Each candidate is to be judged on as many cases as were asked for."""

    def __init__(self, request: Request, ranks: int, lot: Lot) -> None:
        self._request, self._ranks, self._lot = request, ranks, lot
        whole = _of_lot(request, ranks, lot)
        # They belong to the lot, whatever part of it this is.
        self.number, self.drawn = str(lot.number), digest(whole)
        self.share = lot.share(whole)
        self.given: list[Case] = []
        # What more there is, by the limits of those for whom it is drawn.
        self._more: dict[str, Iterator[Case]] = {}

    def asked(self) -> Coverage:
        """What a candidate has to be judged on; what is rare was not asked for."""
        cases = (case for case in self.share if case.sp in self._request.sps)
        return Coverage.asks(cases, self._request.named)

    def rounds(self, tallies: Mapping[str, Tally]) -> Iterator[list[tuple[Case, str]]]:
        """Cases and who is to be judged on them, until each was on enough, or lacks some."""
        self.given += self.share
        yield list(product(self.share, tallies))
        while jobs := list(self._replacements(tallies)):
            self.given += dict.fromkeys(case for case, _ in jobs)
            yield jobs

    def _replacements(self, tallies: Mapping[str, Tally]) -> Iterator[tuple[Case, str]]:
        alike = defaultdict[str, dict[str, int]](dict)
        for name, missing in self._missing(tallies):
            alike[tallies[name].limits][name] = missing
        for limits, missing_of in alike.items():
            if limits not in self._more:
                self._more[limits] = self._others(limits)
            coming = islice(self._more[limits], max(missing_of.values()))
            for number, case in enumerate(coming):
                yield from ((case, name) for name, count in missing_of.items() if number < count)

    def _others(self, limits: str) -> Iterator[Case]:
        """Cases of this lot alone that no lot of the campaign has."""
        try:
            request = within(self._request, limits)
        except NothingToDraw:
            return
        least = self._ranks if spans_all_ranks(limits) else 1
        meshes = product(request.sps, request.dps)
        if not any(least <= sp * dp <= self._ranks for sp, dp in meshes):
            return
        lots, part, piece = -(-request.count // SIZE), self._lot.part, self._lot.piece
        mine = part.number - 1 + part.of * (piece.number - 1)
        for number in count(lots + self._lot.number, lots):
            every = islice(_drawn(request, self._ranks, number, least), SIZE)
            more = islice(every, mine, None, part.of * piece.of)
            first = next(more, None)
            if first is None:
                return
            yield first
            yield from more

    def _missing(self, tallies: Mapping[str, Tally]) -> Iterator[tuple[str, int]]:
        for name, tally in tallies.items():
            missing = len(self.share) - tally.judged
            if missing and not tally.is_done:
                if self.is_in_vain(tally):
                    tally.lacking = missing
                else:
                    yield name, missing

    def is_in_vain(self, tally: Tally) -> bool:
        """Whether so many cases could not be judged that a candidate is given no more."""
        # What was drawn before its limits were known counts for nothing: that is one round.
        refused = tally.verdicts["UNSUPPORTED"] - min(tally.beyond, len(self.share))
        return refused >= (TIMES * len(self.share) + NONE_OF if tally.judged else NONE_OF)


def require_cases(request: Request, pool: "RankPool") -> None:
    """Raise why the limits of a candidate leave no case."""
    for candidate in request.candidates:
        try:
            within(request, pool.limits(locate(candidate)))
        except NothingToDraw as error:
            raise NothingToDraw(f"candidate={candidate}: {error}") from None


def within(request: Request, limits: str) -> Request:
    """What is left of a request for a candidate that has these limits."""
    stated = {name: listed.split(",") for name, listed in _fields(request.stated)}
    for name, listed in _fields(limit for limit in limits.split() if limit != ALL_RANKS):
        values = listed.split(",")
        if name not in ASKED:
            stated[name] = [value for value in stated.get(name, values) if value in values]
            left = len(stated[name])
        else:
            asked = getattr(request, ASKED[name])
            both: dict[str, Any] = {ASKED[name]: tuple(v for v in asked if str(v) in values)}
            if name in RARE:
                rare = getattr(request, RARE[name])
                both[RARE[name]] = tuple(v for v in rare if str(v) in values)
            request, left = replace(request, **both), len(both[ASKED[name]])
        if not left:
            option = f"--{name} {listed}" if name in ASKED else f"--set {name}={listed}"
            raise NothingToDraw(
                f"limits={limits}: {name}={listed} is nothing that was asked for; use {option}"
            )
    return replace(request, stated=tuple(f"{n}={','.join(v)}" for n, v in stated.items()))


def _fields(words: Iterable[str]) -> Iterator[tuple[str, str]]:
    return ((name, listed) for name, _, listed in (word.partition("=") for word in words))


def draw(request: Request, ranks: int) -> list[Case]:
    """The campaign, should its candidates support all cases."""
    return [case for lot in WHOLE.lots(request.count) for case in _of_lot(request, ranks, lot)]


# It is drawn once to see whether it can be, and then to be judged.
@lru_cache(maxsize=1)
def _of_lot(request: Request, ranks: int, lot: Lot) -> list[Case]:
    batch = list(islice(_drawn(request, ranks, lot.number), lot.size))
    if not batch:
        raise NothingToDraw(f"--set={','.join(request.stated)}: no case is like this")
    if len(batch) < lot.size:
        raise NothingToDraw(
            f"--cases={request.count}: of {lot.size} cases that are like this only {len(batch)} "
            "could be drawn; ask for fewer, or state less with --set"
        )
    return batch


def _drawn(request: Request, ranks: int, number: int, least: int = 1) -> Iterator[Case]:
    """The cases of a lot, and as many more as there are; no two lots have one in common."""
    own = replace(request, seed=request.seed + number * SEEDS_OF_CAMPAIGNS)
    for case in _mixed(own, ranks, number, least):
        yield replace(case, seed=case.seed + number * SEEDS) if number else case


def _mixed(request: Request, ranks: int, number: int, least: int) -> Iterator[Case]:
    """All cases that a request describes, no two of them equal, some beyond the usual sizes."""
    large = _beyond(request, ranks, number, least) if request.count >= BEYOND_FROM else iter(())
    given = set[Case]()
    for place, case in enumerate(_usual(request, ranks, number, least)):
        # Before this one, so that there is one in six; wherever a campaign is cut into shards,
        # each has some.
        turn, offset = divmod(place, BEYOND_EVERY - 1)
        if offset == 1 + turn % (BEYOND_EVERY - 2):
            chosen = next((each for each in large if each not in given), None)
            if chosen is not None:
                given.add(chosen)
                yield chosen
        if case not in given:
            given.add(case)
            yield case


def _beyond(request: Request, ranks: int, number: int, least: int) -> Iterator[Case]:
    return beyond(
        request.seed,
        number * (SIZE // BEYOND_EVERY),
        rare_sps=[sp for sp in request.rare_sps if sp <= ranks],
        rare_dps=[dp for dp in request.rare_dps if dp <= ranks],
        min_ranks=least,
        max_ranks=ranks,
        **bounds(request),
    )


def _usual(request: Request, ranks: int, number: int, least: int) -> Iterator[Case]:
    """The notebook's batch is first of all."""
    first = notebooks_batch(request, ranks) if number == 0 else []
    yield from (case for case in first if least <= case.ranks)
    yield from drawn(cases(**bounds(request), min_ranks=least, max_ranks=ranks), request.seed)


def bounds(request: Request) -> dict[str, Any]:
    """What it says of cases, as `cases` takes it."""
    return {name: getattr(request, name) for name in (*ASKED.values(), "stated")}


def notebooks_batch(request: Request, ranks: int) -> list[Case]:
    """One case, with what is asked and stated of its fields; none where that cannot be."""
    try:
        fields = {n: values[0] for n, values in map(read_stated, request.stated)}
        case = replace(_notebook_case(request, ranks), dp=min(request.dps), **fields)
    except InvalidCase:
        return []
    return [case] if case.ranks <= ranks else []


def _notebook_case(request: Request, ranks: int) -> Case:
    """The batch that this project started from, on four ranks where there are four."""
    sp = max((sp for sp in request.sps if sp <= min(ranks, 4)), default=min(request.sps))
    heads = 4 if 4 % sp == 0 else sp
    return Case(
        rows=(Row("1111"), Row("111")),
        ids=((1, 2, 3, 4), (5, 6, 7)),
        heads=heads,
        kv_heads=heads,
        vocab=10,
        sp=sp,
        loss=request.losses[0],
        dtype=request.dtypes[0],
    )
