"""The mark of a failure: what it is recognised by when it is seen again."""

import msgspec

from harness.anomalies import RUN_DEPENDENT
from harness.compare import Comparison


class Mark(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The features by which a failure is recognised.

    On the very same case, the same failure has an equal mark. On another case, such as a smaller
    one, it may begin at another key and get another name, so only `same_kind` can be asked.
    """

    verdict: str
    # The first key or misfit, or the kind of fault; empty if nothing failed.
    where: str
    # The name that the tensors of this very case suggest.
    root: str

    def __str__(self) -> str:
        place = f"{' at' if self.verdict == 'DIVERGED' else ''} {self.where}" if self.where else ""
        return f"{self.verdict}{place}{f', seen as {self.root}' if self.root else ''}"

    def same_kind(self, other: "Mark") -> bool:
        """Return whether two cases may show one failure: faults must also be of one kind."""
        return self.verdict == other.verdict and (
            self.verdict != "FAULT" or self.where == other.where
        )


def mark_of(comparison: Comparison) -> Mark:
    """Return the mark of a comparison.

    Names that were seen on a larger case are left out. A name of how the failure comes and goes
    from run to run counts only if the tensors suggest no other.
    """
    where = ""
    if comparison.fault:
        where = str(comparison.fault.kind)
    elif comparison.measured.first:
        where = comparison.measured.first.key
    elif comparison.measured.misfits:
        where = f"{comparison.measured.misfits[0].key}, {comparison.measured.misfits[0].kind}"
    names = [look.name for look in comparison.inquiry.seen if not look.larger]
    of_tensors = [name for name in names if name not in RUN_DEPENDENT]
    return Mark(comparison.verdict.name, where, next(iter(of_tensors or names), ""))
