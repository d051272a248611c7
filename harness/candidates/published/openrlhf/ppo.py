"""One step of the released `ActorPPOTrainer.ppo_train`, at a ratio of one."""

from collections.abc import Callable
from itertools import accumulate
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor

from harness.candidates.published.openrlhf import library
from harness.candidates.published.openrlhf.strategy import Engine, actor_of
from harness.candidates.published.wiring.gradients import silent, total
from harness.candidates.published.wiring.rows import Padded
from harness.case import Case

KL_COEFFICIENT = 1.0


def arguments(case: Case, *, policy_loss: str, dynamic: bool, kl: bool) -> dict[str, Any]:
    """Return the arguments of `train_ppo_ray`."""
    return {
        "actor": SimpleNamespace(
            entropy_coef=None,
            loss_agg_mode="seq-mean-token-mean" if case.loss == "row-mean" else "token-mean",
            policy_loss_type=policy_loss,
        ),
        "algo": SimpleNamespace(
            kl=SimpleNamespace(use_loss=kl, init_coef=1.0, estimator="k2", unbiased_gradient=False)
        ),
        "rollout": SimpleNamespace(batch_size=len(case.rows), n_samples_per_prompt=1),
        "train": SimpleNamespace(
            batch_size=len(case.rows),
            dynamic_batch_enable=dynamic,
            # Just enough for the longest row.
            max_tokens_per_gpu=-(-max(map(len, case.rows)) // case.sp),
            max_epochs=1,
        ),
    }


class AtRatioOne:
    """The released policy loss, where each token adds its own loss to the value.

    At a ratio of one and an advantage of one, every released token adds -1, with the gradient of
    its loss.
    """

    def __init__(self, args: SimpleNamespace) -> None:
        self.released = library.losses.PolicyLoss(
            token_level_loss=args.actor.loss_agg_mode == "token-mean",
            policy_loss_type=args.actor.policy_loss_type,
        )

    def __call__(self, log_probs: Tensor, *args: Any, **kwargs: Any) -> Any:
        aggregate = library.losses.aggregate_loss

        def aggregate_moved(loss: Tensor, mask: Tensor, **options: Any) -> Tensor:
            moved_loss: Tensor = aggregate(loss - (log_probs + loss).detach(), mask, **options)
            return moved_loss

        with patch.object(library.losses, "aggregate_loss", aggregate_moved):
            return self.released(log_probs, *args, **kwargs)


class Trainer:
    """A trainer with only what the released methods read."""

    def __init__(self, engine: Engine, strategy: Any, *, logs: bool) -> None:
        self.logs = logs
        self.released = library.methods_of_ppo_trainer(self.load)
        self.engine, self.strategy, self.args = engine, strategy, strategy.args
        self.actor = actor_of(engine)
        self.actor_loss_fn = AtRatioOne(self.args)
        self.actor_scheduler = SimpleNamespace(get_last_lr=lambda: [0.0])
        self.actor_optim = self.ema_model = None
        self.aux_loss = self.dataloader_pin_memory = False
        self.max_epochs = 1
        self.replay_buffer: Any = None
        # The policy loss of each micro-batch.
        self.losses: list[Tensor] = []
        # The token numbers of each row in the buffer, and the sizes of micro-batches.
        self.rows: list[Tensor] = []
        self.sizes: list[int] = []

    def step(self, batches: list[Padded]) -> Tensor:
        """Run one step up to its gradients -> the loss that it logs, or the sum of its losses."""
        self.replay_buffer = library.replay_buffer(dynamic=self.args.train.dynamic_batch_enable)
        self.rows, self.sizes = [], [len(batch.ids_BS) for batch in batches]
        step_emit, self.engine.emit = self.engine.emit, silent
        for batch in batches:
            self.replay_buffer.append(self.experience(batch))
            self.rows.extend(row.tokens_T for row in batch.rows)
        for number, item in enumerate(self.replay_buffer.items):
            item.index = [number]
        self.engine.emit = step_emit
        self.losses.clear()
        status = self.released["ppo_train"](self, KL_COEFFICIENT)
        if self.logs:
            return torch.tensor(status["policy_loss"])
        share = torch.stack(self.losses).sum() / self.engine.accumulated
        return total(share, self.engine.rank.world) / self.engine.case.ranks

    def training_step(self, *args: Any) -> dict[str, Any]:
        """Run the released step of a micro-batch, and keep its policy loss."""
        status: dict[str, Any] = self.released["training_step"](self, *args)
        self.losses.append(status["metrics"]["policy_loss"])
        return status

    def experience(self, batch: Padded) -> Any:
        """Return an experience of these rows, as if the trained policy had generated them."""
        self.engine.pending_tokens.append(batch.packed.tokens_T)
        actions_BA = batch.targets_BS[:, 1:]
        with torch.no_grad():
            log_probs_BA = self.actor(
                batch.ids_BS,
                actions_BA,
                batch.attended_BS,
                ring_attn_group=self.strategy.ring_attn_group,
            )
        return library.experience.Experience(
            sequences=batch.ids_BS,
            attention_mask=batch.attended_BS,
            action_mask=actions_BA,
            action_log_probs=log_probs_BA,
            **self.rewards(log_probs_BA),
            total_length=batch.attended_BS.sum(1),
        )

    def rewards(self, log_probs_BA: Tensor) -> dict[str, Tensor]:
        """Return values with which each action's gradient is that of its loss."""
        ones_BA = torch.ones_like(log_probs_BA)
        if self.args.algo.kl.use_loss:
            # Half the square of a log ratio of -1; the policy loss has no gradient.
            return {
                "advantages": torch.zeros_like(ones_BA),
                "base_action_log_probs": log_probs_BA + ones_BA,
            }
        return {"advantages": ones_BA}

    def load(self, buffer: Any, *, collate_fn: Callable[[list[Any]], Any], **_: Any) -> list[Any]:
        """Return the micro-batches of the case, whose sizes may differ, or those of the buffer."""
        items = [buffer[i] for i in range(len(buffer))]
        sizes = [1] * len(items) if self.args.train.dynamic_batch_enable else self.sizes
        starts = accumulate(sizes, initial=0)
        batches = [collate_fn(items[i : i + size]) for i, size in zip(starts, sizes, strict=False)]
        for batch in batches:
            self.engine.pending_tokens.append(torch.cat([self.rows[i] for i in batch.index]))
        return batches
