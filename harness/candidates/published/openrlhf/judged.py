"""What steps of OpenRLHF's trainers that recipes judge have in common."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn
from torch import distributed as dist
from torch.distributed.device_mesh import DeviceMesh

from harness.candidates.published.flash_stand_in import flash
from harness.candidates.published.openrlhf import library
from harness.candidates.published.openrlhf.strategy import FLASH, ring, strategy_over
from harness.candidates.published.wiring.gradients import reduce, total
from harness.recipes.batch import Batch

MASK = "attention_mask"
SCHEDULER = SimpleNamespace(get_last_lr=lambda: [0.0])


class Engine(nn.Module):
    """An engine in DeepSpeed's place.

    It divides each loss by the number of micro-batches, and averages gradients over all ranks.
    """

    def __init__(self, module: Any, accumulated: int) -> None:
        super().__init__()
        self.module, self.losses = module, list[Tensor]()
        self.accumulated = accumulated
        self.micro_steps = self.global_steps = 0

    def forward(self, *given: Any, **named: Any) -> Any:
        return self.module(*given, **named)

    def backward(self, loss: Tensor) -> None:
        share = loss / self.accumulated
        self.losses.append(share.detach())
        share.backward()

    def step(self) -> None:
        self.micro_steps += 1
        if self.micro_steps % self.accumulated == 0:
            reduce(dict(self.module.named_parameters()), whole_world(), mean=True)
            self.global_steps += 1

    def get_global_grad_norm(self) -> None:
        """Return None: nothing is clipped."""

    @property
    def loss(self) -> Tensor:
        """The loss that was trained, over all ranks."""
        return total(torch.stack(self.losses).sum(), whole_world()) / whole_world().size()


class Stepping:
    """A step on given micro-batches: what all trainers are made with."""

    def __init__(
        self,
        model: Any,
        batches: Sequence[Batch],
        mesh: DeviceMesh,
        *,
        packing_samples: bool,
        gradient_checkpointing: bool,
        dynamic: bool = False,
    ) -> None:
        self.batches, self.packed = batches, packing_samples
        self.accumulated = 1 if dynamic else len(batches)
        self.groups = {name: mesh[name].get_group() for name in ("dp", "sp")}
        model.set_attn_implementation(FLASH)
        if gradient_checkpointing:
            model.gradient_checkpointing_enable({"use_reentrant": False})
        self.model = model

    @contextmanager
    def taking(self, released: Any, **args: Any) -> Iterator[tuple[Engine, Any]]:
        """While this lasts, run a trainer on a released model -> its engine and its strategy."""
        engine = Engine(released, self.accumulated)
        strategy = strategy_over(self.groups, whole_world(), len(self.batches), **args)
        strategy.args.ds.packing_samples = self.packed
        # Its entropy is compiled, which on a CPU takes minutes.
        with library.on_a_cpu(), ring(strategy), torch.compiler.set_stance("force_eager"):
            yield engine, strategy
        flash.must_have_run()


def whole_world() -> dist.ProcessGroup:
    """Return the group of all ranks, since a step with a recipe takes all there are."""
    world = dist.group.WORLD
    assert world is not None
    return world
