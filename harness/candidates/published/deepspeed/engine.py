"""Steps of the tutorial's training loop through `deepspeed.initialize`, at a stage of ZeRO."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import deepspeed
import torch
from deepspeed.utils import safe_get_full_grad
from torch import Tensor

from harness import huggingface
from harness.candidates.protocol import Emit, Rank
from harness.candidates.published.deepspeed import alst
from harness.candidates.published.deepspeed.batches import shards
from harness.candidates.published.deepspeed.parallel import parallel
from harness.candidates.published.wiring import gradients
from harness.case import LEARNING_RATE, Case


def step(
    case: Case,
    rank: Rank,
    emit: Emit,
    *,
    stage: int,
    scatter: bool,
    change: Callable[[Any], None] | None = None,
) -> None:
    """Run all steps of the case; `safe_get_full_grad` gives gradients before the last update."""
    with parallel(case, rank) as mpu:
        model = huggingface.build(case, rank.device)
        if change:
            change(model)
        with initialized(model, case, mpu, stage=stage, scatter=scatter) as engine:
            parameters = huggingface.parameters(engine.module, case)
            for number in range(case.steps):
                is_last = number == case.steps - 1
                step_emit = emit if is_last else gradients.silent
                losses = micro_steps(engine, case, rank, step_emit, is_last=is_last)
                logged = torch.stack(list(losses)).sum()
            emit("loss", gradients.total(logged, rank.world) / case.sp)
            for name, parameter in parameters.items():
                gradient = safe_get_full_grad(parameter)
                assert gradient is not None, name
                emit(f"grad.{name}", gradient)


def micro_steps(
    engine: Any, case: Case, rank: Rank, emit: Emit, *, is_last: bool
) -> Iterator[Tensor]:
    """Run forward, backward and the engine's step, but no step after the case's last backward."""
    batches = list(shards(case, rank))
    for number, shard in enumerate(batches):
        with alst.registered(engine.module, case, "sdpa", len(shard.input_ids)):
            with huggingface.watched(engine.module, case, emit, shard.tokens):
                logits = engine(**shard.inputs).logits
            alst.token_losses(logits, shard, emit)
            loss = alst.tutorial_loss(engine.module, logits, shard, rank)
            # The engine divides by the number of micro-batches.
            engine.backward(loss)
        if not (is_last and number == len(batches) - 1):
            engine.step()
        yield loss.detach() / (case.dp * case.micro_batches)


@contextmanager
def initialized(model: Any, case: Case, mpu: Any, *, stage: int, scatter: bool) -> Iterator[Any]:
    """Yield the engine around a model; destroy it at the end."""
    config = {
        "train_micro_batch_size_per_gpu": 1,
        "gradient_accumulation_steps": case.micro_batches,
        "zero_optimization": {
            "stage": stage,
            "reduce_scatter": scatter,
            # By default communication overlaps on streams, which a CPU lacks.
            "overlap_comm": False,
        },
        # By default the engine clips at a norm of 1.
        "gradient_clipping": 0.0,
        # ZeRO accepts plain SGD only with these two.
        "zero_allow_untested_optimizer": True,
        "zero_force_ds_cpu_optimizer": False,
    }
    optimizer = torch.optim.SGD(model.parameters(), lr=LEARNING_RATE)
    engine, *_ = deepspeed.initialize(
        model=model, optimizer=optimizer, config=config, mpu=mpu, dist_init_required=False
    )
    try:
        yield engine
    finally:
        engine.destroy()
