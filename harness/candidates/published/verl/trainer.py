"""Released methods of verl's `RayPPOTrainer`, called on each rank with the rows of its replica."""

from types import SimpleNamespace
from typing import Any

import torch
from torch import distributed as dist
from torch.distributed.device_mesh import DeviceMesh

from harness.candidates.published.verl import released
from harness.candidates.published.verl.worker import Options, Worker


class Trainer:
    """What the methods of `RayPPOTrainer` read, and one worker for the group of a role."""

    ref_in_actor = False

    def __init__(
        self, worker: Worker, mesh: DeviceMesh, config: Any, distillation: Any = None
    ) -> None:
        self.distillation_config = distillation
        self.worker, self.group = worker, mesh["sp"].get_group()
        rollout = SimpleNamespace(multi_turn=SimpleNamespace(enable=False), temperature=1.0, n=1)
        of_actor = SimpleNamespace(rollout=rollout, actor=config)
        self.config = Options(actor_rollout_ref=of_actor, critic=config, distillation=distillation)
        self.actor_rollout_wg = SimpleNamespace(
            compute_log_prob=self.infer, update_actor=self.update
        )
        self.ref_policy_wg = SimpleNamespace(compute_ref_log_prob=self.infer)
        self.critic_wg = SimpleNamespace(
            infer_batch=lambda data: Ready(self.infer(data)),
            train_mini_batch=lambda data: Ready(self.update(data)),
        )

    def call(self, name: str, rows: Any) -> Any:
        """Call a released method -> what it returns, or what the trainer logs of it."""
        made = released.of_trainer(name)(self, rows)
        logged = getattr(made, "meta_info", {}).get("metrics")
        if logged is None:
            return made
        reduced = released.reduce_metrics(logged)
        return {name: torch.tensor(float(value)) for name, value in reduced.items()}

    def update(self, data: Any) -> Any:
        made = self.collected(self.worker.released.train_mini_batch(data))
        self.worker.restore()
        return made

    def infer(self, data: Any) -> Any:
        return self.collected(self.worker.released.infer_batch(data))

    def collected(self, made: Any) -> Any:
        """Return what the first rank of those that share a sequence has made."""
        box = [made]
        dist.broadcast_object_list(box, group=self.group, group_src=0)
        return box[0]


class Ready:
    """A future that is done."""

    def __init__(self, made: Any) -> None:
        self.made = made

    def get(self) -> Any:
        return self.made
