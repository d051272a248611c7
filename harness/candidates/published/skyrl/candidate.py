"""Steps of skyrl's workers over ranks that share a sequence."""

from functools import partial
from typing import Any

import torch

from harness import huggingface
from harness.candidates.protocol import Emit, Rank
from harness.candidates.published.flash_stand_in import flash
from harness.candidates.published.library import Step
from harness.candidates.published.skyrl.batch import REDUCTIONS, reinforced, supervised, table
from harness.candidates.published.skyrl.model import Critic, Policy
from harness.candidates.published.skyrl.worker import Worker
from harness.candidates.published.wiring.gradients import emit_gradients, reduce, steps
from harness.case import Case


def sft(case: Case, rank: Rank, emit: Emit, *, fused: bool = True, unpadded: bool = True) -> None:
    """Train a policy below skyrl's SFTTrainer."""
    model = Policy(case, rank, fused=fused, unpadded=unpadded)
    step(case, rank, emit, model, supervised(case, rank), "cross_entropy", "loss", fused=fused)


def own(case: Case, rank: Rank, emit: Emit, *, unpadded: bool = True) -> None:
    """Train a policy on a user's own tables."""
    model = Policy(case, rank, fused=True, unpadded=unpadded)
    step(case, rank, emit, model, table(case, rank), "cross_entropy", "loss")


def rl(
    case: Case,
    rank: Rank,
    emit: Emit,
    *,
    loss: str = "policy",
    reduction: str | None = None,
    by_tokens: bool = False,
) -> None:
    """Train a policy below skyrl's RayPPOTrainer."""
    model = Policy(case, rank, fused=True, unpadded=True)
    batch = reinforced(case, rank, reduction or REDUCTIONS[case.loss])
    if loss == "kl":
        # With advantages of zero, only the penalty remains.
        batch["advantages"] = torch.zeros_like(batch["advantages"])
    step(case, rank, emit, model, batch, loss, "final_loss", by_tokens=by_tokens)


def critic(case: Case, rank: Rank, emit: Emit, *, by_tokens: bool = False) -> None:
    """Train a critic below skyrl's RayPPOTrainer."""
    model, batch = Critic(case, rank), reinforced(case, rank, "token_mean")
    step(case, rank, emit, model, batch, "critic", "critic_loss", by_tokens=by_tokens)


def step(
    case: Case,
    rank: Rank,
    emit: Emit,
    model: Policy | Critic,
    batch: Any,
    loss: str,
    logged: str,
    *,
    fused: bool = True,
    by_tokens: bool = False,
) -> None:
    """Run old log probabilities if needed, forward_backward and optim_step, for every step."""
    parameters = huggingface.parameters(model.text, case)
    worker = Worker(case, rank, model, loss, by_tokens=by_tokens)
    with model.sharing(rank):
        for step_emit in steps(case, parameters, emit):
            if loss in ("policy", "kl"):
                batch["action_log_probs"] = worker.forward(batch)
            metrics = worker.forward_backward(batch, step_emit)
            # FSDP would have averaged by now.
            reduce(parameters, rank.world, mean=True)
            worker.released.optim_step()
    if fused:
        flash.must_have_run()
    emit("loss", torch.tensor(metrics[logged]))
    emit_gradients(parameters, emit)


STEPS: dict[str, Step] = {
    "sft": sft,
    "sft-padded": partial(sft, unpadded=False),
    "sft-sdpa": partial(sft, fused=False, unpadded=False),
    "table": own,
    "table-padded": partial(own, unpadded=False),
    "rl": rl,
    "rl-prompt-mean": partial(rl, reduction="prompt_mean"),
    "rl-tokens": partial(rl, by_tokens=True),
    "rl-kl": partial(rl, loss="kl"),
    "critic": critic,
    "critic-tokens": partial(critic, by_tokens=True),
}
