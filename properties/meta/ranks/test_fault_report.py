"""Which rank a fault blames at a deadline, and which if two end while they start."""

from types import SimpleNamespace
from typing import Any

import pytest

from harness.processes.process_exit import describe_exit
from harness.ranks.fault_report import (
    GRACE,
    LONGEST_GRACE,
    FaultReport,
    Incident,
    blame_awaited_rank,
)
from harness.trace import Kind
from harness.watch.collectives import Collective

ROOT = Incident(Kind.HUNG, "gave no answer within 4 s", is_late=True)
WAITING = [Collective("sp", 3, "all_reduce", "[3]", done=False)]
LEFT = [Collective("sp", 3, "all_reduce", "[3]", done=True)]


@pytest.mark.parametrize(
    ("missing", "logs", "rank", "text"),
    [
        ([0, 1], {0: WAITING}, 1, "gave no answer within 4 s, nor did rank 0"),
        ([0, 1], {0: WAITING, 1: LEFT}, 1, "gave no answer within 4 s, nor did rank 0"),
        ([2], {2: WAITING}, 2, "gave no answer within 4 s"),
        ([0, 1], {0: WAITING, 1: WAITING}, None, "ranks 0, 1 gave no answer within 4 s"),
        ([], {}, None, "all ranks answered in the end, but one gave no answer within 4 s"),
    ],
)
def test_the_rank_for_which_others_wait_is_named(
    missing: list[int], logs: dict[int, list[Collective]], rank: int | None, text: str
) -> None:
    incident = blame_awaited_rank(ROOT, missing, logs)
    assert incident.rank == rank
    assert incident.text == text


@pytest.mark.parametrize("first", [0, 1])
def test_of_two_ranks_that_died_while_starting_the_killed_one_is_the_cause(first: int) -> None:
    # Rank 0 exits because it lost rank 1, whose process may take longer to end.
    ended = {0: describe_exit(1), 1: describe_exit(-6)}
    launch: Any = SimpleNamespace(size=2, ended=ended, links={}, progress=lambda _: "")
    died = [Incident(Kind.START, "died while starting", rank) for rank in (first, 1 - first)]
    report = FaultReport(launch, died)
    report.gather(lambda _: [])
    assert report.root.rank == 1


def test_a_rank_that_exited_while_starting_is_blamed_only_if_no_killed_one_ends_soon() -> None:
    ended = {1: describe_exit(1)}
    launch: Any = SimpleNamespace(size=3, ended=ended, links={}, progress=lambda _: "")
    report = FaultReport(launch, [Incident(Kind.START, "died while starting", 1)])
    assert report._grace() == LONGEST_GRACE
    ended[0] = describe_exit(-4)
    assert report._grace() == GRACE
