"""Open ranks that judge the lots of a campaign, in this process or in a worker elsewhere."""

import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from harness.campaign.request import Request
from harness.commands.options import Judging
from harness.commands.ranks import open_pool
from harness.engine.lot import WHOLE, Part
from harness.importing import without_a_search_for_garbage

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from harness.campaign.conduct import LotJob
    from harness.campaign.examine import Examiner
    from harness.campaign.summary import Summary


@contextmanager
def open_examiner(
    options: Judging,
    request: Request,
    ranks: int,
    part: Part,
    until: float,
    worker: Part = WHOLE,
) -> "Iterator[Examiner]":
    """Open ranks and yield the examiner of a part of a campaign.

    `worker` says which of several pools on this host this one is.
    """
    with without_a_search_for_garbage():
        from harness.campaign.case_source import require_cases
        from harness.campaign.examine import Examiner
        from harness.judge import Session

    with open_pool(options, ranks, request.candidates, worker) as pool:
        require_cases(request, pool)
        yield Examiner(
            request=request,
            session=Session(pool),
            until=until,
            part=part,
            diagnoses=options.diagnose,
        )


@contextmanager
def open_work(*asked: Any) -> "Iterator[Callable[[LotJob], dict[str, Any]]]":
    """Open ranks in a worker and yield a function that judges a share and returns its record."""
    with open_examiner(*asked) as examiner:
        yield lambda share: examiner.examine(*share, Silent()).record()


@contextmanager
def open_elsewhere(*asked: Any) -> "Iterator[Callable[[LotJob], dict[str, Any]]]":
    """Do what `open_work` does, on another host, where the clock is another one.

    The last argument is the seconds that are left, instead of the time at which they end.
    """
    *others, seconds = asked
    with open_work(*others, time.monotonic() + seconds) as work:
        yield work


def read_work(record: dict[str, Any]) -> "Summary":
    """Return the summary whose record the function of `open_work` returned."""
    from harness.campaign.summary import Summary

    return Summary.from_record(record, partial=True)


class Silent:
    """A progress display that shows nothing: moving lines of several workers would mix."""

    def tell(self, summary: "Summary", doing: str = "checking") -> None:
        pass

    def found(self, failure: object) -> None:
        pass
