"""Rows as a trainer of verl has them: prompts, and responses with what was computed of each token.

Legend: B rows, S columns, A columns of responses, K likeliest tokens.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch import distributed as dist
from torch.distributed.device_mesh import DeviceMesh

from harness.candidates.published.verl import released
from harness.candidates.published.verl.recipes import likeliest
from harness.candidates.published.wiring.rows import IGNORED
from harness.recipes.batch import Batch

# The names of columns in a batch of the trainer. What it has of a target has a column for each
# token of a response.
OF_TARGETS = {
    "advantages": "advantages",
    "old_logps": "old_log_probs",
    "reference_logps": "ref_log_prob",
    "old_values": "values",
    "returns": "returns",
}
# It has these of each token of a prompt and of a response.
OF_TOKENS = ("input_ids", "attention_mask", "teacher_logprobs", "teacher_ids")


def rollouts(batches: Sequence[Batch]) -> Any:
    """Return prompts, padded on the left, and responses, padded on the right.

    A response begins with a row's first target.
    """
    parts: dict[str, list[tuple[Tensor, Tensor]]] = {}
    for batch in batches:
        for b in batch["row"].argsort().tolist():
            row = of_row(batch, b)
            mask = row["response_mask"]
            start = int(mask.argmax()) or max(len(mask) - 1, 1)
            for key, values in row.items():
                parts.setdefault(key, []).append((values[:start], values[start:]))
    # A table has a column even if no row has a response.
    before, after = (max(*map(len, column), 1) for column in zip(*parts["input_ids"], strict=True))
    prompts = {key: [widened(x, before, left=True) for x, _ in parts[key]] for key in parts}
    answers = {key: [widened(x, after) for _, x in parts[key]] for key in parts}
    tables = {key: torch.stack(answers[key]) for key in parts if key not in OF_TOKENS}
    for key in parts.keys() & set(OF_TOKENS):
        tables[key] = torch.cat([torch.stack(prompts[key]), torch.stack(answers[key])], 1)
    tables["prompts"] = torch.stack(prompts["input_ids"])
    tables["responses"] = torch.stack(answers["input_ids"])
    tables["position_ids"] = (tables["attention_mask"].cumsum(1) - 1).clamp(min=0)
    made = released.DataProto.from_dict(tables)
    lengths = tables["attention_mask"].sum(1).tolist()
    made.meta_info.update(temperature=1.0, global_token_num=lengths)
    return made


def of_row(batch: Batch, b: int) -> dict[str, Tensor]:
    """Return what the trainer has of a row, without padding."""
    real_S = batch["attention_mask"][b].bool()
    is_target = (batch["labels"][b] != IGNORED)[real_S]
    row = {
        "input_ids": batch["input_ids"][b][real_S],
        "attention_mask": torch.ones_like(is_target).long(),
        "response_mask": is_target.long(),
    }
    for name, key in OF_TARGETS.items():
        if name in batch:
            values = batch[name][b]
            row[key] = values[real_S] if values.ndim else values.expand(len(is_target))
    if "teacher_logits" in batch:
        row["teacher_logprobs"], row["teacher_ids"] = likeliest(batch["teacher_logits"][b][real_S])
    return row


def widened(x: Tensor, width: int, *, left: bool = False) -> Tensor:
    """Return the values of a row with zeros before or after them."""
    filling = x.new_zeros(width - len(x), *x.shape[1:])
    return torch.cat([filling, x] if left else [x, filling])


def average(rows: Any, key: str, mesh: DeviceMesh) -> Tensor:
    """Return the mean over all targets of what was computed of each, times its advantage."""
    mask_BA = rows.batch["response_mask"]
    weight_BA = mask_BA if key == "entropys" else mask_BA * rows.batch["advantages"]
    sums = torch.stack([(rows.batch[key] * weight_BA).sum(), mask_BA.sum()])
    dist.all_reduce(sums, group=mesh["dp"].get_group())
    return sums[0] / sums[1]
