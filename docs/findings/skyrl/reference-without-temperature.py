"""With strategy fsdp the reference ignores the temperature, and the KL penalty compares two
temperatures.

skyrl 0.4.0, transformers 5.16.1. The released forward of RefWorkerBase and forward_backward of
PolicyWorkerBase. The reference is the policy itself, so their KL is 0, and nothing pulls the
policy. The policy loss is 0 and kl_loss_coef is 1. With --control the temperature is 1.
Run: python reference-without-temperature.py [--control]
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
from transformers import LlamaConfig, LlamaForCausalLM

PLACE = importlib.util.find_spec("skyrl").submodule_search_locations[0]
TRAIN = "skyrl.backends.skyrl_train"
WORKER = "backends/skyrl_train/workers/worker.py"


def package(name: str, **given: Any) -> None:
    """A package of the true path, without what its __init__ imports."""
    module = sys.modules[name] = ModuleType(name)
    vars(module).update(given, __path__=[str(Path(PLACE, *name.split(".")[1:]))])


def lifted(path: str, name: str, names: dict[str, Any]) -> Any:
    """A released class or function out of a module that imports ray."""
    tree = ast.parse(Path(PLACE, path).read_text())
    tree.body = [node for node in tree.body if getattr(node, "name", None) == name]
    exec(compile(tree, path, "exec"), names)
    return names[name]


for name in ("skyrl", "skyrl.backends", TRAIN, "skyrl.train", "skyrl.train.dataset"):
    package(name)
for name in ("utils", "workers", "distributed"):
    package(f"{TRAIN}.{name}")
package(f"{TRAIN}.distributed.strategy", DistributedStrategy=object)
for name in ("flash_attn", "peft.tuners"):
    package(name)
package("flash_attn.bert_padding", pad_input=None, unpad_input=None)
package("peft", LoraConfig=None, TaskType=None, get_peft_model=None)
package("peft.tuners.lora", LoraLayer=None)
from skyrl.backends.skyrl_train import training_batch
from skyrl.backends.skyrl_train.utils import torch_utils
from skyrl.backends.skyrl_train.workers import model_wrapper, worker_utils

NAMES = {**vars(typing), **vars(torch_utils), **vars(worker_utils), **vars(training_batch)}
NAMES |= {"nn": torch.nn, "defaultdict": defaultdict, "WorkerOutput": SimpleNamespace}
NAMES |= dict.fromkeys(("LRScheduler", "Optimizer", "MeshRank", "DistributedStrategy"), object)
NAMES["PolicyLossRegistry"] = {"zero": lambda log_probs, *_, **__: (0 * log_probs.sum(), {})}
NAMES["Worker"] = SimpleNamespace
lifted("backends/skyrl_train/utils/ppo_utils.py", "compute_approx_kl", NAMES)
Policy, Reference = (lifted(WORKER, f"{name}WorkerBase", NAMES) for name in ("Policy", "Ref"))
# Workers move rows to a GPU and cast for one.
torch.cuda.current_device, torch.autocast = lambda: "cpu", lambda **_: nullcontext()

torch.manual_seed(0)
sizes = {"vocab_size": 16, "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
config = LlamaConfig(**sizes, initializer_range=0.3, attn_implementation="sdpa")
model = model_wrapper.HFModelWrapper(LlamaForCausalLM(config))

algorithm = SimpleNamespace(policy_loss_type="zero", use_entropy_loss=False)
algorithm.temperature = 1.0 if "--control" in sys.argv else 0.6
algorithm.enable_sample_support_replay = False
algorithm.use_kl_loss, algorithm.kl_loss_coef, algorithm.kl_estimator_type = True, 1.0, "k3"
cfg = SimpleNamespace(algorithm=algorithm, max_tokens_per_microbatch=-1)
cfg.micro_train_batch_size_per_gpu = cfg.micro_forward_batch_size_per_gpu = 2
policy, reference = Policy(cfg=cfg), Reference(cfg=cfg)
policy.model = reference.model = model
policy.scheduler = SimpleNamespace(get_last_lr=lambda: [0.0])
policy.mesh_rank = SimpleNamespace(dp_size=1)
policy.device_mesh = SimpleNamespace(get_group=lambda _: None)
policy.strategy = SimpleNamespace(
    backward=lambda loss, *_: loss.backward(), all_reduce=lambda metrics, **_: metrics
)

data = {"sequences": torch.randint(16, (2, 6)), "attention_mask": torch.ones(2, 6).long()}
batch = training_batch.TrainingInputBatch({**data, "loss_mask": torch.ones(2, 3)})
batch.metadata = {"response_length": 3}
expected = [row["logprobs"] for row in policy.forward(batch).loss_fn_outputs]
got = [row["logprobs"] for row in reference.forward(batch).loss_fn_outputs]
batch["base_action_log_probs"] = torch.tensor(got)
kl = policy.forward_backward(batch).metrics["policy_kl"]
norm = sum(each.grad.square().sum() for each in model.parameters()).sqrt().item()
expected, got = (" ".join(f"{each:.2f}" for each in rows[0]) for rows in (expected, got))
print(f"expected log probabilities {expected}, policy_kl 0.000, gradient norm 0.000")
print(f"got      log probabilities {got}, policy_kl {kl:.3f}, gradient norm {norm:.3f}")
sys.exit(int(max(kl, norm) > 1e-3))
