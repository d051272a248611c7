"""Steps of OpenRLHF's trainers with a `fit` that recipes judge: of texts and of pairs."""

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.nn import functional as F

from harness.candidates.published.openrlhf import library
from harness.candidates.published.openrlhf.judged import MASK, SCHEDULER, Stepping
from harness.candidates.published.openrlhf.recipes import REFERENCE
from harness.candidates.published.openrlhf.strategy import actor_of
from harness.candidates.published.wiring.rows import IGNORED
from harness.candidates.published.wiring.scaled import scaled
from harness.recipes.batch import Batch

# By the names of a recipe, what is logged.
LOGGED = {
    "chosen": "chosen_reward",
    "rejected": "reject_reward",
    "nll": "nll_loss",
    "balance": "aux_loss",
}


def supervised(
    model: Any,
    batches: Sequence[Batch],
    mesh: DeviceMesh,
    *,
    aux_loss_coef: float,
    **training: bool,
) -> Any:
    """Take the step of `SFTTrainer.fit`, whose mask is on the token that predicts."""
    stepping = Stepping(model, batches, mesh, **training)
    texts = [
        (
            batch["input_ids"],
            batch[MASK],
            F.pad(batch["labels"][:, 1:] != IGNORED, (0, 1)).float(),
        )
        for batch in batches
    ]
    with stepping.taking(model, **of_fit(aux_loss_coef=aux_loss_coef)) as (engine, strategy):
        actor = actor_of(engine, packed=stepping.packed)
        trainer = library.SFTTrainer(actor, **named(strategy))
        log = fit(trainer, texts)
    return engine.loss, log


def reward(
    model: Any,
    batches: Sequence[Batch],
    mesh: DeviceMesh,
    *,
    loss_type: str,
    margin_loss_enable: bool,
    compute_fp32_loss_enable: bool,
    **training: bool,
) -> Any:
    """Take the step of `RewardModelTrainer.fit`."""
    stepping = Stepping(model, batches, mesh, **training)
    released = library.regression("reward", model, packed=stepping.packed)
    args = of_fit(
        margin_loss_enable=margin_loss_enable, compute_fp32_loss_enable=compute_fp32_loss_enable
    )
    with stepping.taking(released, **args) as (engine, strategy):
        trainer = library.RewardModelTrainer(engine, loss=loss_type, **named(strategy))
        log = fit(trainer, [(*in_order(batch), margins(batch)) for batch in batches])
    return engine.loss, log


def dpo(
    model: Any,
    batches: Sequence[Batch],
    mesh: DeviceMesh,
    *,
    beta: float,
    packing_samples: bool,
    gradient_checkpointing: bool,
    **of_model: Any,
) -> Any:
    """Take the step of `DPOTrainer.fit`, which runs the reference, too."""
    # A copy of a model that is checkpointed has the hooks of the first.
    reference = actor_of(scaled(model, REFERENCE), packed=packing_samples)
    stepping = Stepping(
        *(model, batches, mesh),
        packing_samples=packing_samples,
        gradient_checkpointing=gradient_checkpointing,
    )
    reference.model.set_attn_implementation(model.config._attn_implementation)
    with stepping.taking(model, **of_fit(**of_model)) as (engine, strategy):
        actor = actor_of(engine, packed=packing_samples)
        trainer = library.DPOTrainer(actor, ref_model=reference, beta=beta, **named(strategy))
        log = fit(trainer, [(*in_order(batch), prompts(batch)) for batch in batches])
    return engine.loss, log


def fit(trainer: Any, batches: list[tuple[Any, ...]]) -> dict[str, float]:
    """Take one step with a released `fit` -> what it logs, averaged over micro-batches."""
    logs: list[dict[str, float]] = []
    trainer.strategy.all_reduce = keeping(trainer.strategy.all_reduce, logs)
    trainer.save_logs_and_checkpoints = lambda *_: None
    trainer.train_dataloader = Loader(batches)
    trainer.fit(trainer.args)
    return {
        name: sum(log[key] for log in logs) / len(logs)
        for name, key in LOGGED.items()
        if key in logs[0]
    }


def keeping(all_reduce: Callable[..., Any], logs: list[Any]) -> Callable[..., Any]:
    """Return a reduction that keeps each log; it calls itself for each value of a log."""

    def reduce_and_keep(values: Any, op: str = "mean") -> Any:
        result = all_reduce(values, op)
        if isinstance(values, dict):
            logs.append(result)
        return result

    return reduce_and_keep


class Loader(list[Any]):
    """Micro-batches as a data loader without a sampler has them."""

    sampler = None


def sides(batch: Batch) -> list[Tensor]:
    """Return the places of the preferred rows and of the others."""
    order = batch["row"].argsort()
    return [order[side::2] for side in (0, 1)]


def in_order(batch: Batch) -> list[Tensor]:
    """Return ids and mask of the preferred rows, then those of the others."""
    return [batch[name][side] for side in sides(batch) for name in ("input_ids", MASK)]


def margins(batch: Batch) -> list[float]:
    """Return the margin of each pair, as the trainer's dataset has it."""
    listed: list[float] = batch["margins"][sides(batch)[0]].tolist()
    return listed


def prompts(batch: Batch) -> list[int]:
    """Return the length of each prompt.

    The trainer takes one length for both rows of a pair, and masks so many columns of a table.
    """
    is_target_BS = (batch["labels"] != IGNORED).int()
    lengths: list[int] = is_target_BS[sides(batch)[0]].argmax(1).tolist()
    return lengths


def named(strategy: Any) -> dict[str, Any]:
    """Return what both trainers are made with."""
    return {
        "strategy": strategy,
        "scheduler": SCHEDULER,
        # What a table is padded with is masked.
        "tokenizer": SimpleNamespace(pad_token_id=0),
        "max_epochs": 1,
        **dict.fromkeys(("optim", "train_dataloader", "eval_dataloader")),
    }


def of_fit(**of_model: Any) -> dict[str, Any]:
    """Return the arguments of `train_rm` and `train_dpo`."""
    return {
        "ckpt": SimpleNamespace(save_steps=-1),
        "eval": SimpleNamespace(steps=-1),
        "logger": SimpleNamespace(
            logging_steps=1, tensorboard_dir=None, wandb=SimpleNamespace(key=None)
        ),
        "model": SimpleNamespace(**{"aux_loss_coef": 0.0, **of_model}),
        # It has only to be as many as there are micro-batches, or more.
        "train": SimpleNamespace(batch_size=4),
    }
