"""The step of `swift rlhf --rlhf_type grpo`, which a recipe judges.

Legend: B rows.
"""

from collections.abc import Sequence
from typing import Any

import torch
from accelerate.utils import gather
from torch.distributed.device_mesh import DeviceMesh

from harness.candidates.published.ms_swift import released
from harness.candidates.published.ms_swift.arguments import arguments, template
from harness.candidates.published.ms_swift.formulas import EPSILON, LONGEST
from harness.candidates.published.ms_swift.policy import encoded, sharing, step
from harness.candidates.published.ms_swift.recipes import (
    KL,
    OLD,
    REFERENCE,
    TEMPERATURE,
)
from harness.recipes.batch import Batch

# At the release's defaults, but for two answers to each prompt, and rollouts that are used twice.
OF_GRPO = vars(released.GRPOArgumentsMixin()) | {
    "beta": KL,
    "disable_dropout": False,
    "epsilon": EPSILON,
    "kl_in_reward": False,
    "log_completions": False,
    "log_entropy": True,
    "max_completion_length": LONGEST,
    "num_completions_to_print": 0,
    "num_generations": 2,
    "num_iterations": 2,
    "reward_weights": None,
    "loss_type": "grpo",
    "scale_rewards": "none",
    "temperature": TEMPERATURE,
    "use_liger_kernel": False,
}


class Trainer(released.GRPOTrainer):  # type: ignore[misc]
    """The released trainer, where answers and their rewards are there already."""

    def prepare_rollout(self) -> None:
        self._prepare_rollout_params()
        self.dynamic_num_samples = self.use_gym_env = False

    def _rollout_samples(self, samples: list[Any]) -> list[Any]:
        return samples

    def _score_completions(self, samples: list[Any]) -> list[Any]:
        self._rewards_per_func = gather(torch.tensor([sample.rewards for sample in samples]))
        return samples

    def _log_rollout(self, samples: list[Any]) -> None:
        """Leave out the log of texts."""


def grpo(
    model: Any,
    batches: Sequence[Batch],
    mesh: DeviceMesh,
    *,
    packed: bool,
    **settings: Any,
) -> Any:
    """Take the step of `GRPOTrainer` in which rollouts are used again.

    The old policy, by which they were made, has other weights.
    """
    sp = mesh["sp"].size()
    # Each rank has rollouts of its own, and all take part in the micro-batches of all.
    micro_batches = len(batches) * sp
    samples = [sample for batch in batches for sample in samples_of(batch)]
    share = len(samples) // sp
    mine = samples[mesh["sp"].get_local_rank() * share :][:share]
    of_case = settings | {
        "per_device_train_batch_size": len(samples) // micro_batches,
        "steps_per_generation": len(batches),
    }
    with sharing(model, mesh, REFERENCE, OLD, packed=packed) as (reference, old):
        trainer = Trainer(
            model,
            reference,
            reward_funcs=["accuracy"],
            args=arguments(len(batches), OF_GRPO | of_case),
            template=template("train", sp, packed=packed),
            train_dataset=[],
        )
        trainer.model = old
        trainer._prepare_inputs(mine)
        trainer.model, trainer._step = model, micro_batches
        logged = step(trainer, model, [mine] * micro_batches)
    entropy = trainer._metrics["train"]["entropy/mean"]
    return logged, {"entropy": torch.tensor(entropy, dtype=logged.dtype).mean()}


def samples_of(batch: Batch) -> list[Any]:
    """Return rows as samples, whose answers begin with their first targets."""
    rewards = batch["rewards"][batch["row"].argsort()].tolist()
    return [
        released.GRPOSample(messages=[], encoded=row, rewards=[reward])
        for row, reward in zip(encoded(batch), rewards, strict=True)
    ]
