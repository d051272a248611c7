"""Draw the cases of a lot, and others in place of those that a candidate does not support.

Each lot is drawn from its number. The replacements are drawn as lots too, with numbers that the
campaign itself does not have.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from functools import lru_cache
from itertools import count, islice, product
from typing import TYPE_CHECKING, Any, Self

from harness.campaign.coverage import Coverage
from harness.campaign.digest import digest
from harness.campaign.request import Request
from harness.campaign.standing import Standing
from harness.candidates import locate
from harness.case import Case, InvalidCase, Row
from harness.case.stated import ALL_RANKS, ASKED, having, read_stated, spans_all_ranks
from harness.engine.lot import SIZE, WHOLE, Lot
from harness.generation import Small, cases, draw_beyond, draw_cases
from harness.untrusted import BadInput

if TYPE_CHECKING:
    from harness.ranks.pool import RankPool

# A candidate is given up if it supports none of NONE_OF cases, or if it refuses TIMES as many
# cases as it was to be judged on, and NONE_OF more.
NONE_OF, TIMES = 200, 20
# The field of a request that has the rare sizes of a field of a case.
RARE_FIELDS = {"sp": "rare_sps", "dp": "rare_dps"}
# In a campaign of at least BEYOND_FROM cases, one of BEYOND_EVERY cases leaves the usual sizes.
BEYOND_FROM, BEYOND_EVERY = 60, 6
# The seed of a drawn case is smaller than this. So lots that shift their seeds by multiples of it
# have no case in common.
CASE_SEEDS = 1 << 17
# The seed of a campaign is smaller than this. So no lot is drawn from the seed of another lot.
CAMPAIGN_SEEDS = 1 << 64


class NothingToDraw(BadInput):
    """The request leaves no case, or too few."""


class CaseSource:
    """The cases of one lot, given out in rounds until each candidate is judged on enough."""

    def __init__(self, request: Request, ranks: int, lot: Lot, least: int = 1) -> None:
        """Draw the lot, of cases with `least` ranks or more.

        Raise `NothingToDraw` if there are not as many.
        """
        self._request, self._ranks, self._lot = request, ranks, lot
        whole = _draw_lot(request, ranks, lot, least)
        # The digest is that of the whole lot, even if only a part of it is judged here.
        self.lot_number, self.lot_digest = str(lot.number), digest(whole)
        self.share = lot.share(whole)
        self.handed_out: list[Case] = []
        # Replacements that are not handed out yet, by the limits for which they are drawn.
        self._replacements_left: dict[str, Iterator[Case]] = {}

    @classmethod
    def for_candidates(cls, request: Request, pool: "RankPool", lot: Lot) -> Self:
        """Draw the lot without what all candidates refuse by limits that come with a recipe.

        The author of a step does not know them. What the user asked for is drawn, and refused.
        """
        if request.up_to:
            return cls(request, pool.size, lot)
        named = [locate(name) for name in request.candidates]
        first, *others = [pool.limits(candidate).split() for candidate in named]
        shared = [limit for limit in first if all(limit in limits for limits in others)]
        if all(map(pool.has_recipe, named)):
            asked = {*request.named, *(name for name, _ in _fields(request.stated))}
            kept = [limit for limit in shared if limit.partition("=")[0] not in asked]
        else:
            kept = [limit for limit in shared if limit == ALL_RANKS]
        within, least = in_full(request, pool.size, " ".join(kept))
        return cls(within, pool.size, lot, least)

    def requested_coverage(self) -> Coverage:
        """Return what a candidate has to be judged on; the user did not ask for rare sizes."""
        cases = (case for case in self.share if case.sp in self._request.sps)
        return Coverage.of_cases(cases, self._request.named)

    def rounds(self, standings: Mapping[str, Standing]) -> Iterator[list[tuple[Case, str]]]:
        """Yield rounds of cases, each case with the candidate to judge on it.

        The caller judges a round and adds it to the standings before it takes the next one. The
        rounds end when each candidate was judged on enough cases or is given up, or when there
        are no more cases.
        """
        self.handed_out += self.share
        yield list(product(self.share, standings))
        while jobs := list(self._replacements(standings)):
            self.handed_out += dict.fromkeys(case for case, _ in jobs)
            yield jobs

    def _replacements(self, standings: Mapping[str, Standing]) -> Iterator[tuple[Case, str]]:
        """Yield as many replacements as each candidate needs; equal limits share their cases."""
        needs_by_limits = defaultdict[str, dict[str, int]](dict)
        for name, missing in self._missing(standings):
            needs_by_limits[standings[name].limits][name] = missing
        for limits, needs in needs_by_limits.items():
            if limits not in self._replacements_left:
                self._replacements_left[limits] = self._draw_replacements(limits)
            coming = islice(self._replacements_left[limits], max(needs.values()))
            for number, case in enumerate(coming):
                yield from ((case, name) for name, missing in needs.items() if number < missing)

    def _draw_replacements(self, limits: str) -> Iterator[Case]:
        """Yield cases within these limits, of no lot of the campaign and no other part of this."""
        try:
            request, least = in_full(self._request, self._ranks, limits)
        except NothingToDraw:
            return
        meshes = product(request.sps, request.dps)
        if not any(least <= sp * dp <= self._ranks for sp, dp in meshes):
            return
        lots, part, piece = -(-request.count // SIZE), self._lot.part, self._lot.piece
        place = part.number - 1 + part.of * (piece.number - 1)
        # Lot n takes its replacements from lots n + lots, n + 2 * lots and so on. Its parts and
        # pieces take turns in them.
        for number in count(lots + self._lot.number, lots):
            batch = islice(_lot_cases(request, self._ranks, number, least), SIZE)
            own = islice(batch, place, None, part.of * piece.of)
            first = next(own, None)
            if first is None:
                return
            yield first
            yield from own

    def _missing(self, standings: Mapping[str, Standing]) -> Iterator[tuple[str, int]]:
        """Yield how many cases each candidate needs; give up those that refuse too many."""
        # Where every small case is judged, none can take the place of another.
        for name, standing in () if self._request.up_to else standings.items():
            missing = len(self.share) - standing.tally.judged
            if missing and not standing.is_done:
                if self.is_given_up(standing):
                    standing.tally.lacking = missing
                else:
                    yield name, missing

    def is_given_up(self, standing: Standing) -> bool:
        """Whether a candidate refused so many cases that it is given no more."""
        # In the first round the limits of a candidate are not known yet; refusals for these do
        # not count.
        outside = min(standing.outside_limits, len(self.share))
        refused = standing.tally.verdicts["UNSUPPORTED"] - outside
        return refused >= (TIMES * len(self.share) + NONE_OF if standing.tally.judged else NONE_OF)


def require_cases(request: Request, pool: "RankPool") -> None:
    """Raise `NothingToDraw` if the limits of a candidate leave no case."""
    for candidate in request.candidates:
        try:
            narrow(request, pool.limits(locate(candidate)))
        except NothingToDraw as error:
            raise NothingToDraw(f"candidate={candidate}: {error}") from None


def narrow(request: Request, limits: str) -> Request:
    """Narrow a request to the limits of a candidate; raise `NothingToDraw` if nothing is left."""
    stated = {name: listed.split(",") for name, listed in _fields(request.stated)}
    for name, listed in _fields(limit for limit in limits.split() if limit != ALL_RANKS):
        values = listed.split(",")
        if name not in ASKED:
            stated[name] = [value for value in stated.get(name, values) if value in values]
            left = len(stated[name])
        else:
            asked = getattr(request, ASKED[name])
            both: dict[str, Any] = {ASKED[name]: tuple(v for v in asked if str(v) in values)}
            if name in RARE_FIELDS:
                rare = getattr(request, RARE_FIELDS[name])
                both[RARE_FIELDS[name]] = tuple(v for v in rare if str(v) in values)
            request, left = replace(request, **both), len(both[ASKED[name]])
        if not left:
            option = f"--{name} {listed}" if name in ASKED else f"--set {name}={listed}"
            raise NothingToDraw(
                f"limits={limits}: {name}={listed} is nothing that was asked for; use {option}"
            )
    return replace(request, stated=tuple(f"{n}={','.join(v)}" for n, v in stated.items()))


def in_full(request: Request, ranks: int, limits: str) -> tuple[Request, int]:
    """Narrow a request to these limits; return it, and the fewest ranks that its cases take.

    For a step that takes all ranks there are, each size of a mesh is a world of its own, so there
    should be few: each sp gets the dp with which it fills the pool, unless the user named dps.
    """
    if not spans_all_ranks(limits):
        return narrow(request, limits), 1
    if "dp" not in request.named:
        filling = {ranks // sp for sp in request.sps if 1 < sp <= ranks and ranks % sp == 0}
        request = replace(request, dps=tuple(sorted({*request.dps, *filling})))
    request = narrow(request, limits)
    sharing = [sp for sp in request.sps if sp > 1] or request.sps
    taken = ([sp * dp for dp in request.dps if sp * dp <= ranks] for sp in sharing)
    return request, min(max(sizes, default=ranks) for sizes in taken)


def _fields(words: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Split words such as `loss=token-mean,row-mean` into a name and a list of values."""
    return ((name, listed) for name, _, listed in (word.partition("=") for word in words))


def draw(request: Request, ranks: int, limits: str = "") -> list[Case]:
    """Draw all cases of a campaign within the limits of a candidate, without replacements."""
    request, least = in_full(request, ranks, limits)
    lots = WHOLE.lots(request.count)
    return [case for lot in lots for case in _draw_lot(request, ranks, lot, least)]


# The command draws the first lot once to see whether it can be drawn, and again to judge it.
@lru_cache(maxsize=1)
def _draw_lot(request: Request, ranks: int, lot: Lot, least: int) -> list[Case]:
    """Draw a whole lot; raise `NothingToDraw` if there are not as many cases."""
    batch = list(islice(_lot_cases(request, ranks, lot.number, least), lot.size))
    if not batch:
        raise NothingToDraw(f"--set={','.join(request.stated)}: no case is like this")
    if len(batch) < lot.size:
        raise NothingToDraw(
            f"--cases={request.count}: of {lot.size} cases that are like this only {len(batch)} "
            "could be drawn; ask for fewer, or state less with --set"
        )
    return batch


def _lot_cases(request: Request, ranks: int, number: int, least: int) -> Iterator[Case]:
    """Yield all cases that can be drawn for a lot; no two lots have a case in common.

    Each case needs at least `least` ranks.
    """
    if request.up_to:
        yield from small(request, ranks).cases(number * SIZE, (number + 1) * SIZE)
        return
    own = replace(request, seed=request.seed + number * CAMPAIGN_SEEDS)
    for case in _mixed_sizes(own, ranks, number, least):
        yield replace(case, seed=case.seed + number * CASE_SEEDS) if number else case


def _mixed_sizes(request: Request, ranks: int, number: int, least: int) -> Iterator[Case]:
    """Yield all distinct cases of a request; in a large campaign, some beyond the usual sizes."""
    large = _large(request, ranks, number, least) if request.count >= BEYOND_FROM else iter(())
    given = set[Case]()
    for place, case in enumerate(_usual(request, ranks, number, least)):
        # One large case goes into each run of five usual cases, at a place that moves. So every
        # shard has some: in a small campaign it takes every n-th case.
        turn, offset = divmod(place, BEYOND_EVERY - 1)
        if offset == 1 + turn % (BEYOND_EVERY - 2):
            chosen = next((other for other in large if other not in given), None)
            if chosen is not None:
                given.add(chosen)
                yield chosen
        if case not in given:
            given.add(case)
            yield case


def _large(request: Request, ranks: int, number: int, least: int) -> Iterator[Case]:
    return draw_beyond(
        request.seed,
        number * (SIZE // BEYOND_EVERY),
        rare_sps=[sp for sp in request.rare_sps if sp <= ranks],
        rare_dps=[dp for dp in request.rare_dps if dp <= ranks],
        min_ranks=least,
        max_ranks=ranks,
        **drawing_arguments(request),
    )


def _usual(request: Request, ranks: int, number: int, least: int) -> Iterator[Case]:
    """Yield cases of usual sizes; the campaign begins with the notebook's batch."""
    first = notebooks_batch(request, ranks) if number == 0 else []
    yield from (case for case in first if least <= case.ranks)
    yield from draw_cases(
        cases(**drawing_arguments(request), min_ranks=least, max_ranks=ranks), request.seed
    )


def small(request: Request, ranks: int) -> Small:
    """Return all cases of up to as many tokens as a request says."""
    return Small(
        tokens=request.up_to,
        max_ranks=ranks,
        seed=request.seed,
        **drawing_arguments(request),
    )


def drawing_arguments(request: Request) -> dict[str, Any]:
    """Return what a request says about cases, as arguments of `generation.cases`."""
    return {name: getattr(request, name) for name in (*ASKED.values(), "stated")}


def notebooks_batch(request: Request, ranks: int) -> list[Case]:
    """Return the notebook's batch with the requested values of its fields.

    The list is empty if that case is invalid, or needs more ranks than there are.
    """
    try:
        fields = {n: values[0] for n, values in map(read_stated, request.stated)}
        dp = min(request.dps)
        case = having(_notebook_case(request, ranks), {"dp": dp, **fields})
    except InvalidCase:
        return []
    return [case] if case.ranks <= ranks else []


def _notebook_case(request: Request, ranks: int) -> Case:
    """Return the batch that this project started from, at the largest sp up to 4 that fits."""
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
