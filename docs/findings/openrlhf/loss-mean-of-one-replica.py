"""train/loss_mean is the first replica's share of the loss times the number of replicas.

OpenRLHF 0.11.2. SFTTrainer.fit on two replicas, with fixed losses of the tokens: one of 1 on the
first replica, three of 3 on the second. With --control one replica has all tokens.

    python loss-mean-of-one-replica.py [--control]
"""

import importlib
import sys
import tempfile
import types
from importlib import metadata
from multiprocessing import get_context
from types import SimpleNamespace as Names
from typing import Any, ClassVar

import torch
from torch import distributed as dist
from torch.multiprocessing.spawn import spawn

LOSSES = [[1.0, 3.0, 3.0, 3.0]] if "--control" in sys.argv else [[1.0], [3.0, 3.0, 3.0]]
RANKS = len(LOSSES)
root = metadata.distribution("openrlhf").locate_file("openrlhf")


def released(name: str) -> Any:
    """A module of OpenRLHF, where its packages would import what needs a GPU."""
    for package in ("models", "utils", "trainer"):
        bare = types.ModuleType(f"openrlhf.{package}")
        bare.__path__ = [f"{root}/{package}"]
        sys.modules.setdefault(bare.__name__, bare)
    sys.modules.setdefault("deepspeed", types.ModuleType("deepspeed"))
    return importlib.import_module(name)


class Model(torch.nn.Module):
    """Says the losses of its rank."""

    def __init__(self, losses: list[float]) -> None:
        super().__init__()
        self.log_probs = torch.nn.Parameter(-torch.tensor([losses]))
        self.model = Names(global_steps=1)

    def forward(self, *_: object, **__: object) -> tuple[torch.Tensor, None]:
        return self.log_probs, None


class Strategy:
    """What the trainer asks of it."""

    accumulated_gradient, ring_attn_group = 1, None
    args = Names(
        ds=Names(packing_samples=True),
        eval=Names(steps=-1),
        ckpt=Names(save_steps=-1),
        logger=Names(wandb=Names(key=None), tensorboard_dir=None),
        model=Names(aux_loss_coef=0),
        train=Names(batch_size=RANKS),
    )
    ds_device_mesh: ClassVar = {"dp": Names(get_group=lambda: dist.group.WORLD)}
    is_rank_0 = staticmethod(lambda: False)
    backward = optimizer_step = get_grad_norm = staticmethod(lambda *_: 0.0)

    def all_reduce(self, data: Any) -> Any:
        if isinstance(data, dict):
            return {key: self.all_reduce(value) for key, value in data.items()}
        dist.all_reduce(mean := torch.tensor(float(data)) / RANKS)
        return mean.item()


def work(rank: int, store: str, queue: Any) -> None:
    dist.init_process_group("gloo", f"file://{store}", world_size=RANKS, rank=rank)
    released("openrlhf.models").SFTLoss = released("openrlhf.models.loss").SFTLoss
    trainer_module = released("openrlhf.trainer.sft_trainer")
    mask = torch.ones(1, len(LOSSES[rank]) + 1)
    batch = (torch.zeros_like(mask), torch.ones_like(mask), mask)
    loader = type("Loader", (list,), {"sampler": None})([batch])
    scheduler = Names(get_last_lr=lambda: [0.0])
    trainer = trainer_module.SFTTrainer(
        Model(LOSSES[rank]), Strategy(), None, loader, None, scheduler, max_epochs=1
    )
    trainer.save_logs_and_checkpoints = lambda *given: queue.put((rank, given[3]["loss_mean"]))
    trainer.fit(Strategy.args)
    dist.destroy_process_group()


def main() -> int:
    queue = get_context("spawn").SimpleQueue()
    with tempfile.TemporaryDirectory() as folder:
        spawn(work, (f"{folder}/store", queue), RANKS)
    got = dict(queue.get() for _ in range(RANKS))[0]
    expected = sum(map(sum, LOSSES)) / sum(map(len, LOSSES))
    print(f"expected {expected:.6f}, the mean loss of all tokens")
    print(f"got      {got:.6f}, what rank 0 logs as loss_mean")
    return 0 if abs(got - expected) < 1e-6 else 1


if __name__ == "__main__":
    sys.exit(main())
