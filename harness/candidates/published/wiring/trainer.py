"""Run a real `transformers.Trainer` on the ranks of a case, and emit what it computes.

Everything from the data loader to the optimizer is the trainer's and accelerate's. Ours are only
the parts that let them run on a CPU.
"""

import logging
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import cache, partial
from typing import Any
from unittest.mock import patch

# Before accelerate looks for a device.
os.environ["ACCELERATE_TORCH_DEVICE"] = "cpu"

import torch
import transformers
from accelerate import PartialState
from accelerate.utils import DistributedType, ParallelismConfig, TorchContextParallelConfig
from torch import Tensor
from torch.nn import functional as F

from harness import huggingface
from harness.candidates.protocol import Emit, Rank
from harness.candidates.published.wiring import ring_on_cpu
from harness.candidates.published.wiring.decoder import local_mean
from harness.candidates.published.wiring.emitting import emit_inputs, emit_losses
from harness.candidates.published.wiring.gradients import emit_gradients, silent
from harness.candidates.published.wiring.limits import dealt
from harness.candidates.published.wiring.rows import IGNORED, shifted
from harness.case import LEARNING_RATE, Case

# The key of token numbers in a batch.
TOKENS = "tokens"
Batch = dict[str, Tensor]

ring_on_cpu.install()
transformers.utils.logging.set_verbosity(logging.ERROR)


def train(case: Case, rank: Rank, emit: Emit, trainer: Any) -> None:
    """Run all steps of the case; a trainer made by `emitting` emits in the last."""
    trainer.start(case, rank, emit)
    trainer.train()


def install() -> None:
    """Let ranks pass for GPUs from now on: accelerate has no FSDP on CPUs."""
    _passing_for_gpus().start()


@contextmanager
def several_ranks(ranks: int) -> Iterator[None]:
    """While a trainer is made, let ranks pass for GPUs."""
    with ExitStack() as patches:
        if ranks > 1:
            patches.enter_context(_passing_for_gpus())
        yield


def _passing_for_gpus() -> Any:
    backend = ("gloo", DistributedType.MULTI_GPU)
    return patch.object(PartialState, "_prepare_backend", lambda *_, **__: backend)


def options(case: Case, rotation: str = "allgather") -> dict[str, Any]:
    """Return the arguments of a trainer of a case."""
    return one_step(case.dp, case.sp, rotation) | {
        "gradient_accumulation_steps": case.micro_batches,
        "max_steps": case.steps,
    }


def one_step(dp: int, sp: int, rotation: str = "allgather") -> dict[str, Any]:
    """Return the arguments that all trainers have in common, for one step on one micro-batch."""
    arguments: dict[str, Any] = {
        "output_dir": tempfile.gettempdir(),
        "per_device_train_batch_size": 1,
        "max_steps": 1,
        "optim": "sgd",
        "learning_rate": LEARNING_RATE,
        "lr_scheduler_type": "constant",
        "max_grad_norm": 0.0,
        "train_sampling_strategy": "sequential",
        "remove_unused_columns": False,
        "dataloader_pin_memory": False,
        "logging_steps": 1,
        "save_strategy": "no",
        "report_to": "none",
        "disable_tqdm": True,
        "log_level": "error",
    }
    if dp * sp > 1:
        arguments |= {
            "fsdp": True,
            "fsdp_config": {"version": 2, "auto_wrap_policy": "NO_WRAP"},
            "parallelism_config": parallelism(dp, sp, rotation),
        }
    return arguments


@cache
def parallelism(dp: int, sp: int, rotation: str) -> Any:
    """Return a config of ranks, kept because it makes the groups of its mesh only once."""
    handler = TorchContextParallelConfig(cp_comm_strategy=rotation) if sp > 1 else None
    return ParallelismConfig(dp_shard_size=dp, cp_size=sp, cp_handler=handler)


def dealt_in_turn(case: Case) -> list[list[int]]:
    """Return the rows of each micro-batch, in the order in which accelerate deals to replicas."""
    replicas = [dealt(case, replica) for replica in range(case.dp)]
    return [list(rows) for together in zip(*replicas, strict=True) for rows in together]


def emitting(released: type[Any], mixin: type[Any] | None = None) -> type[Any]:
    """Return the released class with a mixin before it, which emits what is computed."""
    return type(released.__name__, (mixin or EmittingTrainer, released), {})


class EmittingTrainer:
    """A mixin before a released trainer: cuts token numbers, and emits what is computed."""

    def start(self: Any, case: Case, rank: Rank, emit: Emit) -> None:
        self.case, self.rank, self.emit = case, rank, emit
        self.tokens = torch.empty(0)
        self.remove_callback(transformers.PrinterCallback)
        self.add_callback(before_optimizer(self.emit_all_gradients))
        if self.label_smoother:
            self.label_smoother = partial(self.smooth, self.label_smoother)

    @property
    def step_emit(self: Any) -> Emit:
        """How to emit in the current step: silent in all but the last."""
        is_last = self.state.global_step == self.case.steps - 1
        emit: Emit = self.emit if is_last else silent
        return emit

    def _prepare_context_parallel_inputs(
        self: Any, model: Any, inputs: Batch
    ) -> tuple[Any, Batch]:
        """Add the token numbers to the buffers that are cut."""
        self.tokens = inputs.pop(TOKENS)
        prepare = super()._prepare_context_parallel_inputs  # type: ignore[misc]
        context, inputs = prepare(model, inputs)
        if self.case.sp > 1:
            buffers = [*context.keywords["buffers"], self.tokens]
            context = partial(
                context.func,
                buffers=buffers,
                buffer_seq_dims=[*context.keywords["buffer_seq_dims"], 1],
                no_restore_buffers=set(buffers),
            )
        return context, inputs

    def compute_loss(self: Any, model: Any, inputs: Batch, *args: Any, **kwargs: Any) -> Any:
        compute = super().compute_loss  # type: ignore[misc]
        emit = self.step_emit
        if emit is silent:
            return compute(model, inputs, *args, **kwargs)
        emit_inputs(emit, inputs, self.tokens.flatten())
        with (
            self.emitting_layers(self.accelerator.unwrap_model(model), emit),
            self.emitting_losses(model, inputs, emit),
        ):
            return compute(model, inputs, *args, **kwargs)

    def emitting_layers(self: Any, model: Any, emit: Emit) -> AbstractContextManager[Any]:
        """While this lasts, emit what layers compute."""
        return huggingface.watched(model, self.case, emit, self.tokens)

    def emitting_losses(
        self: Any, _model: Any, _inputs: Batch, emit: Emit
    ) -> AbstractContextManager[Any]:
        """While this lasts, emit each token's loss."""
        return patch.object(F, "cross_entropy", partial(self.cross_entropy, emit))

    def cross_entropy(
        self: Any,
        emit: Emit,
        logits: Tensor,
        labels: Tensor,
        *,
        reduction: str = "mean",
        **options: Any,
    ) -> Tensor:
        """Return torch's sum or mean, computed from token losses, which are emitted."""
        nll = _cross_entropy(logits, labels, reduction="none", **options)
        # FSDP averages gradients over all ranks.
        scale = (labels != IGNORED) / self.case.ranks
        emit_losses(emit, nll, labels, self.tokens.flatten(), scale)
        return nll.sum() if reduction == "sum" else local_mean(nll, labels)

    def smooth(
        self: Any,
        smoother: Any,
        outputs: Any,
        labels: Tensor,
        *,
        shift_labels: bool = False,
        **options: Any,
    ) -> Tensor:
        """Emit token losses, which label smoothing does not compute, and call the smoother."""
        own_labels = (shifted(labels) if shift_labels else labels).flatten()
        log_probs = outputs["logits"].detach().flatten(0, -2).float().log_softmax(-1)
        nll = F.nll_loss(log_probs, own_labels, reduction="none", ignore_index=IGNORED)
        emit_losses(self.step_emit, nll, own_labels, self.tokens.flatten())
        loss: Tensor = smoother(outputs, labels, shift_labels=shift_labels, **options)
        return loss

    def emit_all_gradients(self: Any) -> None:
        emit_gradients(huggingface.parameters(self.model, self.case), self.step_emit)

    def log(self: Any, logs: Mapping[str, float], *args: Any, **kwargs: Any) -> None:
        """Emit the loss after the last step; a second log then is that of the whole training."""
        if "loss" in logs and self.state.global_step == self.case.steps:
            self.emit("loss", torch.tensor(logs["loss"]))
        super().log(logs, *args, **kwargs)  # type: ignore[misc]


_cross_entropy = F.cross_entropy


def before_optimizer(call: Callable[[], None]) -> Any:
    """Return a callback of a trainer, which calls when a step has all its gradients."""

    class Before(transformers.TrainerCallback):  # type: ignore[misc]
        def on_pre_optimizer_step(self, *_: Any, **__: Any) -> None:
            call()

    return Before()
