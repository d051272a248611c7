"""What `golden verify` says of a verification."""

import io

import pytest
from rich.console import Console

from harness.case import parse
from harness.compare import Comparison, unsupported
from harness.golden.table import show_verified
from harness.golden.verify import Verified
from harness.verdict import Verdict

CASE = parse("case/1 rows=3:111 sp=2")


@pytest.mark.parametrize(
    ("runs", "said"),
    [
        ([unsupported(CASE, "mine", "not on a Wednesday")] * 2, "every run was refused"),
        ([], "no golden fits so many ranks"),
    ],
)
def test_a_verification_of_nothing_is_a_fault_and_says_why(
    runs: list[Comparison], said: str
) -> None:
    verified, output = Verified(goldens=1), io.StringIO()
    for run in runs:
        verified.add("one", run)
    show_verified(verified, {}, Console(file=output, width=200))
    assert f"FAULT: {said}" in output.getvalue()
    assert verified.verdict is Verdict.FAULT
    assert any(said in what for what in verified.record()["unexamined"])


def test_where_something_was_examined_nothing_is_said_of_it() -> None:
    verified = Verified(goldens=1)
    verified.add("one", Comparison(case=CASE, candidate="mine", verdict=Verdict.EQUAL))
    verified.add("two", unsupported(CASE, "mine", "not on a Wednesday"))
    assert verified.unexamined == []
