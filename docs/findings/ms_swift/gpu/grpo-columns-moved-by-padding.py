"""GRPO with sequence_parallel_size > 1 and without padding_free trains on log-probabilities of
later tokens where the length is no multiple of it: _get_logps_via_sp counts the padding

ms-swift 4.6.0. With --control rows have eight tokens, not seven, so that nothing is padded.
Run: torchrun --nproc-per-node 2 grpo-columns-moved-by-padding.py
"""

import sys
from contextlib import nullcontext
from types import SimpleNamespace

import torch
from swift.rlhf_trainers.grpo_trainer import GRPOTrainer
from swift.sequence_parallel import sequence_parallel
from torch import distributed as dist
from transformers import LlamaConfig, LlamaForCausalLM

dist.init_process_group("nccl")
torch.cuda.set_device(rank := dist.get_rank())
torch.manual_seed(0)
sizes = {"vocab_size": 64, "hidden_size": 128, "intermediate_size": 128, "num_hidden_layers": 1}
config = LlamaConfig(**sizes, num_attention_heads=2, initializer_range=0.2)
model = LlamaForCausalLM(config).to("cuda")
model.model_meta = SimpleNamespace(model_arch=None)
model.model_info = SimpleNamespace(is_moe_model=False)

# What the two functions ask of a trainer; the last three tokens of a row are its answer.
tokenizer = SimpleNamespace(pad_token_id=0)
trainer = SimpleNamespace(template=SimpleNamespace(padding_free=False), temperature=1.0)
trainer._template_context = lambda *_: nullcontext()
trainer.processing_class, trainer.model_kwarg_keys = tokenizer, ()
ids = torch.arange(1, 9 if "--control" in sys.argv else 8).to("cuda")[None]


def log_probs(function, *asked):
    inputs = {"input_ids": ids, "position_ids": ids - 1, "attention_mask": torch.ones_like(ids)}
    with torch.no_grad():
        return function(trainer, model, inputs, *asked, 3, ids)[0]


expected = log_probs(GRPOTrainer._get_logps_via_local_forward)
sequence_parallel.prepare(2, model, tokenizer, padding_free=False)
got = log_probs(GRPOTrainer._get_logps_via_sp, None)
if rank == 0:
    print("expected log-probabilities", " ".join(f"{each:6.2f}" for each in expected[0].tolist()))
    print("got      log-probabilities", " ".join(f"{each:6.2f}" for each in got[0].tolist()))
dist.destroy_process_group()
sys.exit(int(rank == 0 and (got - expected).abs().max() > 0.05))
