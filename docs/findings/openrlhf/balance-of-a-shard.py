"""aux_loss_coef with ring_attn_size above 1: each rank balances experts over its own shard of the
packed sequence, padding of the ring included

OpenRLHF 0.11.2. A small Qwen3-MoE in the released Actor, and one row of 512 tokens. Here one
process takes the ranks of a ring one after the other, and attention stays within a shard, so what
is expected is the balance of the router's logits of all shards, put together.
With --control one rank has the whole row.

    python balance-of-a-shard.py [--control]
"""

import importlib
import sys
import types
from importlib import metadata
from typing import Any

import einops
import torch
import transformers.modeling_flash_attention_utils as flash
from torch import Tensor, distributed
from torch.nn.functional import one_hot, scaled_dot_product_attention
from transformers import AttentionInterface, Qwen3MoeConfig, Qwen3MoeForCausalLM

RANKS = 1 if "--control" in sys.argv else 2
# The halves of the row have no id in common, so their tokens choose other experts.
LENGTH = 512
IDS = torch.cat([torch.arange(LENGTH // 2) % 4, torch.arange(LENGTH // 2) % 4 + 4])[None]
EXPERTS, TOP = 4, 2


def module(name: str, **names: Any) -> types.ModuleType:
    made = types.ModuleType(name)
    vars(made).update({"__path__": [], **names})
    return sys.modules.setdefault(name, made)


def released() -> tuple[Any, Any]:
    """The modules of the actor and of the ring; what needs a GPU or LoRA is left out."""
    padding = {
        "index_first_axis": lambda x, indices: x[indices],
        "pad_input": flash._pad_input,
        "unpad_input": flash._unpad_input,
        "rearrange": einops.rearrange,
    }
    module("flash_attn.bert_padding", **padding)
    # Log-probs are not looked at.
    module("flash_attn.utils.distributed", all_gather=lambda x, _: x.repeat(RANKS, 1))
    module("deepspeed")
    module("peft", LoraConfig=None, TaskType=None, get_peft_model=None)
    module("peft.tuners.lora", LoraLayer=None)
    root = metadata.distribution("openrlhf").locate_file("openrlhf")
    module("openrlhf.models", __path__=[f"{root}/models"])
    names = ("actor", "ring_attn_utils")
    actor, ring = (importlib.import_module(f"openrlhf.models.{name}") for name in names)
    # It tells the kernel where rows end.
    ring.update_ring_attn_params = lambda _: None
    return actor, ring


def in_shard(_module: Any, q: Tensor, k: Tensor, v: Tensor, _mask: Any, **_: Any) -> Any:
    return scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2), None


def balance(logits: list[Tensor]) -> Tensor:
    """Equations (4) to (6) of Switch Transformers, over all tokens."""
    shares = torch.cat(logits).softmax(-1)
    chosen = one_hot(shares.topk(TOP).indices, EXPERTS).sum(1).float()
    return EXPERTS * (chosen.mean(0) * shares.mean(0)).sum()


def main() -> int:
    AttentionInterface.register("in_shard", in_shard)
    small = {"vocab_size": 8, "hidden_size": 16, "intermediate_size": 16, "head_dim": 8}
    small |= {"num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 2}
    small |= {"moe_intermediate_size": 16, "num_experts": EXPERTS, "num_experts_per_tok": TOP}
    torch.manual_seed(0)
    config = Qwen3MoeConfig(**small, output_router_logits=True, attn_implementation="in_shard")
    actor_module, _ = released()
    actor = actor_module.Actor(Qwen3MoeForCausalLM(config))
    actor.packing_samples = True
    vars(distributed)["get_world_size"] = lambda group: RANKS
    outputs = []
    for rank in range(RANKS):
        vars(distributed)["get_rank"] = lambda group, rank=rank: rank
        given = {"return_output": True, "return_logprobs": True, "ring_attn_group": "ring"}
        outputs.append(actor(IDS, attention_mask=torch.ones_like(IDS), **given)[1])
    expected = balance([out.router_logits[0] for out in outputs])
    got = sum(out.aux_loss for out in outputs) / RANKS
    router = next(p for name, p in actor.named_parameters() if name.endswith("gate.weight"))
    right, taken = (torch.autograd.grad(x, router, retain_graph=True)[0] for x in (expected, got))
    off = ((taken - right).norm() / right.norm()).item()
    print(f"expected balance {expected.item():.4f}, over all {LENGTH} tokens")
    print(f"got      balance {got.item():.4f}, the mean over {RANKS} ranks")
    print(f"its gradient for the router is off by {off:.0%} of the right one")
    return int(off > 1e-3)


if __name__ == "__main__":
    sys.exit(main())
