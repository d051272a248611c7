"""The released workers of a policy and of a critic, without ray and without FSDP."""

from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor
from torch import distributed as dist

from harness.candidates.protocol import Emit, Rank
from harness.candidates.published.skyrl import library
from harness.candidates.published.skyrl.batch import TOKENS, rows_of_a_micro_batch
from harness.candidates.published.skyrl.model import Critic, Policy
from harness.candidates.published.wiring.gradients import silent
from harness.candidates.published.wiring.rows import PADDING
from harness.candidates.published.wiring.stand_ins import Replacing
from harness.case import Case


class Strategy:
    """A strategy with only what workers call."""

    all_reduce = library.all_reduce
    backward = library.backward

    def __init__(self, world_size: int) -> None:
        self.world_size = world_size

    def optimizer_step(self, *_: Any, **__: Any) -> None:
        """Do nothing: the caller updates the weights, and nothing is clipped."""


class Worker:
    """A released worker with a model, which gets the token numbers of each micro-batch."""

    def __init__(
        self, case: Case, rank: Rank, model: Policy | Critic, loss: str, *, by_tokens: bool
    ) -> None:
        self.case, self.rank, self.model = case, rank, model
        self.emit: Emit = silent
        kind = library.CriticWorker if isinstance(model, Critic) else library.PolicyWorker
        self.released = kind(cfg=config(case, loss, by_tokens=by_tokens))
        self.released.model = model.module
        self.released.strategy = Strategy(case.ranks)
        self.released.scheduler = SimpleNamespace(get_last_lr=lambda: [0.0])
        self.released.mesh_rank = SimpleNamespace(dp_size=case.dp)
        self.released.device_mesh = SimpleNamespace(get_group=lambda _: rank.dp)

    def forward(self, batch: Any) -> Tensor:
        """Return log probabilities of responses before a step; emit nothing."""
        self.model.emit, self.model.tokens_BS = silent, None
        with self.of_case(self.released.forward):
            outputs = self.released.forward(batch).loss_fn_outputs
        return torch.tensor([each["logprobs"] for each in outputs])

    def forward_backward(self, batch: Any, emit: Emit) -> dict[str, float]:
        """Run forward and backward of a batch -> the logged metrics."""
        self.emit = emit
        with self.of_case(self.released.forward_backward):
            metrics: dict[str, float] = self.released.forward_backward(batch).metrics
        return metrics

    def experience(self, micro_batch: Any) -> Any:
        """Return the released iterator's experience, and give its token numbers to the model."""
        ids_BS = micro_batch["sequences"]
        # No rank owns the tokens of a micro-batch of padding: they would count as work not shared.
        self.model.emit = self.emit if TOKENS in micro_batch else silent
        self.model.tokens_BS = micro_batch.get(TOKENS, torch.full_like(ids_BS, PADDING))
        return library.worker_utils.BaseBatchIterator.batch_to_experience(micro_batch)

    @contextmanager
    def of_case(self, method: Any) -> Iterator[None]:
        """While this lasts, "all ranks" of a method are only the ranks of the case."""
        world = self.rank.world

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
        # Micro-batches of padding have random ids below 100; here below the vocabulary.
        bounded = Replacing(
            torch,
            randint=lambda low, high, *args, **kwargs: torch.randint(
                low, min(high, self.case.vocab), *args, **kwargs
            ),
        )
        iterator = SimpleNamespace(batch_to_experience=self.experience)
        with (
            patch.dict(method.__func__.__globals__, BaseBatchIterator=iterator),
            patch.dict(library.all_reduce.__globals__, dist=ranks),
            patch.multiple(library.worker_utils, dist=ranks, torch=bounded),
        ):
            yield


def config(case: Case, loss: str, *, by_tokens: bool) -> Any:
    """Return the configuration that workers read."""
    size = rows_of_a_micro_batch(case)
    algorithm = SimpleNamespace(
        policy_loss_type="cross_entropy" if loss == "cross_entropy" else "cispo",
        temperature=1.0,
        use_entropy_loss=False,
        use_kl_loss=loss == "kl",
        kl_estimator_type="abs",
        kl_loss_coef=1.0,
        cispo=SimpleNamespace(cispo_eps_clip_low=0, cispo_eps_clip_high=5, cispo_anchor="old"),
        enable_sample_support_replay=False,
        off_policy_correction=None,
        value_clip=torch.inf,
    )
    return SimpleNamespace(
        algorithm=algorithm,
        micro_train_batch_size_per_gpu=size,
        micro_forward_batch_size_per_gpu=size,
        max_tokens_per_microbatch=tokens_of_a_micro_batch(case) if by_tokens else -1,
    )


def tokens_of_a_micro_batch(case: Case) -> int:
    """Return a limit that makes one micro-batch if the case has one."""
    replicas = (case.rows[d :: case.dp] for d in range(case.dp))
    return -(-max(sum(map(len, rows)) for rows in replicas) // case.micro_batches)
