"""A worker that trains the model of a case, and emits what it computes."""

from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor

from harness.candidates.protocol import Emit, Rank
from harness.candidates.published.skyrl import library
from harness.candidates.published.skyrl.batch import TOKENS, rows_of_a_micro_batch
from harness.candidates.published.skyrl.model import Critic, Policy
from harness.candidates.published.skyrl.worker import Ranks, Worker, config
from harness.candidates.published.wiring.gradients import silent
from harness.candidates.published.wiring.rows import PADDING
from harness.case import Case


class EmittingWorker:
    """A worker whose model gets the token numbers of each micro-batch."""

    def __init__(
        self, case: Case, rank: Rank, model: Policy | Critic, loss: str, *, by_tokens: bool
    ) -> None:
        self.model = model
        self.emit: Emit = silent
        tokens = tokens_of_a_micro_batch(case) if by_tokens else -1
        self.worker = Worker(
            library.CriticWorker if isinstance(model, Critic) else library.PolicyWorker,
            model.module,
            config(rows_of_a_micro_batch(case), tokens, **algorithm(loss)),
            Ranks(rank.world, rank.dp),
        )

    def forward(self, batch: Any) -> Tensor:
        """Return log probabilities of responses before a step; emit nothing."""
        self.model.emit, self.model.tokens_BS = silent, None
        outputs = self.worker.forward(batch).loss_fn_outputs
        return torch.tensor([each["logprobs"] for each in outputs])

    def forward_backward(self, batch: Any, emit: Emit) -> dict[str, float]:
        """Run forward and backward of a batch -> the logged metrics."""
        self.emit = emit
        names = self.worker.released.forward_backward.__func__.__globals__
        iterator = SimpleNamespace(batch_to_experience=self.experience)
        with patch.dict(names, BaseBatchIterator=iterator):
            metrics: dict[str, float] = self.worker.forward_backward(batch).metrics
        return metrics

    def optim_step(self) -> None:
        self.worker.released.optim_step()

    def experience(self, micro_batch: Any) -> Any:
        """Return the released iterator's experience, and give its token numbers to the model."""
        ids_BS = micro_batch["sequences"]
        # No rank owns the tokens of a micro-batch of padding: they would count as work not shared.
        self.model.emit = self.emit if TOKENS in micro_batch else silent
        self.model.tokens_BS = micro_batch.get(TOKENS, torch.full_like(ids_BS, PADDING))
        return library.worker_utils.BaseBatchIterator.batch_to_experience(micro_batch)


def algorithm(loss: str) -> dict[str, Any]:
    """Return the options of a loss."""
    return {
        "policy_loss_type": "cross_entropy" if loss == "cross_entropy" else "cispo",
        "use_kl_loss": loss == "kl",
        "kl_estimator_type": "abs",
        "kl_loss_coef": 1.0,
        "cispo": SimpleNamespace(cispo_eps_clip_low=0, cispo_eps_clip_high=5, cispo_anchor="old"),
        "value_clip": torch.inf,
    }


def tokens_of_a_micro_batch(case: Case) -> int:
    """Return a limit that makes one micro-batch if the case has one."""
    replicas = (case.rows[d :: case.dp] for d in range(case.dp))
    return -(-max(sum(map(len, rows)) for rows in replicas) // case.micro_batches)
