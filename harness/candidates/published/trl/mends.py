"""The release without each of its listed bugs."""

from contextlib import AbstractContextManager
from typing import Any
from unittest.mock import patch

from torch import Tensor

from harness.candidates.published.library import Mend
from harness.candidates.published.transformers_trainer.mends import masked, smoothed_shifted


def smoothed() -> AbstractContextManager[Any]:
    """The smoother gets labels that were shifted before they were cut."""
    from trl import SFTTrainer

    return smoothed_shifted(SFTTrainer)


def counted() -> AbstractContextManager[Any]:
    """A count of targets that is a fraction divides as it is, where the release takes one."""
    from trl import SFTTrainer

    released: Any = SFTTrainer.compute_loss

    def compute(
        self: Any, model: Any, inputs: dict[str, Tensor], *, num_items_in_batch: Tensor
    ) -> Tensor:
        loss: Tensor = released(self, model, inputs, num_items_in_batch=num_items_in_batch)
        mended: Tensor = loss / num_items_in_batch.clamp(max=1)
        return mended

    return patch.object(SFTTrainer, "compute_loss", compute)


MENDS: dict[str, Mend] = {
    "padding-free-rows-attended": masked,
    "labels-smoothed-after-cut": smoothed,
    "few-targets-clamped": counted,
}
