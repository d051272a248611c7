"""DPO with padding_free and sequence_parallel_size > 1 fails where the packed length is no
multiple of it: get_per_token_logps does not pad position_ids before it cuts the padding off

ms-swift 4.6.0. With --control the packed rows have eight tokens, not seven, so that nothing is
padded. Run: torchrun --nproc-per-node 2 dpo-padding-not-cut.py
"""

import sys
from types import SimpleNamespace

import torch
from swift.rlhf_trainers.dpo_trainer import DPOTrainer
from swift.sequence_parallel import sequence_parallel
from torch import distributed as dist
from transformers import LlamaConfig, LlamaForCausalLM

dist.init_process_group("nccl")
torch.cuda.set_device(rank := dist.get_rank())
torch.manual_seed(0)
sizes = {"vocab_size": 64, "hidden_size": 128, "intermediate_size": 128, "num_hidden_layers": 1}
config = LlamaConfig(**sizes, num_attention_heads=2, attn_implementation="flash_attention_2")
model = LlamaForCausalLM(config).to("cuda", torch.bfloat16)
model.model_meta = model.model_info = SimpleNamespace(model_arch=None, is_moe_model=False)

# What concatenated_forward asks of a trainer; a chosen and a rejected row, packed.
trainer = DPOTrainer.__new__(DPOTrainer)
trainer.is_encoder_decoder = trainer.aux_loss_enabled = False
trainer.args = SimpleNamespace(ld_alpha=None, use_logits_to_keep=False)
trainer.label_pad_token_id = -100
lengths = (4, 4 if "--control" in sys.argv else 3)
positions = torch.cat([torch.arange(length) for length in lengths]).to("cuda")[None]
labels = torch.where(positions == 0, -100, positions + 1)
batch = {"input_ids": positions + 1, "position_ids": positions, "labels": labels}


@torch.no_grad()
def step(ranks: int) -> str:
    trainer.template = SimpleNamespace(padding_free=True, sequence_parallel_size=ranks)
    try:
        output = trainer.concatenated_forward(model, batch)
        return f"{output['chosen_logps'].item():.1f} {output['rejected_logps'].item():.1f}"
    except RuntimeError as error:
        return f"RuntimeError: {error}"


expected = step(1)
sequence_parallel.prepare(2, model, SimpleNamespace(pad_token_id=0), padding_free=True)
sequence_parallel.prepare_inputs(batch)
got = step(2)
if rank == 0:
    print(f"expected log-probabilities {expected}\ngot      {got}", flush=True)
sys.exit(int(rank == 0 and "Error" in got))
