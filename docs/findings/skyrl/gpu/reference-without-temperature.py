"""With strategy fsdp the reference ignores the temperature, and the KL penalty compares two
temperatures.

skyrl 0.4.0 and flash-attn. The workers' forward of a micro-batch, on each rank with one model as
policy and as reference. With --control the temperature is 1.
Run: torchrun --nproc-per-node 2 reference-without-temperature.py
"""

import sys
from types import SimpleNamespace

import torch
from skyrl.backends.skyrl_train.training_batch import TrainingInputBatch
from skyrl.backends.skyrl_train.workers.model_wrapper import HFModelWrapper
from skyrl.backends.skyrl_train.workers.worker import PolicyWorkerBase, RefWorkerBase
from torch import distributed as dist
from transformers import LlamaConfig, LlamaForCausalLM

dist.init_process_group("nccl")
torch.cuda.set_device(rank := dist.get_rank())
torch.manual_seed(0)
sizes = {"vocab_size": 64, "hidden_size": 128, "intermediate_size": 128, "num_hidden_layers": 1}
config = LlamaConfig(**sizes, num_attention_heads=2, initializer_range=0.1, use_cache=False)
algorithm = SimpleNamespace(enable_sample_support_replay=False)
algorithm.temperature = 1.0 if "--control" in sys.argv else 0.6
worker = SimpleNamespace(cfg=SimpleNamespace(algorithm=algorithm))
worker.model = HFModelWrapper(LlamaForCausalLM(config).to("cuda"))


def log_probs(kind):
    row = torch.arange(1, 9)[None]
    batch = TrainingInputBatch({"sequences": row, "attention_mask": torch.ones_like(row)})
    batch.metadata = {"response_length": 4}
    return kind._forward_micro_batch(worker, batch)["output"][0].float()


expected, got = log_probs(PolicyWorkerBase), log_probs(RefWorkerBase)
off = (got - expected).abs().max()
if rank == 0:
    print("expected log probabilities", " ".join(f"{each:6.2f}" for each in expected.tolist()))
    print("got      log probabilities", " ".join(f"{each:6.2f}" for each in got.tolist()))
dist.destroy_process_group()
sys.exit(int(rank == 0 and off > 0.05))
