"""The release without each of its listed bugs."""

from contextlib import AbstractContextManager
from typing import Any
from unittest.mock import patch

from torch import Tensor

from harness.candidates.published.library import Mend
from harness.candidates.published.transformers_trainer.mends import masked, smoothed_shifted


def smoothed() -> AbstractContextManager[Any]:
    """While this lasts, the smoother gets labels that were shifted before the cut."""
    from trl import SFTTrainer

    return smoothed_shifted(SFTTrainer)


def counted() -> AbstractContextManager[Any]:
    """While this lasts, the loss is divided by a count of targets below one, not by one."""
    from trl import SFTTrainer

    released: Any = SFTTrainer.compute_loss

    def compute(
        self: Any, model: Any, inputs: dict[str, Tensor], *, num_items_in_batch: Tensor
    ) -> Tensor:
        loss: Tensor = released(self, model, inputs, num_items_in_batch=num_items_in_batch)
        return loss / num_items_in_batch.clamp(max=1)

    return patch.object(SFTTrainer, "compute_loss", compute)


MENDS: dict[str, Mend] = {
    "padding-free-rows-attended": masked,
    "labels-smoothed-after-cut": smoothed,
    "few-targets-clamped": counted,
}
