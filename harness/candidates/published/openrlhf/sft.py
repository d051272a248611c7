"""One step of the released `SFTTrainer.fit`."""

from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor
from torch import distributed as dist
from torch.nn import functional as F

from harness.candidates.protocol import Rank
from harness.candidates.published.openrlhf import library
from harness.candidates.published.openrlhf.strategy import Engine, actor_of
from harness.candidates.published.wiring.rows import Padded
from harness.case import Case


class Loader(list[Any]):
    """Micro-batches as SFTDataset collates them: the mask is on the token that predicts."""

    sampler = None

    def __init__(self, batches: list[Padded]) -> None:
        super().__init__(
            (
                batch.ids_BS,
                batch.attended_BS,
                F.pad(batch.targets_BS[:, 1:], (0, 1)).float(),
            )
            for batch in batches
        )


def arguments(case: Case) -> dict[str, Any]:
    """Return the arguments of `train_sft`."""
    return {
        "ckpt": SimpleNamespace(save_steps=-1),
        "eval": SimpleNamespace(steps=-1),
        "logger": SimpleNamespace(
            logging_steps=1, tensorboard_dir=None, wandb=SimpleNamespace(key=None)
        ),
        "model": SimpleNamespace(aux_loss_coef=0.0),
        "train": SimpleNamespace(batch_size=len(case.rows)),
    }


class Trainer(library.SFTTrainer):  # type: ignore[misc]
    """The released trainer, which keeps the values that it would log."""

    def __init__(self, engine: Engine, strategy: Any, rank: Rank, *, mean: bool) -> None:
        super().__init__(
            actor_of(engine),
            strategy,
            None,
            None,
            None,
            SimpleNamespace(get_last_lr=lambda: [0.0]),
            max_epochs=1,
        )
        self.rank, self.mean = rank, mean
        self.reduced: list[float] = []
        self.logged = 0.0
        all_reduce = strategy.all_reduce

        def reduce_and_keep(logs: Any, op: str = "mean") -> Any:
            # `all_reduce` calls itself for each value of a dict.
            result = all_reduce(logs, op)
            if isinstance(logs, dict):
                self.reduced.append(result["gpt_loss"])
            return result

        strategy.all_reduce = reduce_and_keep

    def step(self, batches: list[Padded]) -> Tensor:
        """Run one step up to its gradients -> `loss_mean`, or the mean `gpt_loss`."""
        self.reduced.clear()
        self.model.model.pending_tokens.extend(batch.packed.tokens_T for batch in batches)
        self.train_dataloader = Loader(batches)
        self.fit(self.args)
        logged = torch.tensor(self.logged if self.mean else sum(self.reduced) / len(batches))
        # Only the first rank has a log.
        dist.broadcast(logged, group=self.rank.world, group_src=0)
        return logged

    def save_logs_and_checkpoints(self, *args: Any) -> None:
        self.logged = args[3]["loss_mean"]
