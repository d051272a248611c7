"""Steps with ALST for transformers models: its attention, data loader adapter and loss recipes."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from types import SimpleNamespace
from typing import Any

import torch
from deepspeed.runtime.sequence_parallel.ulysses_sp import UlyssesSPAttentionHF
from torch import Tensor
from torch.distributed.nn import functional as collectives
from torch.nn import functional as F
from transformers.integrations.deepspeed import deepspeed_sp_compute_loss
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from harness import huggingface
from harness.candidates.protocol import Emit, Rank
from harness.candidates.published.deepspeed.batches import Shard, shards
from harness.candidates.published.deepspeed.parallel import parallel
from harness.candidates.published.flash_stand_in import flash
from harness.candidates.published.wiring import gradients
from harness.candidates.published.wiring.emitting import emit_losses
from harness.candidates.published.wiring.rows import IGNORED
from harness.case import Case


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """One rank's part of a micro-batch, with all that a loss function needs."""

    model: Any
    shard: Shard
    case: Case
    rank: Rank
    emit: Emit


# loss(micro-batch) -> the tensor on which backward is called.
Loss = Callable[[MicroBatch], Tensor]


def step(
    case: Case,
    rank: Rank,
    emit: Emit,
    *,
    loss: "str | tuple[Loss, bool]",
    core: str = "sdpa",
    packed: bool = False,
    change: Callable[[Any], None] | None = None,
) -> None:
    """Run every step of the case, with a loss of LOSSES by its name, or with another one."""
    compute, mean = LOSSES[loss] if isinstance(loss, str) else loss
    if core == "flash_attention_2":
        flash.install()
        flash.give_to_transformers()
    with parallel(case, rank):
        model = huggingface.build(case, rank.device)
        model.config._attn_implementation = core
        if change:
            change(model)
        parameters = huggingface.parameters(model, case)
        for step_emit in gradients.steps(case, parameters, emit):
            losses = [
                forward_backward(MicroBatch(model, shard, case, rank, step_emit), compute, core)
                for shard in shards(case, rank, packed=packed)
            ]
            gradients.reduce(parameters, rank.world)
            for parameter in parameters.values():
                if mean and parameter.grad is not None:
                    parameter.grad /= case.sp
        if core == "flash_attention_2":
            flash.must_have_run()
        logged = torch.stack(losses).sum()
        # With `mean` every rank has the loss of its replica, otherwise its own part of it.
        emit("loss", gradients.total(logged / case.sp if mean else logged, rank.world))
        gradients.emit_gradients(parameters, emit)


def forward_backward(batch: MicroBatch, loss: Loss, core: str) -> Tensor:
    """Run forward and backward of one micro-batch -> its loss."""
    with registered(batch.model, batch.case, core, len(batch.shard.input_ids)):
        with huggingface.watched(batch.model, batch.case, batch.emit, batch.shard.tokens):
            value = loss(batch)
        value.backward()
    return value.detach()


@contextmanager
def registered(model: Any, case: Case, core: str, rows: int) -> Iterator[None]:
    """While this lasts, ALST is registered for micro-batches of so many rows."""
    released = ALL_ATTENTION_FUNCTIONS[core]
    register = partial(
        UlyssesSPAttentionHF.register_with_transformers,
        model_name_or_path=model,
        core_attn_implementation=core,
        sequence_parallel_size=case.sp,
        micro_batch_size=rows,
    )
    try:
        register()
        yield
    finally:
        ALL_ATTENTION_FUNCTIONS[core] = released


def token_losses(logits: Tensor, shard: Shard, emit: Emit) -> Tensor:
    """Return and emit each token's loss, and emit its id and label."""
    labels, tokens = shard.shift_labels.flatten(), shard.tokens.flatten()
    nll = F.cross_entropy(logits.flatten(0, 1), labels, ignore_index=IGNORED, reduction="none")
    emit("ids", shard.input_ids.flatten(), tokens)
    emit_losses(emit, nll, labels, tokens)
    return nll


def local_sum(batch: MicroBatch) -> Tensor:
    """Sum this rank's tokens, each with its share of the batch's loss."""
    nll = token_losses(batch.model(**batch.shard.inputs).logits, batch.shard, batch.emit)
    return (nll * batch.shard.weights.flatten().to(nll.dtype)).sum()


def recipe(batch: MicroBatch) -> Tensor:
    """Compute the loss of the ALST tutorial, word for word but for names."""
    logits: Tensor = batch.model(**batch.shard.inputs).logits
    token_losses(logits, batch.shard, batch.emit)
    loss = tutorial_loss(batch.model, logits, batch.shard, batch.rank)
    return loss / (batch.case.dp * batch.case.micro_batches)


def tutorial_loss(model: Any, logits: Tensor, shard: Shard, rank: Rank) -> Tensor:
    """Compute the model's own loss, aggregated over a group's ranks as in the tutorial."""
    loss = model.loss_function(
        logits=logits,
        labels=None,
        shift_labels=shard.shift_labels,
        vocab_size=model.config.vocab_size,
    )
    return aggregated(loss, shard.shift_labels, rank)


def aggregated(loss: Tensor, shift_labels: Tensor, rank: Rank) -> Tensor:
    """Aggregate the means of a group's ranks as in the tutorial."""
    losses_per_rank = collectives.all_gather(loss, group=rank.sp)
    good_tokens = (shift_labels != IGNORED).view(-1).sum()
    good_tokens_per_rank = collectives.all_gather(good_tokens, group=rank.sp)
    total_loss = sum(
        losses_per_rank[index] * good_tokens_per_rank[index] for index in range(rank.sp.size())
    )
    total_good_tokens = sum(good_tokens_per_rank)
    mean: Tensor = total_loss / max(total_good_tokens, 1)
    return mean


def trainer(batch: MicroBatch) -> Tensor:
    """Compute the loss of transformers' Trainer, which also divides by the micro-batches."""
    # transformers asks DeepSpeed for the group, or at sp 1 an accelerator.
    mesh = {"sp": SimpleNamespace(get_group=lambda: batch.rank.sp)}
    accelerator = SimpleNamespace(torch_device_mesh=mesh)
    parallelism = SimpleNamespace(sp_backend="deepspeed", sp_size=batch.case.sp)
    inputs = {**batch.shard.inputs, "shift_labels": batch.shard.shift_labels}
    compute: Callable[..., tuple[Tensor, Any]] = deepspeed_sp_compute_loss
    loss, outputs = compute(accelerator, batch.model, inputs, True, parallelism)
    token_losses(outputs.logits, batch.shard, batch.emit)
    return loss / (batch.case.dp * batch.case.micro_batches)


# By name: a loss, and whether its gradients are averaged over sp instead of summed.
LOSSES: dict[str, tuple[Loss, bool]] = {
    "sum": (local_sum, False),
    "recipe": (recipe, True),
    "trainer": (trainer, True),
}
