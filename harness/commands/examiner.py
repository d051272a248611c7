"""Ranks, ready to judge the lots of a campaign."""

import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from harness.campaign.request import Request
from harness.commands.options import Judged
from harness.commands.ranks import open_pool
from harness.engine.lot import WHOLE, Part
from harness.importing import without_a_search_for_garbage

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from harness.campaign.conduct import Share
    from harness.campaign.examine import Examiner
    from harness.campaign.summary import Summary


@contextmanager
def open_examiner(
    options: Judged,
    request: Request,
    ranks: int,
    part: Part,
    until: float,
    worker: Part = WHOLE,
) -> "Iterator[Examiner]":
    """For this part of a campaign, alone on this host or as one of several there."""
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
def open_work(*asked: Any) -> "Iterator[Callable[[Share], dict[str, Any]]]":
    """Judge lots in a process that shows nothing: it returns what a document has."""
    with open_examiner(*asked) as examiner:
        yield lambda share: examiner.examine(*share, Silent()).record()


@contextmanager
def open_elsewhere(*asked: Any) -> "Iterator[Callable[[Share], dict[str, Any]]]":
    """Judge lots on a host with another clock: it is given the seconds that are left."""
    *others, seconds = asked
    with open_work(*others, time.monotonic() + seconds) as work:
        yield work


def read_work(record: dict[str, Any]) -> "Summary":
    """And back."""
    from harness.campaign.summary import Summary

    return Summary.from_record(record, partial=True)


class Silent:
    """Shows nothing: several lines that move could not be read."""

    def tell(self, summary: "Summary", doing: str = "checking") -> None:
        pass

    def found(self, failure: object) -> None:
        pass
