"""With sequence_parallel_size > 1 under DeepSpeed the loss is computed and summed in bf16:
per_token_loss_func_sp does not upcast the logits

ms-swift 4.6.0. With --control the logits are fp32, as plain DDP has them.
Run: torchrun --nproc-per-node 2 loss-in-half.py
"""

import sys
from types import SimpleNamespace

import torch
from swift.sequence_parallel import sequence_parallel
from swift.trainers.utils import per_token_loss_func, per_token_loss_func_sp
from torch import distributed as dist
from transformers import LlamaConfig, LlamaForCausalLM

dist.init_process_group("nccl")
rank = dist.get_rank()
torch.cuda.set_device(rank)
torch.manual_seed(0)

# As the trainer does, for a small model of two kv heads.
sizes = {"vocab_size": 64, "hidden_size": 128, "intermediate_size": 128, "num_hidden_layers": 1}
model = LlamaForCausalLM(LlamaConfig(**sizes, num_attention_heads=2))
model.model_meta = SimpleNamespace(model_arch=None)
model.model_info = SimpleNamespace(is_moe_model=False)
sequence_parallel.prepare(2, model, tokenizer=None, padding_free=False)

dtype = torch.float32 if "--control" in sys.argv else torch.bfloat16
logits = torch.randn(1, 512, 64).to("cuda", dtype)
labels = torch.randint(64, (1, 512)).to("cuda")
expected = per_token_loss_func(SimpleNamespace(logits=logits), labels)
# Where ranks share the sequence, labels are moved up before they are cut.
mine, targets = (whole.chunk(2, 1)[rank] for whole in (logits, labels.roll(-1, 1)))
got = per_token_loss_func_sp(SimpleNamespace(logits=mine), targets)
if rank == 0:
    print(f"expected losses of {expected.dtype}, mean {expected.sum() / 512:.4f}")
    print(f"got      losses of {got.dtype}, mean {got.sum() / 512:.4f}")
dist.destroy_process_group()
sys.exit(int(rank == 0 and got.dtype != expected.dtype))
