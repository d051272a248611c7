"""Rows of a case as skyrl collates them, with the number of each token beside them.

Legend: B rows, S columns, A columns of responses.
"""

from types import SimpleNamespace
from typing import Any

import torch
from torch.nn import functional as F

from harness.candidates.protocol import Rank
from harness.candidates.published.skyrl import library
from harness.candidates.published.wiring.rows import PADDING, padded, target_weights
from harness.case import Case

# A key beside those that a worker reads.
TOKENS = "tokens"
REDUCTIONS = {
    "token-mean": "token_mean",
    "micro-mean": "token_mean_legacy",
    "row-mean": "sequence_mean",
}


def rows_of_a_micro_batch(case: Case) -> int:
    """Return `micro_train_batch_size_per_gpu`."""
    return -(-len(case.rows) // (case.dp * case.micro_batches))


def supervised(case: Case, rank: Rank) -> Any:
    """Return this replica's part of all rows, collated as by skyrl's SFTTrainer."""
    examples = []
    for row in in_order(case):
        actions, mask = response(case, row)
        ids = list(case.ids_of(row))
        examples.append(
            {
                "input_ids": ids,
                "attention_mask": [1] * len(ids),
                "num_actions": actions,
                "loss_mask": mask,
            }
        )
    collate = library.DefaultCollator(tokenizer(case), rows_of_a_micro_batch(case))
    return of_replica(case, rank, collate(examples, batch_size=len(examples)))


def reinforced(case: Case, rank: Rank, reduction: str) -> Any:
    """Return this replica's part of all rows as in skyrl's RayPPOTrainer; advantages are one."""
    prompts, responses, masks = [], [], []
    for row in in_order(case):
        actions, mask = response(case, row)
        ids = list(case.ids_of(row))
        prompts.append(ids[: len(ids) - actions])
        responses.append(ids[len(ids) - actions :])
        masks.append(mask)
    ids_BS, attended_BS, of_response_BA, _, loss_mask_BA, *_ = (
        library.preprocess.convert_prompts_responses_to_batch_tensors(
            case.pad_id, prompts, responses, masks, masks
        )
    )
    batch = library.batches.TrainingInputBatch(
        {
            "sequences": ids_BS,
            "attention_mask": attended_BS,
            "response_mask": of_response_BA,
            "loss_mask": loss_mask_BA,
            "advantages": torch.ones_like(loss_mask_BA),
            "base_action_log_probs": torch.zeros_like(loss_mask_BA),
            "values": torch.zeros_like(loss_mask_BA),
            "returns": torch.zeros_like(loss_mask_BA),
        }
    )
    batch.metadata = {"response_length": of_response_BA.shape[1]}
    algorithm = SimpleNamespace(
        advantage_batch_normalize=False, loss_reduction=reduction, max_seq_len=None
    )
    config = SimpleNamespace(
        algorithm=algorithm, micro_train_batch_size_per_gpu=rows_of_a_micro_batch(case)
    )
    trainer = SimpleNamespace(cfg=SimpleNamespace(trainer=config))
    library.normalize_advantages(trainer, batch, [(0, len(case.rows))], prompt_boundaries(case))
    return of_replica(case, rank, batch)


def table(case: Case, rank: Rank) -> Any:
    """Return a user's own table, padded on any side, for `forward_backward`."""
    numbers = list(range(rank.dp_index, len(case.rows), case.dp))
    rows = padded(case, numbers, rank.device)
    parts = rows.targets_BS.tensor_split(case.micro_batches)
    weights_BS = torch.cat([target_weights(case, part_BS) for part_BS in parts]).float()
    batch = library.batches.TrainingInputBatch(
        {
            "sequences": rows.ids_BS,
            "attention_mask": rows.attended_BS,
            "loss_mask": weights_BS[:, 1:],
            TOKENS: rows.tokens_BS,
        }
    )
    batch.metadata = {"response_length": rows.ids_BS.shape[1] - 1}
    return batch


def tokenizer(case: Case) -> Any:
    return SimpleNamespace(pad_token_id=case.pad_id)


def in_order(case: Case) -> list[int]:
    """Return the numbers of rows in the order of their dispatch: replica by replica."""
    return [row for d in range(case.dp) for row in range(d, len(case.rows), case.dp)]


def response(case: Case, row: int) -> tuple[int, list[int]]:
    """Return the length of the response, which starts at the first target, and its mask."""
    supervised = case.rows[row].supervised()
    length = len(case.rows[row])
    start = min(supervised, default=min(1, length))
    return length - start, [int(bit) for bit in case.rows[row].mask[start:]]


def prompt_boundaries(case: Case) -> list[tuple[int, int]]:
    """Return which rows answer one prompt, for prompt_mean: one row, or those of a micro-batch."""
    size = rows_of_a_micro_batch(case) if case.loss == "micro-mean" else 1
    return [(start, start + size) for start in range(0, len(case.rows), size)]


def of_replica(case: Case, rank: Rank, batch: Any) -> Any:
    """Return this replica's chunk, as the driver dispatches it; rows are padded on the left."""
    width = batch["sequences"].shape[1]
    batch[TOKENS] = torch.stack(
        [
            F.pad(
                torch.arange(case.offsets[row], case.offsets[row + 1]),
                (width - len(case.rows[row]), 0),
                value=PADDING,
            )
            for row in in_order(case)
        ]
    )
    return batch.chunk(len(case.rows) // case.dp)[rank.dp_index]
