"""The released workers of a policy and of a critic, without ray."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor
from torch import distributed as dist

from harness.candidates.published.skyrl import library
from harness.candidates.published.wiring.stand_ins import Replacing

# What no entry turns on.
OFF = {
    "use_entropy_loss": False,
    "use_kl_loss": False,
    "advantage_batch_normalize": False,
    "max_seq_len": None,
    "enable_sample_support_replay": False,
    "off_policy_correction": SimpleNamespace(tis_ratio_type=None, sequence_mask_metric=None),
}


class Strategy:
    """A strategy with only what workers call."""

    all_reduce = library.all_reduce
    backward = library.backward

    def __init__(self, world_size: int) -> None:
        self.world_size = world_size

    def optimizer_step(self, *_: Any, **__: Any) -> None:
        """Do nothing: the caller updates the weights, and nothing is clipped."""


@dataclass(frozen=True, slots=True)
class Ranks:
    """The ranks that train together: all of them, and those with the same part of a sequence."""

    world: dist.ProcessGroup
    dp: dist.ProcessGroup


class Worker:
    """A released worker with a model."""

    def __init__(self, kind: Any, model: Any, config: Any, ranks: Ranks) -> None:
        self.ranks = ranks
        self.released = kind(cfg=config)
        self.released.model = model
        self.released.strategy = Strategy(ranks.world.size())
        self.released.scheduler = SimpleNamespace(get_last_lr=lambda: [0.0])
        self.released.mesh_rank = SimpleNamespace(dp_size=ranks.dp.size())
        self.released.device_mesh = SimpleNamespace(get_group=lambda _: ranks.dp)

    def forward(self, batch: Any) -> Any:
        """Compute log-probabilities or values of responses."""
        with self.among_ranks():
            return self.released.forward(batch)

    def forward_backward(self, batch: Any) -> Any:
        """Run forward and backward of a batch."""
        with self.among_ranks():
            return self.released.forward_backward(batch)

    @contextmanager
    def among_ranks(self) -> Iterator[None]:
        """While this lasts, "all ranks" are only those that train together."""
        world = self.ranks.world

        def all_reduce(
            value: Tensor, op: Any = dist.ReduceOp.SUM, group: dist.ProcessGroup | None = None
        ) -> None:
            dist.all_reduce(value, op=op, group=group or world)

        ranks = SimpleNamespace(
            all_reduce=all_reduce,
            get_world_size=lambda group: group.size(),
            is_initialized=lambda: True,
            ReduceOp=dist.ReduceOp,
        )
        # Micro-batches of padding have random ids; here zeros, which are no token's where all
        # differ.
        without_chance = Replacing(
            torch,
            randint=lambda _, __, size, **options: torch.zeros(size, dtype=torch.int64, **options),
        )
        with (
            patch.dict(library.all_reduce.__globals__, dist=ranks),
            patch.multiple(library.worker_utils, dist=ranks, torch=without_chance),
        ):
            yield


def config(rows: int, tokens: int = -1, **algorithm: Any) -> Any:
    """Return what workers read; so many rows, or so many tokens, are a micro-batch."""
    return SimpleNamespace(
        algorithm=SimpleNamespace(**{"temperature": 1.0, **OFF, **algorithm}),
        micro_train_batch_size_per_gpu=rows,
        micro_forward_batch_size_per_gpu=rows,
        max_tokens_per_microbatch=tokens,
    )
