"""A mutant that shows what every candidate must show, and nothing else.

`harness.candidates.own.required:B14` is the mutant B14 as somebody else's step would be seen.
"""

from torch import Tensor

from harness.candidates.own.mutants import BANK
from harness.candidates.protocol import Candidate, Emit, Rank
from harness.case import Case
from harness.trace import is_required


class OnlyRequired(Candidate):
    """Another candidate, of whose tensors the optional ones are kept back."""

    def __init__(self, key: str) -> None:
        self.name, self._mutant = f"{__name__}:{key}", BANK[key].candidate

    def supports(self, case: Case) -> str | None:
        return self._mutant.supports(case)

    def run(self, case: Case, rank: Rank, emit: Emit) -> None:
        def only_required(key: str, tensor: Tensor, tokens: Tensor | None = None) -> None:
            if is_required(key):
                emit(key, tensor, tokens)

        self._mutant.run(case, rank, only_required)


def __getattr__(key: str) -> OnlyRequired:
    if key not in BANK:
        raise AttributeError(f"no mutant {key}")
    return OnlyRequired(key)
