"""Micro-batches as LLaMA-Factory's two batching strategies make them."""

from typing import Any

from torch import Tensor
from torch.utils.data import default_collate

from harness.candidates.published.llama_factory import library
from harness.candidates.published.wiring.rows import Packed, Padded

# So large that the 1e-6 which the loss adds to the sum of all weights is nothing.
WEIGHT = 2.0**20
# A key of a batch that the library pads like its own: token numbers from one; padding is zero.
TOKENS = "tokens"


def batch_of(padded: Padded, *, packed: bool) -> dict[str, Tensor]:
    """Return the batch that the released collators make of samples, for one step."""
    samples = [sample(row) for row in padded.rows]
    longest = padded.ids_BS.shape[1]
    batch: dict[str, Tensor] = (
        library.pack(samples, longest)
        if packed
        else default_collate(library.pad_and_truncate(samples, longest))
    )
    return batch


def sample(row: Packed) -> dict[str, Any]:
    """Return one row as the renderer makes it."""
    return {
        "input_ids": row.ids_T.tolist(),
        "attention_mask": [1] * len(row.ids_T),
        "labels": row.labels.tolist(),
        "loss_weights": (row.targets_T * WEIGHT).tolist(),
        "position_ids": list(range(1, len(row.ids_T) + 1)),
        TOKENS: (row.tokens_T + 1).tolist(),
    }
