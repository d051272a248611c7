"""With max_tokens_per_microbatch the logged critic_loss is divided by the number of micro-batches.

skyrl 0.4.0. The released forward_backward of CriticWorkerBase on one rank. Values are 2, returns
are 0, so the loss is 0.5 * 2 ** 2. Four rows are trained at once, then in a micro-batch each.
With --control micro-batches are cut by rows, without max_tokens_per_microbatch.
Run: python critic-loss-over-micro-batches.py [--control]
"""

import ast
import importlib.util
import sys
import typing
from collections import defaultdict
from contextlib import nullcontext
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import torch

PLACE = importlib.util.find_spec("skyrl").submodule_search_locations[0]
ROWS, TOKENS = 4, 3


def package(*names: str, **given: Any) -> None:
    """A package of the true path, without what its __init__ imports."""
    module = sys.modules[".".join(names)] = ModuleType(".".join(names))
    vars(module).update(given, __path__=[str(Path(PLACE, *names[1:]))])


def lifted(path: str, name: str, names: dict[str, Any]) -> Any:
    """A released class or function out of a module that imports ray."""
    tree = ast.parse(Path(PLACE, path).read_text())
    tree.body = [node for node in tree.body if getattr(node, "name", None) == name]
    exec(compile(tree, path, "exec"), names)
    return names[name]


train = ("skyrl", "backends", "skyrl_train")
for names in (train[:1], train[:2], train, (*train, "utils"), (*train, "workers")):
    package(*names)
package(*train, "distributed")
package(*train, "distributed", "strategy", DistributedStrategy=object)
for names in (("skyrl", "train"), ("skyrl", "train", "dataset")):
    package(*names)
from skyrl.backends.skyrl_train import training_batch
from skyrl.backends.skyrl_train.workers import worker_utils

NAMES = {**vars(typing), **vars(worker_utils), **vars(training_batch), "nn": torch.nn}
NAMES |= {"torch": torch, "defaultdict": defaultdict, "WorkerOutput": SimpleNamespace}
NAMES |= dict.fromkeys(("LRScheduler", "Optimizer", "MeshRank", "AlgorithmConfig"), object)
loss = lifted("backends/skyrl_train/utils/ppo_utils.py", "ppo_critic_loss", dict(NAMES))
NAMES |= {"Worker": SimpleNamespace, "ppo_critic_loss": loss}
Critic = lifted("backends/skyrl_train/workers/worker.py", "CriticWorkerBase", NAMES)


class Model(torch.nn.Module):
    """A critic that says 2 of every token."""

    def __init__(self) -> None:
        super().__init__()
        self.value = torch.nn.Parameter(torch.tensor(2.0))

    def forward(self, sequences: Any, num_actions: int, **_: Any) -> Any:
        return self.value.expand(len(sequences), num_actions), None


def step(tokens: int) -> tuple[float, float]:
    """What is logged, and the gradient."""
    algorithm = SimpleNamespace(value_clip=100.0)
    cfg = SimpleNamespace(algorithm=algorithm, max_tokens_per_microbatch=tokens)
    cfg.micro_train_batch_size_per_gpu = 1
    critic = Critic(cfg=cfg)
    critic.model, critic.scheduler = Model(), SimpleNamespace(get_last_lr=lambda: [0.0])
    critic.strategy = SimpleNamespace(
        backward=lambda loss, *_: loss.backward(), all_reduce=lambda metrics, **_: metrics
    )
    table = {"sequences": (ROWS, TOKENS), "attention_mask": (ROWS, TOKENS)}
    data = {name: torch.ones(shape, dtype=torch.long) for name, shape in table.items()}
    data |= {"values": torch.zeros(ROWS, 2), "returns": torch.zeros(ROWS, 2)}
    batch = training_batch.TrainingInputBatch({**data, "loss_mask": torch.ones(ROWS, 2)})
    batch.metadata = {"response_length": 2}
    # It moves rows to a GPU and casts for one.
    torch.cuda.current_device = lambda: "cpu"
    torch.autocast = lambda **_: nullcontext()
    logged = critic.forward_backward(batch).metrics["critic_loss"]
    # As optim_step does.
    parts = max(critic._micro_batches_accumulated, 1)
    return logged, critic.model.value.grad.item() / parts


expected, got = step(ROWS * TOKENS), step(-1 if "--control" in sys.argv else TOKENS)
print(f"expected critic_loss {expected[0]}, gradient {expected[1]}")
print(f"got      critic_loss {got[0]}, gradient {got[1]}")
sys.exit(got != expected)
