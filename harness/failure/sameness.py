"""What makes two failures the same one."""

from harness.compare import Comparison, Verdict
from harness.trace import Kind


def worth_shrinking(failure: Comparison) -> bool:
    """Whether the case has anything to do with it; ranks that cannot even start are no case's."""
    return failure.fault is None or failure.fault.kind not in (Kind.START, Kind.LAUNCHER)


def same_kind(one: Comparison, other: Comparison) -> bool:
    """Whether shrinking from one to the other still shows the same failure."""
    if one.verdict is not other.verdict:
        return False
    if one.verdict is Verdict.FAULT and one.fault and other.fault:
        return one.fault.kind is other.fault.kind
    return True
