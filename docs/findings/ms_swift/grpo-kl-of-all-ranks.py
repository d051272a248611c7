"""GRPO with kl_in_reward (default for RLOO and REINFORCE++) and sequence_parallel_size > 1 fails
at the first training step: the KL of every answer is gathered once for each rank of its sequence

ms-swift 4.6.0. The released split_by_mini_batches and _compute_advantages of GRPOTrainer on two
ranks that share sequences; each has two answers to a prompt. Log-probabilities are data, as a
model is not needed. Run: python grpo-kl-of-all-ranks.py (two processes on the CPU).
With --control the ranks are two replicas, and share no sequence.
"""

import ast
import os
import sys
import tempfile
import typing
from collections import defaultdict
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType, SimpleNamespace

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from accelerate import PartialState
from accelerate.utils import gather

SHARED = 1 if "--control" in sys.argv else 2
SWIFT = Path(find_spec("swift").submodule_search_locations[0])
FUNCTIONS = {
    "nanstd": "utils/torch_utils.py",
    "_split_data_by_steps": "rlhf_trainers/base_rollout_mixin.py",
    "split_by_mini_batches": "rlhf_trainers/rollout_mixin.py",
    "_compute_advantages": "rlhf_trainers/grpo_trainer.py",
}
ARGS = {"advantage_estimator": "rloo", "scale_rewards": "none", "kl_in_reward": True}


def released() -> type:
    """A trainer of the released methods, out of modules that import much beside them."""
    names = {**vars(typing), "torch": torch, "dist": dist, "gather": gather}
    names |= {"GRPOSample": object, "OnPolicySample": object, "to_device": lambda x, **_: x}
    for name, path in FUNCTIONS.items():
        nodes = ast.walk(ast.parse((SWIFT / path).read_text()))
        node = next(node for node in nodes if getattr(node, "name", "") == name)
        exec(compile(ast.Module([node], []), str(SWIFT / path), "exec"), names)
    for name in ("swift", "swift.utils", "swift.rl_core"):
        module = sys.modules[name] = ModuleType(name)
        vars(module).update(__path__=[str(SWIFT.joinpath(*name.split(".")[1:]))])
    sys.modules["swift.utils"].nanstd = names["nanstd"]
    from swift.rl_core import advantage

    names |= {name: getattr(advantage, name) for name in dir(advantage) if name[0] != "_"}
    # The ranks of a sequence, as the released SequenceParallel has them after it is prepared.
    names["sequence_parallel"] = SimpleNamespace(
        world_size=2, sp_world_size=2, rp_world_size=1, sp_group=dist.group.WORLD
    )
    return type("Trainer", (), names)


def rank(index: int, store: str, found) -> None:
    # Accelerate asks for these, though the ranks have met already.
    ranks = {"RANK": str(index), "LOCAL_RANK": str(index), "WORLD_SIZE": "2", "MASTER_ADDR": "::1"}
    os.environ.update(ranks, OMP_NUM_THREADS="1")
    dist.init_process_group("gloo", init_method=store, rank=index, world_size=2)
    PartialState(cpu=True, backend="gloo")
    trainer = released()()
    vars(trainer).update(ARGS, beta=0.1, num_generations=2, dynamic_num_samples=False)
    trainer.reward_func_names, trainer.reward_weights = ["accuracy"], torch.ones(1)
    trainer.model, trainer._metrics = SimpleNamespace(training=True), {"train": defaultdict(list)}
    trainer._logs = {"rewards": defaultdict(list)}
    trainer.args = SimpleNamespace(steps_per_generation=1)
    trainer.accelerator = SimpleNamespace(device="cpu")
    torch.manual_seed(index)
    samples = [torch.randn(2, 3) for _ in range(2)]  # What two policies say of an answer.
    rewards = gather(torch.tensor([1.0, 0.0]))[:, None]

    def step(ranks: int) -> str:
        trainer.template, batches = SimpleNamespace(sequence_parallel_size=ranks), []
        for chunk in trainer.split_by_mini_batches(samples):
            old, reference = torch.stack(chunk, 1)
            data = {"old_per_token_logps": old, "ref_per_token_logps": reference}
            batch = SimpleNamespace(**data, completion_mask=torch.ones_like(old))
            batches.append({"grpo_batch": batch})
        try:
            advantages = trainer._compute_advantages(samples, rewards, batches)
            return f"advantages {[round(a, 2) for a in advantages.tolist()]}"
        except RuntimeError as error:
            return f"RuntimeError: {error}"

    found.put((step(1), step(SHARED)))
    dist.destroy_process_group()


if __name__ == "__main__":
    found = mp.get_context("spawn").SimpleQueue()
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(rank, (f"file://{folder}/store", found), nprocs=2)
    expected, got = found.get()
    print(f"two ranks of two answers, sequence_parallel_size {SHARED}")
    print(f"expected {expected}\ngot      {got}")
    sys.exit(int(got != expected))
