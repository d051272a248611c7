"""With strategy fsdp and max_tokens_per_microbatch the logged policy_kl and policy_entropy are
plain means over micro-batches, of unequal sizes and of padding.

skyrl 0.4.0. The released forward_backward of PolicyWorkerBase on two ranks. All tokens have an
entropy of 1. The KL is 1 in one row of six, the long one, else 0. The long row is a micro-batch,
the two beside it are one, the other rank's three are one, and one is padding. With --control
micro-batches are cut by rows, without max_tokens_per_microbatch.
"""

import ast
import importlib.util
import os
import sys
import tempfile
import typing
from collections import defaultdict
from contextlib import nullcontext
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import torch
from torch import distributed as dist

PLACE = importlib.util.find_spec("skyrl").submodule_search_locations[0]
TOKENS = ([6, 1, 1], [1, 1, 1])  # How many the responses of each rank have.
TRAIN = "skyrl.backends.skyrl_train"


def package(name: str, **given: Any) -> None:
    """A package of the true path, without what its __init__ imports."""
    module = sys.modules[name] = ModuleType(name)
    vars(module).update(given, __path__=[str(Path(PLACE, *name.split(".")[1:]))])


def lifted(path: str, name: str) -> Any:
    """A released class or function out of a module that imports ray."""
    nodes = ast.walk(ast.parse(Path(PLACE, "backends/skyrl_train", path).read_text()))
    (node,) = (node for node in nodes if getattr(node, "name", None) == name)
    exec(compile(ast.Module([node], []), path, "exec"), NAMES)
    return NAMES[name]


for name in ("skyrl", "skyrl.backends", TRAIN, "skyrl.train", "skyrl.train.dataset"):
    package(name)
for name in ("utils", "workers", "distributed"):
    package(f"{TRAIN}.{name}")
package(f"{TRAIN}.distributed.strategy", DistributedStrategy=object)
from skyrl.backends.skyrl_train import training_batch
from skyrl.backends.skyrl_train.workers import worker_utils

NAMES = {**vars(typing), **vars(worker_utils), **vars(training_batch), "nn": torch.nn}
NAMES |= {"defaultdict": defaultdict, "WorkerOutput": SimpleNamespace, "DataT": Any}
NAMES |= dict.fromkeys(("LRScheduler", "Optimizer", "MeshRank"), object)
NAMES["PolicyLossRegistry"] = {"zero": lambda log_probs, *_, **__: (0 * log_probs.sum(), {})}
NAMES["Worker"] = SimpleNamespace
lifted("utils/ppo_utils.py", "compute_approx_kl")
Policy = lifted("workers/worker.py", "PolicyWorkerBase")
# It moves rows to a GPU and casts for one.
torch.cuda.current_device, torch.autocast = lambda: "cpu", lambda **_: nullcontext()
Strategy = type("Strategy", (), {"all_reduce": lifted("distributed/strategy.py", "all_reduce")})


def step(tokens: int) -> str:
    """What is logged, and the gradient."""
    algorithm = SimpleNamespace(policy_loss_type="zero", temperature=1.0, kl_loss_coef=1.0)
    algorithm.enable_sample_support_replay = algorithm.use_entropy_loss = False
    algorithm.use_kl_loss, algorithm.kl_estimator_type = True, "abs"
    cfg = SimpleNamespace(algorithm=algorithm, max_tokens_per_microbatch=tokens)
    cfg.micro_train_batch_size_per_gpu = 1
    policy = Policy(cfg=cfg)
    policy.model, policy.strategy = torch.nn.Module(), Strategy()
    # Each token has the same log probability.
    x = torch.tensor(-1.0, requires_grad=True)
    policy.model.forward = lambda ids, n, **_: (x.expand(len(ids), n), {"entropy": ids / ids})
    policy.strategy.backward = lambda loss, *_: loss.backward()
    policy.mesh_rank = SimpleNamespace(dp_size=2)
    policy.scheduler = SimpleNamespace(get_last_lr=lambda: [0.0])
    policy.device_mesh = SimpleNamespace(get_group=lambda _: dist.group.WORLD)
    mask = torch.arange(-1, 6) < torch.tensor(TOKENS[rank])[:, None]
    data = {"sequences": torch.ones(3, 7).long(), "attention_mask": mask.long()}
    data["loss_mask"] = mask[:, 1:].float()
    data["base_action_log_probs"] = -1 - mask[:, 6:].expand(3, 6).float()
    batch = training_batch.TrainingInputBatch(data)
    batch.metadata = {"response_length": 6}
    logged = policy.forward_backward(batch).metrics
    dist.all_reduce(gradient := x.grad / 2)
    shown = "policy_kl {policy_kl:.3f}, policy_entropy {policy_entropy:.3f}".format_map(logged)
    return f"{shown}, gradient {gradient:.3f}"


store = tempfile.mkdtemp()
rank = int(not os.fork())  # This process is one of two.
dist.init_process_group("gloo", f"file://{store}/store", rank=rank, world_size=2)
expected, got = step(-1), step(-1 if "--control" in sys.argv else 7)
dist.destroy_process_group()
if rank == 0:
    print(f"expected {expected}\ngot      {got}")
    os.wait()
    sys.exit(expected != got)
