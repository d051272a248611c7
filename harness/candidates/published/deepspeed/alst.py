"""ALST for transformers models: its attention, its data loader adapter, and the loss recipes."""

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
from harness.candidates.published.deepspeed.batches import IGNORED, Shard, shards
from harness.candidates.published.deepspeed.parallel import parallel
from harness.candidates.published.flash_stand_in import flash
from harness.candidates.published.wiring import gradients
from harness.case import Case


@dataclass(frozen=True, slots=True)
class At:
    """Where a rank is: at one micro-batch of a case."""

    model: Any
    shard: Shard
    case: Case
    rank: Rank
    emit: Emit


# loss(at) -> the tensor on which backward is called for a micro-batch.
Loss = Callable[[At], Tensor]


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
    """Every step of the case, with a loss of LOSSES by its name, or any other."""
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
        for say in gradients.steps(case, parameters, emit):
            losses = [
                one(model, shard, case, rank, say, compute, core)
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


def one(
    model: Any, shard: Shard, case: Case, rank: Rank, emit: Emit, loss: Loss, core: str
) -> Tensor:
    """Forward and backward of one micro-batch."""
    with registered(model, case, core, len(shard.input_ids)):
        with huggingface.watched(model, case, emit, shard.tokens):
            value = loss(At(model, shard, case, rank, emit))
        value.backward()
    return value.detach()


@contextmanager
def registered(model: Any, case: Case, core: str, rows: int) -> Iterator[None]:
    """`register_with_transformers` for a micro-batch of so many rows, undone at the end."""
    before = ALL_ATTENTION_FUNCTIONS[core]
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
        ALL_ATTENTION_FUNCTIONS[core] = before


def told(at: At) -> Tensor:
    """The logits; each token's loss is emitted."""
    logits: Tensor = at.model(**at.shard.inputs).logits
    tell(logits, at.shard, at.emit)
    return logits


def tell(logits: Tensor, shard: Shard, emit: Emit) -> Tensor:
    """Each token's loss, which is emitted as well."""
    labels = shard.shift_labels
    nll = F.cross_entropy(
        logits.flatten(0, 1), labels.flatten(), ignore_index=IGNORED, reduction="none"
    )
    tokens = shard.tokens.flatten()
    emit("ids", shard.input_ids.flatten(), tokens)
    emit("labels", labels.flatten(), tokens)
    emit("nll", nll, tokens)
    return nll


def local_sum(at: At) -> Tensor:
    """This rank's tokens, each with its share of the batch's loss."""
    nll = tell(at.model(**at.shard.inputs).logits, at.shard, at.emit)
    return (nll * at.shard.weights.flatten().to(nll.dtype)).sum()


def recipe(at: At) -> Tensor:
    """The loss of the ALST tutorial, word for word but for names."""
    loss = at.model.loss_function(
        logits=told(at),
        labels=None,
        shift_labels=at.shard.shift_labels,
        vocab_size=at.model.config.vocab_size,
    )
    return weighted(loss, at.shard.shift_labels, at.rank) / (at.case.dp * at.case.micro_batches)


def weighted(loss: Tensor, shift_labels: Tensor, rank: Rank) -> Tensor:
    """The tutorial's aggregation of the means of a group's ranks."""
    losses_per_rank = collectives.all_gather(loss, group=rank.sp)
    good_tokens = (shift_labels != IGNORED).view(-1).sum()
    good_tokens_per_rank = collectives.all_gather(good_tokens, group=rank.sp)
    total_loss = sum(
        losses_per_rank[index] * good_tokens_per_rank[index] for index in range(rank.sp.size())
    )
    total_good_tokens = sum(good_tokens_per_rank)
    found: Tensor = total_loss / max(total_good_tokens, 1)
    return found


def trainer(at: At) -> Tensor:
    """The loss of transformers' Trainer, which also divides by the micro-batches."""
    # transformers asks DeepSpeed for the group, or at sp 1 an accelerator.
    mesh = {"sp": SimpleNamespace(get_group=lambda: at.rank.sp)}
    accelerator = SimpleNamespace(torch_device_mesh=mesh)
    parallelism = SimpleNamespace(sp_backend="deepspeed", sp_size=at.case.sp)
    inputs = {**at.shard.inputs, "shift_labels": at.shard.shift_labels}
    compute: Callable[..., tuple[Tensor, Any]] = deepspeed_sp_compute_loss
    found, outputs = compute(accelerator, at.model, inputs, True, parallelism)
    tell(outputs.logits, at.shard, at.emit)
    return found / (at.case.dp * at.case.micro_batches)


# By name: how a loss is computed, and whether gradients are averaged over sp, not summed.
LOSSES: dict[str, tuple[Loss, bool]] = {
    "sum": (local_sum, False),
    "recipe": (recipe, True),
    "trainer": (trainer, True),
}
