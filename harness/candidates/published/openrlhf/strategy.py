"""What stands below OpenRLHF's trainers: its strategy, and an engine in DeepSpeed's place."""

from collections import deque
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import torch
import transformers.modeling_flash_attention_utils as attention
from torch import Tensor, nn
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from harness import huggingface
from harness.candidates.protocol import Emit, Rank
from harness.candidates.published.openrlhf import library
from harness.candidates.published.wiring.gradients import reduce, silent
from harness.case import Case

FLASH = "flash_attention_2"


class Engine(nn.Module):
    """DeepSpeed's part, which is ours: it divides each loss by the number of micro-batches, and
    averages gradients over all ranks, those that share a sequence as well.
    """

    def __init__(self, case: Case, rank: Rank, module: Any) -> None:
        super().__init__()
        self.case, self.rank, self.module = case, rank, module
        self.named = huggingface.parameters(module, case)
        self.emit: Emit = silent
        # The numbers of each micro-batch's tokens, in the order in which micro-batches come.
        self.numbers: deque[Tensor] = deque()
        # The numbers of this rank's tokens.
        self.tokens: Tensor
        # The number by which each loss of a step is divided.
        self.accumulated = case.micro_batches
        self.micro_steps = self.global_steps = 0

    def forward(self, ids: Tensor, **named: Any) -> Any:
        self.emit("ids", ids.flatten(), self.tokens)
        self.emit("positions", named["position_ids"].flatten(), self.tokens)
        with huggingface.watched(self.module, self.case, self.emit, self.tokens):
            return self.module(ids, **named)

    def backward(self, loss: Tensor) -> None:
        (loss / self.accumulated).backward()

    def step(self) -> None:
        self.micro_steps += 1
        if self.micro_steps % self.accumulated == 0:
            reduce(self.named, self.rank.world, mean=True)
            self.global_steps += 1

    def get_global_grad_norm(self) -> None:
        """Nothing is clipped."""

    @contextmanager
    def seen(self) -> Iterator[None]:
        """While it lasts, emit what passes through the released `Actor.forward`."""
        cut, log_probs = library.actor.unpad_and_slice_tensor, library.actor.log_probs_from_logits

        def cut_and_number(sequences: Tensor, mask: Tensor, group: Any) -> Any:
            # Numbers are cut as ids are; meanwhile from one, as padding is zero.
            numbers = torch.zeros_like(sequences)
            numbers[mask.bool()] = self.numbers.popleft() + 1
            mine, *_ = cut(numbers, mask, group)
            self.tokens = mine.flatten() - 1
            return cut(sequences, mask, group)

        def log_probs_and_tell(logits: Tensor, labels: Tensor) -> Tensor:
            found: Tensor = log_probs(logits, labels)
            emit, tokens = self.emit, self.tokens
            emit("labels", labels.flatten(), tokens)
            emit("nll", -found.detach().flatten(), tokens)
            if found.requires_grad:
                # Gradients are averaged over all ranks.
                scale = -1 / self.case.ranks
                found.register_hook(lambda grad: emit("weight", scale * grad.flatten(), tokens))
            return found

        with (
            patch.object(library.actor, "unpad_and_slice_tensor", cut_and_number),
            patch.object(library.actor, "log_probs_from_logits", log_probs_and_tell),
        ):
            yield


def strategy_of(case: Case, rank: Rank, *, stride: int = 1, **args: Any) -> Any:
    """The released methods of DeepspeedStrategy, with attributes that they and trainers read."""
    groups = {"dp": rank.dp, "sp": rank.sp}
    strategy: Any = type("Strategy", (), library.methods_of_strategy(rank.world))()
    vars(strategy).update(
        args=SimpleNamespace(
            ds=SimpleNamespace(
                packing_samples=True,
                ring_attn_size=case.sp,
                ring_attn_head_stride=stride,
                tensor_parallel_size=1,
            ),
            **args,
        ),
        ring_attn_size=case.sp,
        world_size=case.ranks,
        accumulated_gradient=case.micro_batches,
        is_rank_0=lambda: False,
        ds_device_mesh={
            name: SimpleNamespace(get_group=lambda group=group: group)
            for name, group in groups.items()
        },
    )
    return strategy


@contextmanager
def ring(strategy: Any) -> Iterator[None]:
    """Set up the ring as `setup_distributed` does, but only for as long as a case lasts."""
    with ExitStack() as undo:
        undo.callback(library.ring.set_ring_attn_group, None)
        undo.callback(
            setattr, attention, "_flash_attention_forward", attention._flash_attention_forward
        )
        undo.callback(ALL_ATTENTION_FUNCTIONS.__setitem__, FLASH, ALL_ATTENTION_FUNCTIONS[FLASH])
        strategy.setup_ring_attn(strategy.ds_device_mesh)
        yield


def actor_of(engine: Engine) -> Any:
    """An actor around a given model; the release sets the flag only where it loads one."""
    actor = library.actor.Actor(engine)
    actor.packing_samples = True
    return actor
