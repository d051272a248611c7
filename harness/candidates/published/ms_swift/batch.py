"""Micro-batches as ms-swift's template collates them.

Legend: B rows, S longest row.
"""

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from harness.candidates.published.wiring.rows import PADDING, Padded, all_targets
from harness.case import Case


@dataclass(frozen=True, slots=True)
class Batch:
    """Rows padded on the right, or all in one row without padding."""

    ids_BS: Tensor
    positions_BS: Tensor
    # Not shifted: the loss shifts them.
    labels_BS: Tensor
    tokens_BS: Tensor
    # The mask of rows that are padded.
    attended_BS: Tensor | None
    # How much each target counts, for `--loss_scale`.
    weights_BS: Tensor | None = None

    @classmethod
    def of(cls, case: Case, padded: Padded, *, packed: bool, weighted: bool) -> "Batch":
        weights_BS = weights(case, padded) if weighted else None
        if not packed:
            return cls(
                padded.ids_BS,
                padded.positions_BS,
                padded.labels,
                padded.tokens_BS,
                padded.attended_BS,
                weights_BS,
            )
        rows = padded.packed
        return cls(
            rows.ids_T[None],
            rows.positions_T[None],
            rows.labels[None],
            rows.tokens_T[None],
            None,
            None if weights_BS is None else weights_BS[padded.attended_BS.bool()][None],
        )

    def inputs(self) -> dict[str, Any]:
        """Return copies for a trainer, which removes some and changes others."""
        inputs = {
            "input_ids": self.ids_BS,
            "labels": self.labels_BS,
            "position_ids": self.positions_BS,
            "attention_mask": self.attended_BS,
            "loss_scale": self.weights_BS,
        }
        return {name: value.clone() for name, value in inputs.items() if value is not None}

    def own_tokens(self, sequence_parallel: Any) -> Tensor:
        """Return this rank's token numbers, through the library's own padding and sharding."""
        positions_BS, pad = self.positions_BS, sequence_parallel.pad
        tokens_BL: Tensor = sequence_parallel.split(
            pad(self.tokens_BS, padding_value=PADDING, position_ids=positions_BS),
            dim=1,
            position_ids=pad(positions_BS, padding_value=-1, position_ids=positions_BS),
        )
        return tokens_BL


def weights(case: Case, padded: Padded) -> Tensor:
    """Return one for each target, or weights with which every row counts the same."""
    targets_BS = padded.targets_BS.float()
    if case.loss != "row-mean":
        return targets_BS
    mean = all_targets(case) / len(case.rows)
    return targets_BS * mean / targets_BS.sum(1, keepdim=True).clamp(min=1)
