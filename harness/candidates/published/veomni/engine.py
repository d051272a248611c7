"""veomni's `BaseTrainer` around a model that is there."""

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

from torch.distributed.device_mesh import DeviceMesh

from harness.candidates.published.veomni import library
from harness.candidates.published.veomni.settings import LONGEST
from harness.candidates.published.wiring.stand_ins import Idle

NO_CLIPPING = 1e30
# Kernels for GPUs stay out.
OPS = {
    f"{name}_implementation": "eager"
    for name in (
        *("moe", "rms_norm", "swiglu_mlp", "rotary_pos_emb"),
        *("load_balancing_loss", "rms_norm_gated", "causal_conv1d", "chunk_gated_delta_rule"),
    )
}


class Meter:
    """What measures tokens and times for a log."""

    def __init__(self, **_: Any) -> None:
        """Take what the other takes."""

    def add(self, _micro_batch: Any) -> None:
        """Count nothing."""

    def step(self, *_: Any, **__: Any) -> dict[str, Any]:
        return {}


def options(
    mesh: DeviceMesh,
    micro_batches: int,
    data_type: str,
    *,
    fsdp_mode: str,
    cross_entropy_loss_implementation: str,
    gradient_checkpointing: bool,
    pad_to_length: bool,
) -> dict[str, Any]:
    """Return the arguments of a configuration, which the release validates."""
    of = library.arguments
    is_alone = mesh.size() == 1
    return {
        "model": of.ModelArguments(
            config_path="harness",
            ops_implementation=of.OpsImplementationConfig(
                cross_entropy_loss_implementation=cross_entropy_loss_implementation, **OPS
            ),
        ),
        "data": of.DataArguments(
            train_path="harness", data_type=data_type, max_seq_len=LONGEST, train_size=1
        ),
        "train": of.TrainingArguments(
            accelerator=of.AcceleratorConfig(
                ulysses_size=mesh["sp"].size(),
                fsdp_config=of.FSDPConfig(
                    # One rank is wrapped in neither, and the release has this name for it.
                    fsdp_mode="ddp" if is_alone else fsdp_mode,
                    mixed_precision=of.MixedPrecisionConfig(enable=False),
                ),
            ),
            init_device="cuda" if is_alone else "meta",
            gradient_checkpointing=of.GradientCheckpointingConfig(enable=gradient_checkpointing),
            optimizer=of.OptimizerConfig(max_grad_norm=NO_CLIPPING),
            micro_batch_size=1,
            global_batch_size=micro_batches * mesh["dp"].size(),
            pad_to_length=pad_to_length,
        ),
    }


@contextmanager
def placed(mesh: DeviceMesh) -> Iterator[None]:
    """While this lasts, a configuration counts the ranks of this mesh."""
    variables = {"WORLD_SIZE": str(mesh.size()), "RANK": str(mesh.get_rank())}
    with patch.dict(os.environ, variables | {"LOCAL_RANK": str(mesh.get_rank())}):
        yield


@contextmanager
def training(
    trainer: Any, arguments: Any, model: Any, *, is_balanced: bool = False
) -> Iterator[Any]:
    """While this lasts, the trainer's base has this model, on the groups of these ranks.

    It is built by the calls that the trainer's constructor makes, but for those that load data,
    weights and an optimizer.
    """
    base = object.__new__(library.base.BaseTrainer)
    trainer.base, base.args = base, arguments
    base.device, base.LOG_SAMPLE = next(model.parameters()).device, False
    base.tokenizer = base.train_dataloader = None
    accelerator = arguments.train.accelerator
    with ExitStack() as stack:
        stack.enter_context(patch.dict(library.parallel_state._PARALLEL_STATE_REGISTRY))
        library.parallel_state._PARALLEL_STATE_REGISTRY.pop("base", None)
        library.parallel_state.init_parallel_state(
            dp_size=accelerator.dp_size,
            dp_replicate_size=accelerator.dp_replicate_size,
            dp_shard_size=accelerator.dp_shard_size,
            ulysses_size=accelerator.ulysses_size,
            dp_mode=accelerator.fsdp_config.fsdp_mode,
            device_type=base.device.type,
            name="base",
        )
        stack.enter_context(library.parallel_state.use_parallel_state("base"))
        # The weights are there.
        stack.enter_context(
            patch.object(library.wrapping, "_materialize_and_load_weights", lambda *_, **__: None)
        )
        stack.enter_context(patch.object(library.traces.helper, "EnvironMeter", Meter))
        base.model = as_released(model, arguments, is_balanced=is_balanced)
        base.model_config = base.model.config
        base._build_collate_fn()
        base._build_parallelized_model()
        base._build_training_context()
        base.optimizer = base.lr_scheduler = Idle()
        base.state = library.base.TrainerState()
        base._callbacks = [library.traces.EnvironMeterCallback(base)]
        yield base


def as_released(model: Any, arguments: Any, *, is_balanced: bool = False) -> Any:
    """Give each module of a model of transformers the class that the release has for it.

    If it `is_balanced`, it adds the loss that balances experts to its own.
    """
    model.config.architectures = [type(model).__name__]
    model.config.output_router_logits = is_balanced
    built = library.base.build_foundation_model(
        config_path=model.config,
        torch_dtype="float32",
        init_device="meta",
        ops_implementation=arguments.model.ops_implementation,
    )
    for module, twin in zip(model.modules(), built.modules(), strict=True):
        module.__class__ = type(twin)
        if hasattr(twin, "config"):
            module.config = twin.config
    return model
