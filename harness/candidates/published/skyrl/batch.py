"""Rows of a case as skyrl collates them, with the number of each token beside them.

Legend: B rows, S columns, A columns of responses.
"""

from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from harness.candidates.protocol import Rank
from harness.candidates.published.skyrl import library
from harness.candidates.published.wiring.rows import PADDING, padded
from harness.case import Case

# A key beside those that a worker reads.
TOKENS = "tokens"
REDUCTIONS = {
    "token-mean": "token_mean",
    "micro-mean": "token_mean_legacy",
    "row-mean": "sequence_mean",
}


def rows_of_a_micro_batch(case: Case) -> int:
    """micro_train_batch_size_per_gpu."""
    return -(-len(case.rows) // (case.dp * case.micro_batches))


def supervised(case: Case, rank: Rank) -> Any:
    """This replica's part of what the collator of skyrl's SFTTrainer makes of all rows."""
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
    """This replica's part of what skyrl's RayPPOTrainer makes of all rows; advantages are one."""
    prompts, responses, masks = [], [], []
    for row in in_order(case):
        actions, mask = response(case, row)
        ids = list(case.ids_of(row))
        prompts.append(ids[: len(ids) - actions])
        responses.append(ids[len(ids) - actions :])
        masks.append(mask)
    ids_BS, attended_BS, of_response_BA, _, loss_mask_BA, *_ = (
        library.preprocess.convert_prompts_responses_to_batch_tensors(
            tokenizer(case), prompts, responses, masks, masks
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
    """A user's own table, padded on any side, for `forward_backward` with cross_entropy."""
    mine = list(range(rank.dp_index, len(case.rows), case.dp))
    rows = padded(case, mine, rank.device)
    weights_BS = weights(case, rows.targets_BS)
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


def weights(case: Case, targets_BS: Tensor) -> Tensor:
    """How much each target counts in the sum that a worker takes."""
    counts_B = targets_BS.sum(1)
    if case.loss == "row-mean":
        share_B = 1 / (len(case.rows) * counts_B.clamp(min=1))
    elif case.loss == "micro-mean":
        parts = torch.tensor_split(counts_B, case.micro_batches)
        share_B = torch.cat(
            [
                1 / (case.dp * case.micro_batches * part.sum().clamp(min=1)).repeat(len(part))
                for part in parts
            ]
        )
    else:
        total = sum(len(row.supervised()) for row in case.rows)
        share_B = torch.full_like(counts_B, 1 / max(total, 1), dtype=torch.float32)
    return targets_BS * share_B[:, None]


def tokenizer(case: Case) -> Any:
    return SimpleNamespace(pad_token_id=case.pad_id)


def in_order(case: Case) -> list[int]:
    """The numbers of rows as they are dispatched: replica by replica."""
    return [row for d in range(case.dp) for row in range(d, len(case.rows), case.dp)]


def response(case: Case, row: int) -> tuple[int, list[int]]:
    """Tokens of the response, from the first target on, and their masks."""
    supervised = case.rows[row].supervised()
    length = len(case.rows[row])
    start = min(supervised, default=min(1, length))
    return length - start, [int(bit) for bit in case.rows[row].mask[start:]]


def prompt_boundaries(case: Case) -> list[tuple[int, int]]:
    """For prompt_mean: each row answers its own prompt, or rows of a micro-batch share one."""
    size = rows_of_a_micro_batch(case) if case.loss == "micro-mean" else 1
    return [(start, start + size) for start in range(0, len(case.rows), size)]


def of_replica(case: Case, rank: Rank, batch: Any) -> Any:
    """This replica's chunk, as the driver dispatches it; everything is padded on the left."""
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
