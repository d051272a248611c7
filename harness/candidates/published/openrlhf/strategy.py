"""The strategy below OpenRLHF's trainers, and an engine in DeepSpeed's place."""

from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import torch
import transformers.modeling_flash_attention_utils as attention
from torch import Tensor, nn
from torch.distributed import ProcessGroup
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from harness import huggingface
from harness.candidates.protocol import Emit, Rank
from harness.candidates.published.openrlhf import library
from harness.candidates.published.wiring.emitting import emit_inputs, emit_losses
from harness.candidates.published.wiring.gradients import reduce, silent
from harness.case import Case

FLASH = "flash_attention_2"


class Engine(nn.Module):
    """An engine in DeepSpeed's place, around the model, which emits what it computes.

    It divides each loss by the number of micro-batches, and averages gradients over all ranks,
    including those that share a sequence.
    """

    def __init__(self, case: Case, rank: Rank, module: Any) -> None:
        super().__init__()
        self.case, self.rank, self.module = case, rank, module
        self.named_weights = huggingface.parameters(module, case)
        self.emit: Emit = silent
        # The token numbers of the coming micro-batches, in order.
        self.pending_tokens: deque[Tensor] = deque()
        # This rank's token numbers.
        self.tokens: Tensor
        # The number by which each loss of a step is divided.
        self.accumulated = case.micro_batches
        self.micro_steps = self.global_steps = 0

    def forward(self, ids: Tensor, **inputs: Any) -> Any:
        emit_inputs(self.emit, {"input_ids": ids, **inputs}, self.tokens)
        with huggingface.watched(self.module, self.case, self.emit, self.tokens):
            return self.module(ids, **inputs)

    def backward(self, loss: Tensor) -> None:
        (loss / self.accumulated).backward()

    def step(self) -> None:
        self.micro_steps += 1
        if self.micro_steps % self.accumulated == 0:
            reduce(self.named_weights, self.rank.world, mean=True)
            self.global_steps += 1

    def get_global_grad_norm(self) -> None:
        """Return None: nothing is clipped."""

    @contextmanager
    def emitting(self) -> Iterator[None]:
        """While this lasts, emit what passes through the released `Actor.forward`."""
        cut, log_probs = library.actor.unpad_and_slice_tensor, library.actor.log_probs_from_logits

        def cut_and_number(sequences: Tensor, mask: Tensor, group: Any) -> Any:
            # Numbers are cut as ids are. Meanwhile they count from one, because padding is zero.
            numbers = torch.zeros_like(sequences)
            numbers[mask.bool()] = self.pending_tokens.popleft() + 1
            own_numbers, *_ = cut(numbers, mask, group)
            self.tokens = own_numbers.flatten() - 1
            return cut(sequences, mask, group)

        def log_probs_and_emit(logits: Tensor, labels: Tensor) -> Tensor:
            values: Tensor = log_probs(logits, labels)
            emit, tokens = self.emit, self.tokens
            emit_losses(emit, -values.detach().flatten(), labels.flatten(), tokens)
            if values.requires_grad:
                # Gradients are averaged over all ranks.
                scale = -1 / self.case.ranks
                values.register_hook(lambda grad: emit("weight", scale * grad.flatten(), tokens))
            return values

        with (
            patch.object(library.actor, "unpad_and_slice_tensor", cut_and_number),
            patch.object(library.actor, "log_probs_from_logits", log_probs_and_emit),
        ):
            yield


def strategy_of(case: Case, rank: Rank, *, stride: int = 1, **args: Any) -> Any:
    """Return the strategy of a case."""
    groups = {"dp": rank.dp, "sp": rank.sp}
    return strategy_over(groups, rank.world, case.micro_batches, stride=stride, **args)


def strategy_over(
    groups: Mapping[str, ProcessGroup],
    world: ProcessGroup,
    micro_batches: int = 1,
    *,
    stride: int = 1,
    **args: Any,
) -> Any:
    """Return a strategy with released methods and the attributes that they and trainers read."""
    sp = groups["sp"].size()
    strategy: Any = type("Strategy", (), library.methods_of_strategy(world))()
    vars(strategy).update(
        args=SimpleNamespace(
            ds=SimpleNamespace(
                packing_samples=True,
                ring_attn_size=sp,
                ring_attn_head_stride=stride,
                tensor_parallel_size=1,
            ),
            **args,
        ),
        ring_attn_size=sp,
        world_size=world.size(),
        accumulated_gradient=micro_batches,
        is_rank_0=lambda: False,
        print=lambda *_: None,
        ds_device_mesh={
            name: SimpleNamespace(get_group=lambda group=group: group)
            for name, group in groups.items()
        },
    )
    return strategy


@contextmanager
def ring(strategy: Any) -> Iterator[None]:
    """While this lasts, have a ring set up as by `setup_distributed`."""
    with ExitStack() as undo:
        undo.callback(library.ring.set_ring_attn_group, None)
        undo.callback(
            setattr, attention, "_flash_attention_forward", attention._flash_attention_forward
        )
        undo.callback(ALL_ATTENTION_FUNCTIONS.__setitem__, FLASH, ALL_ATTENTION_FUNCTIONS[FLASH])
        strategy.setup_ring_attn(strategy.ds_device_mesh)
        yield


def actor_of(engine: nn.Module, *, packed: bool = True, temperature: float = 1.0) -> Any:
    """Return an actor around a given model; the release sets this flag only if it loads one."""
    actor = library.actor.Actor(engine, temperature=temperature)
    actor.packing_samples = packed
    return actor
