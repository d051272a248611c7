"""Rows as AReaL's trainer has them: a dict for each trajectory, which is not yet padded.

Legend: B rows, S columns, N tokens of a row.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch import distributed as dist
from torch.distributed.device_mesh import DeviceMesh

from harness.candidates.published.wiring.rows import IGNORED
from harness.recipes.batch import Batch

# It also has numbers that are the same in all.
Trajectory = dict[str, Any]


def trajectories(batches: Sequence[Batch]) -> list[Trajectory]:
    """Return the rows of a replica as a workflow yields them.

    Columns of a recipe keep their names and places beside what a workflow knows.
    """
    return [trajectory(batch, b) for batch in batches for b in batch["row"].argsort().tolist()]


def trajectory(batch: Batch, b: int) -> Trajectory:
    real_S = batch["attention_mask"][b].bool()
    is_target_N = (batch["labels"][b] != IGNORED)[real_S]
    row = {
        "input_ids": batch["input_ids"][b][real_S],
        "attention_mask": torch.ones_like(is_target_N),
        "loss_mask": is_target_N.int(),
        # The version of the policy that made a token; others have none.
        "versions": is_target_N.int() - 1,
    }
    for name in batch.keys() - {*row, "position_ids", "labels", "row", "replica", "micro_batch"}:
        values = batch[name][b]
        row[name] = values[real_S] if values.ndim else values
    return {name: values[None] for name, values in row.items()}


def before(values_1N: Tensor) -> Tensor:
    """Return what belongs to each target in the place of the token before it."""
    return values_1N.roll(-1, 1)


def average(rows: Sequence[Trajectory], name: str, mesh: DeviceMesh) -> Tensor:
    """Return the mean over all targets of what was computed of each, times its advantage."""
    terms = [
        torch.stack([(row[name] * row["advantages"] * mask).sum(), mask.sum().to(row[name])])
        for row in rows
        for mask in [row["loss_mask"]]
    ]
    sums = torch.stack(terms).sum(0)
    dist.all_reduce(sums, group=mesh["dp"].get_group())
    return sums[0] / sums[1]
