"""Steps of trl's trainers of pairs, which their recipes judge.

Legend: B rows, S columns.
"""

from collections.abc import Mapping
from copy import deepcopy
from typing import Any

import torch
from datasets import Dataset
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from trl import DPOConfig, DPOTrainer, RewardConfig, RewardTrainer
from trl.trainer.utils import pad

from harness.candidates.published.trl.batches import tokenizer
from harness.candidates.published.trl.recipes import BETA, CENTRE
from harness.candidates.published.wiring import trainer
from harness.candidates.published.wiring.rows import IGNORED
from harness.recipes.batch import Batch


def reward(model: Any, batch: Batch, mesh: DeviceMesh) -> Tensor:
    """Take the step of `RewardTrainer`."""
    ids = rows_of(batch, batch["input_ids"])
    pairs = [
        {"chosen_ids": chosen.tolist(), "rejected_ids": rejected.tolist()}
        for chosen, rejected in zip(ids[0::2], ids[1::2], strict=True)
    ]
    with trainer.several_ranks(mesh.size()):
        config = RewardConfig(**common(mesh, pairs), center_rewards_coefficient=CENTRE)
        made = prepared(RewardTrainer, model, config, mesh, pairs)
    return step(made, model)


def dpo(model: Any, batch: Batch, mesh: DeviceMesh) -> Tensor:
    """Take the step of `DPOTrainer`, with the log-probabilities of the reference as data."""
    names = ("input_ids", "labels", "reference_logps")
    rows = zip(*(rows_of(batch, batch[name]) for name in names), strict=True)
    examples = [
        {"ids": ids.tolist(), "is_target": (labels != IGNORED).tolist(), "logps": logps.item()}
        for ids, labels, logps in rows
    ]
    pairs = [
        {"chosen": chosen, "rejected": rejected}
        for chosen, rejected in zip(examples[0::2], examples[1::2], strict=True)
    ]
    with trainer.several_ranks(mesh.size()):
        config = DPOConfig(**common(mesh, pairs), beta=BETA, precompute_ref_log_probs=True)
        # Over FSDP it would load a reference by its name, also if nothing asks that any more.
        options = {"ref_model": deepcopy(model), "data_collator": collating(config)}
        made = prepared(DPOTrainer, model, config, mesh, pairs, **options)
    return step(made, model)


def collating(config: Any) -> Any:
    """Return a collator of prepared pairs, which pads as the released one does.

    The released one takes prompts only as the beginnings of rows, and the same for both of a pair.
    """

    def collate(pairs: list[Mapping[str, Any]]) -> Batch:
        rows = [pair[side] for side in ("chosen", "rejected") for pair in pairs]

        def table(values: list[Tensor]) -> Tensor:
            multiple = config.pad_to_multiple_of
            padded: Tensor = pad(values, 0, padding_side="right", pad_to_multiple_of=multiple)
            return padded

        chosen, rejected = torch.tensor([row["logps"] for row in rows]).chunk(2)
        return {
            "input_ids": table([torch.tensor(row["ids"]) for row in rows]),
            "attention_mask": table([torch.ones(len(row["ids"])).long() for row in rows]),
            "completion_mask": table([torch.tensor(row["is_target"]).long() for row in rows]),
            "ref_chosen_logps": chosen,
            "ref_rejected_logps": rejected,
        }

    return collate


def rows_of(batch: Batch, values: Tensor) -> list[Tensor]:
    """Return the values of each row without padding, in the order of the rows."""
    places = batch["row"].argsort().tolist()
    if values.ndim == 1:
        return [values[place] for place in places]
    return [values[place][batch["attention_mask"][place].bool()] for place in places]


def common(mesh: DeviceMesh, pairs: list[Any]) -> dict[str, Any]:
    """Return the arguments that both trainers have."""
    dp, sp = mesh.shape
    return trainer.one_step(dp, sp) | {
        "per_device_train_batch_size": len(pairs),
        "max_length": None,
        "pad_to_multiple_of": 2 * sp if sp > 1 else None,
        "gradient_checkpointing": False,
        "bf16": False,
    }


def prepared(
    released: type[Any],
    model: Any,
    config: Any,
    mesh: DeviceMesh,
    pairs: list[Any],
    **options: Any,
) -> Any:
    """Return a released trainer whose data are prepared already."""
    # Context parallelism takes no other attention.
    model.set_attn_implementation("sdpa")
    # Each replica takes as many pairs out of the set, one replica after the other.
    data = Dataset.from_list(pairs * mesh.shape[0])
    words = tokenizer(model.config.vocab_size, model.config.pad_token_id or 0)
    mixed = type(released.__name__, (Prepared, released), {})
    return mixed(model, args=config, train_dataset=data, processing_class=words, **options)


def step(made: Any, model: nn.Module) -> Tensor:
    """Run one step of a trainer -> the loss that it logs; gradients stay in the model."""
    gradients: dict[str, Tensor | None] = {}
    made.add_callback(trainer.before_optimizer(lambda: gradients.update(left_in(made.model))))
    made.train()
    for name, parameter in model.named_parameters():
        parameter.grad = gradients[name]
    return torch.tensor(made.logged)


def left_in(model: nn.Module) -> dict[str, Tensor | None]:
    return {name: parameter.grad for name, parameter in model.named_parameters()}


class Prepared:
    """A mixin before a released trainer: its data are prepared, and it keeps the logged loss."""

    logged: float

    def _prepare_dataset(self, dataset: Any, *_: Any) -> Any:
        return dataset

    def _precompute_ref_logps(self, dataset: Any, *_: Any) -> Any:
        return dataset

    def log(self: Any, logs: dict[str, float], *args: Any, **kwargs: Any) -> None:
        if "loss" in logs:
            self.logged = logs["loss"]
        super().log(logs, *args, **kwargs)  # type: ignore[misc]
