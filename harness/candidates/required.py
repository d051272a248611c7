"""A candidate that emits the required tensors of another candidate and nothing else.

`harness.candidates.required:mutants.B14` is the mutant B14, seen as a user's step is that emits
only what it must. The name after the colon may be any candidate of a bank or a library; one of a
library needs ranks in its environment.
"""

from torch import Tensor

from harness.candidates.protocol import Candidate, Emit, Rank
from harness.candidates.registry import UnknownCandidate, locate
from harness.case import Case
from harness.trace import is_required


class OnlyRequired(Candidate):
    """Another candidate without its optional tensors."""

    def __init__(self, whole: Candidate) -> None:
        self.name, self._whole = only_required(whole.name), whole
        self.limits = getattr(whole, "limits", "")

    def supports(self, case: Case) -> str | None:
        return self._whole.supports(case)

    def run(self, case: Case, rank: Rank, emit: Emit) -> None:
        def emit_required(key: str, tensor: Tensor, tokens: Tensor | None = None) -> None:
            if is_required(key):
                emit(key, tensor, tokens)

        self._whole.run(case, rank, emit_required)


def only_required(name: str) -> str:
    """Return the name under which a candidate runs without its optional tensors."""
    return f"{__name__}:{name}"


def __getattr__(name: str) -> OnlyRequired:
    try:
        return OnlyRequired(locate(name).load())
    except UnknownCandidate as error:
        raise AttributeError(str(error)) from error
