"""Rows as SkyRL's trainer has them: prompts, and responses with what was computed of each token.

Legend: B rows, S columns, A columns of responses, N tokens of a row.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch import distributed as dist
from torch.distributed.device_mesh import DeviceMesh

from harness.candidates.published.wiring.rows import IGNORED
from harness.recipes.batch import Batch

# What the trainer calls the columns of a recipe. It has them of each token of a response.
COLUMNS = {
    "advantages": "advantages",
    "old_logps": "action_log_probs",
    "reference_logps": "base_action_log_probs",
    "old_values": "values",
    "returns": "returns",
}


@dataclass(frozen=True, slots=True)
class Rollout:
    """A row without padding; its response begins with the first target."""

    ids_N: Tensor
    is_target_N: Tensor
    columns: dict[str, Tensor]

    @property
    def start(self) -> int:
        """The place of the response."""
        targets = self.is_target_N.nonzero()
        return int(targets[0]) if len(targets) else 1


def rollouts(batches: Sequence[Batch], mesh: DeviceMesh) -> list[Rollout]:
    """Return the rows of all replicas, replica by replica: the trainer has all of them."""
    mine = [rollout(batch, b) for batch in batches for b in batch["row"].argsort().tolist()]
    replicas = [mine for _ in range(mesh["dp"].size())]
    dist.all_gather_object(replicas, mine, group=mesh["dp"].get_group())
    return [each for rows in replicas for each in rows]


def rollout(batch: Batch, b: int) -> Rollout:
    real_S = batch["attention_mask"][b].bool()
    is_target_N = (batch["labels"][b] != IGNORED)[real_S]
    columns = {}
    for name in COLUMNS.keys() & batch.keys():
        values = batch[name][b]
        columns[name] = values[real_S] if values.ndim else values.expand(len(is_target_N))
    return Rollout(batch["input_ids"][b][real_S], is_target_N, columns)


def generated(rows: Sequence[Rollout]) -> dict[str, list[list[int]]]:
    """Return what a generator gives to the trainer; there are no rewards."""
    masks = [each.is_target_N[each.start :].long().tolist() for each in rows]
    return {
        "prompt_token_ids": [each.ids_N[: each.start].tolist() for each in rows],
        "response_ids": [each.ids_N[each.start :].tolist() for each in rows],
        "loss_masks": masks,
        "rewards": [[0] * len(mask) for mask in masks],
    }


def columns(rows: Sequence[Rollout], width: int) -> dict[str, Tensor]:
    """Return what was computed of responses, padded on the left as they are."""
    return {
        COLUMNS[name]: torch.stack(
            [widened(each.columns[name][each.start :], width) for each in rows]
        )
        for name in rows[0].columns
    }


def widened(values: Tensor, width: int) -> Tensor:
    return torch.cat([values.new_zeros(width - len(values)), values])
