"""What makes two failures the same one."""

import msgspec

from harness.anomalies import OF_RUNS
from harness.compare import Comparison


class Mark(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a failure is recognised by.

    Seen again on the very same case it has an equal mark. On another case, such as a smaller one,
    a mark may begin elsewhere and look like something else: there only the kind can be asked for.
    """

    verdict: str
    # The first key or misfit, or the kind of fault; empty where nothing failed.
    where: str
    # What the tensors of this very case look like.
    root: str

    def __str__(self) -> str:
        place = f"{' at' if self.verdict == 'DIVERGED' else ''} {self.where}" if self.where else ""
        return f"{self.verdict}{place}{f', seen as {self.root}' if self.root else ''}"

    def same_kind(self, other: "Mark") -> bool:
        """Whether the failures of two cases may be one."""
        return self.verdict == other.verdict and (
            self.verdict != "FAULT" or self.where == other.where
        )


def mark_of(comparison: Comparison) -> Mark:
    where = ""
    if comparison.fault:
        where = str(comparison.fault.kind)
    elif comparison.first:
        where = comparison.first.key
    elif comparison.misfits:
        where = f"{comparison.misfits[0].key}, {comparison.misfits[0].kind}"
    names = [look.name for look in comparison.seen if not look.larger]
    shown = [name for name in names if name not in OF_RUNS]
    return Mark(comparison.verdict.name, where, next(iter(shown or names), ""))
