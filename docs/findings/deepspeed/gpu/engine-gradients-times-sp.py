"""With sequence parallelism the same loss gives gradients that differ by sp: ZeRO 3 with
reduce_scatter divides by all ranks, other stages by ranks / sp

deepspeed 0.19.8 and transformers. One step of the loop of the ALST tutorial at ZeRO 2. With
--control it is at ZeRO 3. Run: torchrun --nproc-per-node 2 engine-gradients-times-sp.py
"""

import sys

import deepspeed
import torch
from deepspeed.runtime.sequence_parallel.ulysses_sp import UlyssesSPAttentionHF
from deepspeed.utils import safe_get_full_grad
from torch import distributed as dist
from torch.distributed.nn.functional import all_gather
from transformers import LlamaConfig, LlamaForCausalLM

dist.init_process_group("nccl")
rank = dist.get_rank()
torch.cuda.set_device(rank)
deepspeed.init_distributed()
torch.manual_seed(0)
sizes = {"vocab_size": 64, "hidden_size": 128, "intermediate_size": 256}
model = LlamaForCausalLM(LlamaConfig(**sizes, num_attention_heads=2, num_hidden_layers=1))
tokens = torch.arange(8)[None]
model(input_ids=tokens, labels=tokens).loss.backward()  # Plain training, on the CPU.
expected = model.lm_head.weight.grad.norm().item()
model.zero_grad()

mpu = UlyssesSPAttentionHF.register_with_transformers(model, "sdpa", 2, micro_batch_size=1)
config = {"train_micro_batch_size_per_gpu": 1, "sequence_parallel_size": 2}
config |= {"zero_optimization": {"stage": 3 if "--control" in sys.argv else 2}}
config |= {"zero_allow_untested_optimizer": True}
sgd = torch.optim.SGD(model.parameters(), lr=0.1)
engine, *_ = deepspeed.initialize(model=model, optimizer=sgd, config=config, mpu=mpu)

mine = tokens.chunk(2, dim=1)[rank].to("cuda")  # The tokens are the positions, too.
labels = torch.tensor([[[1, 2, 3, 4]], [[5, 6, 7, -100]]][rank], device="cuda")
logits = engine(input_ids=mine, position_ids=mine).logits
loss = engine.module.loss_function(logits, None, vocab_size=64, shift_labels=labels)
losses, counts = all_gather(loss), all_gather((labels != -100).sum())
engine.backward((losses[0] * counts[0] + losses[1] * counts[1]) / sum(counts))
got = safe_get_full_grad(engine.module.lm_head.weight).norm().item()
dist.destroy_process_group()
if rank == 0:
    print(f"expected |gradient of lm_head| {expected:.4f}")
    print(f"got      |gradient of lm_head| {got:.4f}")
    sys.exit(int(abs(got - expected) > 0.01 * expected))
