"""Which stack is shown of a rank that crashed."""

import pytest

from harness.rank_program.threads import crash_stack

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
def test_the_stack_of_a_crash_begins_with_the_main_thread_and_ends_with_the_crashed_one(
    first: str, last: str, innermost: str
) -> None:
    stack = crash_stack(CRASHED.format(first=first, last=last))
    assert stack.startswith('  File "step.py", line 9 in step\n')
    assert stack.endswith(innermost)
    assert crash_stack("") == ""
