"""Who is said to be waited for, when time is up."""

import pytest

from harness.ranks.fault_report import Incident, told_by_crash, told_by_waiting
from harness.trace import Kind
from harness.watch.collectives import Collective

ROOT = Incident(Kind.HUNG, "gave no answer within 4 s", late=True)
WAITING = [Collective("sp", 3, "all_reduce", "[3]", done=False)]
LEFT = [Collective("sp", 3, "all_reduce", "[3]", done=True)]


@pytest.mark.parametrize(
    ("missing", "logs", "rank", "told"),
    [
        ([0, 1], {0: WAITING}, 1, "gave no answer within 4 s, nor did rank 0"),
        ([0, 1], {0: WAITING, 1: LEFT}, 1, "gave no answer within 4 s, nor did rank 0"),
        ([2], {2: WAITING}, 2, "gave no answer within 4 s"),
        ([0, 1], {0: WAITING, 1: WAITING}, None, "ranks 0, 1 gave no answer within 4 s"),
        ([], {}, None, "all ranks answered in the end, but one gave no answer within 4 s"),
    ],
)
def test_the_rank_that_others_wait_for_is_named(
    missing: list[int], logs: dict[int, list[Collective]], rank: int | None, told: str
) -> None:
    incident = told_by_waiting(ROOT, missing, logs)
    assert incident.rank == rank
    assert incident.text == told


CRASHED = """Fatal Python error: Segmentation fault

{first} 0x00007f98e6cfb6c0 (most recent call first):
  File "step.py", line 7 in backward
  File "torch.py", line 1 in run

{last} 0x00007f98e828ab80 (most recent call first):
  File "torch.py", line 2 in waits
  File "step.py", line 9 in step

Extension modules: numpy.core (total: 1)
"""


@pytest.mark.parametrize(
    ("first", "last", "innermost"),
    [("Current thread", "Thread", "in backward"), ("Thread", "Current thread", "in waits")],
)
def test_a_crash_is_told_by_the_main_thread_and_then_by_the_one_that_crashed(
    first: str, last: str, innermost: str
) -> None:
    stack = told_by_crash(CRASHED.format(first=first, last=last))
    assert stack.startswith('  File "step.py", line 9 in step\n')
    assert stack.endswith(innermost)
    assert told_by_crash("") == ""
