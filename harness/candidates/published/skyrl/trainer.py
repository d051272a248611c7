"""Released methods of `RayPPOTrainer`, which each rank calls on the rows of all replicas."""

from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor
from torch import distributed as dist
from torch.distributed.device_mesh import DeviceMesh

from harness.candidates.published.skyrl import library
from harness.candidates.published.skyrl.rollouts import Rollout, columns, generated
from harness.candidates.published.skyrl.worker import Worker


class Trainer:
    """What the released methods read, and the workers of each role."""

    convert_to_training_input = library.of_trainer("convert_to_training_input")
    fwd_logprobs_values_reward = library.of_trainer("fwd_logprobs_values_reward")
    _execute_forward_pass = library.of_trainer("_execute_forward_pass")
    _execute_training_step = library.of_trainer("_execute_training_step")
    _normalize_advantages = library.of_trainer("_normalize_advantages")

    def __init__(
        self, workers: Mapping[str, Worker], mesh: DeviceMesh, config: Any, rows: Sequence[Rollout]
    ) -> None:
        self.dispatch = Dispatch(workers, mesh)
        self.has_critic, self.ref_model = "critic" in workers, workers.get("ref")
        self.cfg = SimpleNamespace(
            trainer=SimpleNamespace(
                **vars(config),
                critic=SimpleNamespace(model=SimpleNamespace(path="a critic")),
                train_batch_size=len(rows),
                policy_mini_batch_size=len(rows),
                critic_mini_batch_size=len(rows),
                update_epochs_per_batch=1,
                recompute_old_logprobs_per_minibatch=True,
            ),
            generator=SimpleNamespace(n_samples_per_prompt=1, step_wise_trajectories=False),
        )
        self.tokenizer = SimpleNamespace(pad_token_id=0)
        self.all_metrics: dict[str, float] = {}
        names = [str(number) for number in range(len(rows))]
        self.data = self.convert_to_training_input(generated(rows), names)
        self.data.update(columns(rows, self.data.metadata["response_length"]))

    def _skip_policy_forward(self, _: Any) -> bool:
        """Skip it only where there is no policy."""
        return "policy" not in self.dispatch.workers

    def forward(self) -> None:
        """Compute old log-probabilities, those of a reference, or old values."""
        self.fwd_logprobs_values_reward(self.data)

    def train(self, role: str) -> dict[str, Tensor]:
        """Take one step -> what is logged of it."""
        logged = self._execute_training_step(role, self.data)
        return {name: torch.tensor(value) for name, value in logged.items()}

    def average(self, key: str) -> Tensor:
        """Return the mean over all targets of what was computed of each, times its advantage."""
        is_target_BA = self.data["loss_mask"]
        sum_of_all = (self.data[key] * self.data["advantages"] * is_target_BA).sum()
        mean: Tensor = sum_of_all / is_target_BA.sum().clamp(min=1)
        return mean


class Dispatch:
    """Calls workers on this rank, in the place of one that calls those of all ranks by ray."""

    def __init__(self, workers: Mapping[str, Worker], mesh: DeviceMesh) -> None:
        self.workers, self.mesh = workers, mesh

    def get_lcm_dp_size(self) -> int:
        return self.mesh["dp"].size()

    def empty_cache(self, *_: str) -> None:
        """Do nothing: there is no GPU."""

    def stage_data(self, _: str, data: Any, boundaries: list[tuple[int, int]]) -> Any:
        return library.MeshDispatch.stage_chunks(self.mesh["dp"].size(), data, boundaries)

    def forward(self, role: str, data: Any) -> Any:
        (chunks,) = self.stage_data(role, data, [(0, len(data))])
        return self.forward_from_staged(role, chunks)

    def forward_from_staged(self, role: str, chunks: Sequence[Any]) -> Any:
        return self.collected(self.workers[role].forward(self.own(chunks)))

    def forward_backward_from_staged(self, role: str, chunks: Sequence[Any]) -> Any:
        return self.collected(self.workers[role].forward_backward(self.own(chunks)))

    def optim_step(self, role: str) -> Any:
        return self.workers[role].released.optim_step()

    def own(self, chunks: Sequence[Any]) -> Any:
        return chunks[self.mesh["dp"].get_local_rank()]

    def collected(self, output: Any) -> Any:
        """Return what all ranks have made, put together as the release does it."""
        made = [vars(output)] * self.mesh.size()
        dist.all_gather_object(made, vars(output))
        sp = self.mesh["sp"].size()
        actors = [
            SimpleNamespace(
                rank=library.MeshRank(
                    dp=rank // sp,
                    sp=rank % sp,
                    tp=0,
                    pp=0,
                    world_size=len(made),
                    dp_size=len(made) // sp,
                    pp_size=1,
                )
            )
            for rank in range(len(made))
        ]
        return library.WorkerOutput.cat(actors, [library.WorkerOutput(**each) for each in made])
