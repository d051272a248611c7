"""One stage of an examination: cases in, a tally out."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from harness.candidates import load
from harness.candidates.published.known import Bug
from harness.case import Case
from harness.compare import unsupported
from harness.conformance.failures import blamed
from harness.conformance.pools import Pools
from harness.conformance.tally import Tally
from harness.generation.situations.needs import lacking
from harness.judge import evaluate_all
from harness.judge.known import listed, recognised

# Each costs a launch of ranks; after so many of a kind more would tell nothing new.
MOST_FAULTS = 16


def tallied(asked: Iterable[Case], name: str, pools: Pools) -> Tally:
    """Every case on as many ranks as it needs.

    A listed fault that was seen often enough is no longer asked for. One that nobody listed may be
    behind any case, so that they end what is asked of these ranks.
    """
    tally = Tally()
    by_ranks: dict[int, list[Case]] = {}
    for case in asked:
        by_ranks.setdefault(case.ranks, []).append(case)
    for ranks, batch in by_ranks.items():
        _on_ranks(ranks, batch, name, pools, tally)
    return tally


def _on_ranks(ranks: int, batch: Sequence[Case], name: str, pools: Pools, tally: Tally) -> None:
    known, news = Counter[Bug](), 0

    def worth_asking() -> Iterator[tuple[Case, str]]:
        for case in batch:
            often = (bug for bug, count in known.items() if count >= MOST_FAULTS)
            bug = next((bug for bug in often if not lacking(case, bug.when)), None)
            # What cannot be run says so itself.
            if bug is None or load(name).supports(case) is not None:
                yield case, name
            else:
                tally.add(unsupported(case, name, f"{bug.key}, listed: seen often enough"))

    for comparison in evaluate_all(worth_asking(), pools.of(ranks)):
        tally.add(blamed(recognised(comparison), pools))
        if comparison.fault is None:
            continue
        bug = listed(comparison)
        if bug is None:
            news += 1
        else:
            known[bug] += 1
        if news == MOST_FAULTS:
            return
