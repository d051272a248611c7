"""Steps of skyrl's workers over ranks that share a sequence."""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from harness import huggingface
from harness.candidates.protocol import Emit, Rank
from harness.candidates.published.flash_stand_in import flash
from harness.candidates.published.library import Step
from harness.candidates.published.skyrl.batch import REDUCTIONS, reinforced, supervised, table
from harness.candidates.published.skyrl.emitting import EmittingWorker
from harness.candidates.published.skyrl.model import Critic, Policy
from harness.candidates.published.skyrl.recipes import OF_TEMPERED, OF_TOKENS, RECIPES
from harness.candidates.published.skyrl.reinforced import policy, value
from harness.candidates.published.wiring.gradients import emit_gradients, reduce, steps
from harness.case import Case
from harness.recipes import step as recipe_step


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
    worker = EmittingWorker(case, rank, model, loss, by_tokens=by_tokens)
    with model.sharing(rank):
        for step_emit in steps(case, parameters, emit):
            if loss in ("policy", "kl"):
                batch["action_log_probs"] = worker.forward(batch)
            metrics = worker.forward_backward(batch, step_emit)
            # FSDP would have averaged by now.
            reduce(parameters, rank.world, mean=True)
            worker.optim_step()
    if fused:
        flash.must_have_run()
    emit("loss", torch.tensor(metrics[logged]))
    emit_gradients(parameters, emit)


def taking(key: str, of: Callable[..., Any], **options: Any) -> Step:
    """Return the step of an entry with a recipe, which gets its rows as micro-batches."""
    return recipe_step(RECIPES[key], micro_batches=True)(partial(of, **options)).run


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
    "policy": taking("policy", policy),
    "policy-tokens": taking("policy-tokens", policy, by_tokens=True, **OF_TOKENS),
    "policy-tokens-log": taking(
        "policy-tokens-log", policy, by_tokens=True, logs=True, **OF_TOKENS
    ),
    "policy-own": taking("policy-own", policy, own=True),
    "policy-tempered": taking("policy-tempered", policy, own=True, **OF_TEMPERED),
    "value": taking("value", value),
    "value-own": taking("value-own", value, own=True),
}
