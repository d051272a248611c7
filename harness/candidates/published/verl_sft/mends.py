"""Ways to run without a listed bug."""

from contextlib import AbstractContextManager
from typing import Any
from unittest.mock import patch

from harness.candidates.published.library import Mend


def times_all_ranks() -> AbstractContextManager[Any]:
    """The loss over the count of all ranks is multiplied by their number."""
    from harness.candidates.published.verl_sft.trainer import Mesh

    def size(self: Mesh, _name: str) -> int:
        ranks = 1
        for group in self.groups.values():
            ranks *= group.size()
        return ranks

    return patch.object(Mesh, "size", size)


def predicted_tokens_marked() -> AbstractContextManager[Any]:
    """The data set marks the token that is predicted, as the trainer reads it."""
    from harness.candidates.published.verl_sft import candidate, trainer

    def batch(*given: Any, **_: Any) -> trainer.Batch:
        return trainer.Batch(*given, predicting=False)

    return patch.object(candidate, "Batch", batch)


MENDS: dict[str, Mend] = {
    "balanced-over-sp": times_all_ranks,
    "predicting-mask": predicted_tokens_marked,
}
