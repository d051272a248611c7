"""A real `transformers.Trainer` on the ranks of a case, and what it computes, by our names.

Everything from the batches of a data loader to the optimizer is the trainer's and accelerate's.
Only what stands between them and a CPU is ours.
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
from harness.candidates.published.wiring.decoder import IGNORED, local_mean
from harness.candidates.published.wiring.gradients import silent
from harness.candidates.published.wiring.limits import dealt
from harness.case import LEARNING_RATE, Case

# The key under which a batch has the numbers of its tokens.
TOKENS = "tokens"
Batch = dict[str, Tensor]

ring_on_cpu.install()
transformers.utils.logging.set_verbosity(logging.ERROR)


def train(case: Case, rank: Rank, emit: Emit, trainer: Any) -> None:
    """All steps of the case; a trainer made by `following` tells of the last."""
    trainer.follow(case, rank, emit)
    trainer.train()


@contextmanager
def several_ranks(case: Case) -> Iterator[None]:
    """While a trainer is made, ranks pass for GPUs: accelerate has no FSDP on CPUs."""
    with ExitStack() as patches:
        if case.ranks > 1:
            backend = ("gloo", DistributedType.MULTI_GPU)
            patches.enter_context(
                patch.object(PartialState, "_prepare_backend", lambda *_, **__: backend)
            )
        yield


def options(case: Case, rotation: str = "allgather") -> dict[str, Any]:
    """Arguments that all trainers have in common."""
    chosen: dict[str, Any] = {
        "output_dir": tempfile.gettempdir(),
        "per_device_train_batch_size": 1,
        "gradient_accumulation_steps": case.micro_batches,
        "max_steps": case.steps,
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
    if case.ranks > 1:
        chosen |= {
            "fsdp": True,
            "fsdp_config": {"version": 2, "auto_wrap_policy": "NO_WRAP"},
            "parallelism_config": parallelism(case.dp, case.sp, rotation),
        }
    return chosen


@cache
def parallelism(dp: int, sp: int, rotation: str) -> Any:
    """A config of ranks, kept because it makes the groups of its mesh once."""
    handler = TorchContextParallelConfig(cp_comm_strategy=rotation) if sp > 1 else None
    return ParallelismConfig(dp_shard_size=dp, cp_size=sp, cp_handler=handler)


def dealt_in_turn(case: Case) -> list[list[int]]:
    """The rows of each micro-batch, in the order in which accelerate deals them to replicas."""
    replicas = [dealt(case, replica) for replica in range(case.dp)]
    return [list(rows) for together in zip(*replicas, strict=True) for rows in together]


def following(trainer: type[Any], ears: type[Any] | None = None) -> type[Any]:
    """The released class, which emits what it computes."""
    return type(trainer.__name__, (ears or Following, trainer), {})


class Following:
    """Stands before the released trainer: adds token numbers, and emits what is computed."""

    def follow(self: Any, case: Case, rank: Rank, emit: Emit) -> None:
        self.case, self.rank, self.emit = case, rank, emit
        self.tokens = torch.empty(0)
        self.remove_callback(transformers.PrinterCallback)
        self.add_callback(_before_optimizer(self.tell_gradients))

    @property
    def say(self: Any) -> Emit:
        last = self.state.global_step == self.case.steps - 1
        say: Emit = self.emit if last else silent
        return say

    def _prepare_context_parallel_inputs(
        self: Any, model: Any, inputs: Batch
    ) -> tuple[Any, Batch]:
        """Numbers of tokens are one more buffer to be cut."""
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

    def compute_loss(self: Any, model: Any, inputs: Batch, *given: Any, **named: Any) -> Any:
        compute = super().compute_loss  # type: ignore[misc]
        if self.say is silent:
            return compute(model, inputs, *given, **named)
        say = self.say
        say("ids", inputs["input_ids"].flatten(), self.tokens.flatten())
        if "position_ids" in inputs:
            say("positions", inputs["position_ids"].flatten(), self.tokens.flatten())
        with (
            self.watching(self.accelerator.unwrap_model(model), say),
            self.listening(model, inputs, say),
        ):
            return compute(model, inputs, *given, **named)

    def watching(self: Any, model: Any, say: Emit) -> AbstractContextManager[Any]:
        """Emit what layers compute while this lasts."""
        return huggingface.watched(model, self.case, say, self.tokens)

    def listening(
        self: Any, _model: Any, _inputs: Batch, say: Emit
    ) -> AbstractContextManager[Any]:
        """Emit each token's loss while this lasts."""
        return patch.object(F, "cross_entropy", partial(self.cross_entropy, say))

    def cross_entropy(
        self: Any,
        say: Emit,
        logits: Tensor,
        labels: Tensor,
        *,
        reduction: str = "mean",
        **rest: Any,
    ) -> Tensor:
        """The sum or mean that torch computes, taken of tokens' losses, which are emitted."""
        nll = _cross_entropy(logits, labels, reduction="none", **rest)
        self.tell_losses(say, nll, labels, self.tokens.flatten())
        return nll.sum() if reduction == "sum" else local_mean(nll, labels)

    def tell_losses(self: Any, say: Emit, nll: Tensor, labels: Tensor, tokens: Tensor) -> None:
        say("labels", labels, tokens)
        say("nll", nll, tokens)
        # FSDP averages gradients over all ranks.
        scale = (labels != IGNORED) / self.case.ranks
        nll.register_hook(lambda grad: say("weight", grad * scale, tokens))

    def tell_gradients(self: Any) -> None:
        for name, parameter in huggingface.parameters(self.model, self.case).items():
            gradient = parameter.grad
            whole = getattr(gradient, "full_tensor", lambda gradient=gradient: gradient)()
            self.say(f"grad.{name}", torch.zeros_like(parameter) if whole is None else whole)

    def log(self: Any, logs: Mapping[str, float], *given: Any, **named: Any) -> None:
        """After the last step there is a log of it, and one of the whole training."""
        if "loss" in logs and self.state.global_step == self.case.steps:
            self.emit("loss", torch.tensor(logs["loss"]))
        super().log(logs, *given, **named)  # type: ignore[misc]


_cross_entropy = F.cross_entropy


def _before_optimizer(call: Callable[[], None]) -> Any:
    class Before(transformers.TrainerCallback):
        def on_pre_optimizer_step(self, *_: Any, **__: Any) -> None:
            call()

    return Before()
