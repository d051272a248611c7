"""Micro-batches as LLaMA-Factory's two batching strategies make them.

Legend: B rows, S longest row.
"""

from typing import Any

import torch
from torch import Tensor
from torch.utils.data import default_collate

from harness.candidates.published.llama_factory import library
from harness.candidates.published.wiring.rows import Padded

IGNORED = -100
# So large that the 1e-6 which the loss adds to the sum of all weights is nothing.
WEIGHT = 2.0**20
# A key of a batch that the library pads like its own: token numbers from one; padding is zero.
TOKENS = "tokens"


def batch_of(padded: Padded, *, packed: bool) -> dict[str, Tensor]:
    """The batch that the released collators make of samples, for one step."""
    samples = [
        sample(padded, row, attended.bool()) for row, attended in enumerate(padded.attended_BS)
    ]
    longest = padded.ids_BS.shape[1]
    batch: dict[str, Tensor] = (
        library.pack(samples, longest)
        if packed
        else default_collate(library.pad_and_truncate(samples, longest))
    )
    return batch


def sample(padded: Padded, row: int, real: Tensor) -> dict[str, Any]:
    """One row, as the renderer has it."""
    ids, targets = padded.ids_BS[row][real], padded.targets_BS[row][real]
    return {
        "input_ids": ids.tolist(),
        "attention_mask": [1] * len(ids),
        "labels": torch.where(targets, ids, IGNORED).tolist(),
        "loss_weights": (targets * WEIGHT).tolist(),
        "position_ids": list(range(1, len(ids) + 1)),
        TOKENS: (padded.tokens_BS[row][real] + 1).tolist(),
    }
