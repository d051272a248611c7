"""The release without each of its listed bugs."""

from contextlib import AbstractContextManager
from typing import Any
from unittest.mock import patch

from harness.candidates.published.library import Mend


def times_all_ranks() -> AbstractContextManager[Any]:
    """While this lasts, a loss divided by the count of all ranks is multiplied by their number."""
    from harness.candidates.published.verl_sft.trainer import Mesh

    def size(self: Mesh, _name: str) -> int:
        ranks = 1
        for group in self.groups.values():
            ranks *= group.size()
        return ranks

    return patch.object(Mesh, "size", size)


def predicted_tokens_marked() -> AbstractContextManager[Any]:
    """While this lasts, the data set marks the predicted token, as the trainer expects."""
    from harness.candidates.published.verl_sft import candidate, trainer

    def batch(*args: Any, **_: Any) -> trainer.Batch:
        return trainer.Batch(*args, predicting=False)

    return patch.object(candidate, "Batch", batch)


MENDS: dict[str, Mend] = {
    "balanced-over-sp": times_all_ranks,
    "predicting-mask": predicted_tokens_marked,
}
