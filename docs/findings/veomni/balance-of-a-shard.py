"""Qwen3-MoE with output_router_logits and ulysses_size > 1: load_balancing_loss_implementation
eager balances experts over each rank's shard, and triton raises

veomni 0.1.12. A small Qwen3-MoE with two layers and output_router_logits, and one packed row of
eight tokens. As by the collator, each of two ranks gets half of the ids, and the mask of all
eight. Here one process takes both halves, one after the other. Attention stays within a half, so
what is expected is the balance of the router's logits of both halves, put together. With --control
one rank has the whole row.

Run: python balance-of-a-shard.py [--control] (one process on the CPU; no GPU). Exit status 1 if
the bug shows.
"""

import logging
import sys
from contextlib import redirect_stdout

import torch
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface

RANKS = 1 if "--control" in sys.argv else 2
IDS = torch.tensor([[1, 5, 2, 7, 3, 6, 4, 0]])
EXPERTS, TOP = 4, 2


def in_shard(_module, q, k, v, _mask, **_options):
    """Attend to earlier tokens of the shard, as the kernel's place is taken here."""
    return scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2), None


def released():
    """The module that has the model, as the release generates it."""
    logging.disable(logging.WARNING)
    from veomni.models.transformers.qwen3_moe.generated import patched_modeling_qwen3_moe_gpu

    return patched_modeling_qwen3_moe_gpu


def built(module):
    config = module.Qwen3MoeConfig(
        vocab_size=8,
        hidden_size=16,
        intermediate_size=16,
        moe_intermediate_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        head_dim=8,
        num_experts=EXPERTS,
        num_experts_per_tok=TOP,
        output_router_logits=True,
        attn_implementation="in_shard",
    )
    torch.manual_seed(0)
    return module.Qwen3MoeForCausalLM(config)


def balance(logits):
    """Equations (4) to (6) of Switch Transformers, over all layers and tokens."""
    shares = torch.cat(logits).softmax(-1)
    chosen = torch.nn.functional.one_hot(shares.topk(TOP).indices, EXPERTS).sum(1).float()
    return EXPERTS * (chosen.mean(0) * shares.mean(0)).sum()


def main():
    AttentionInterface.register("in_shard", in_shard)
    with redirect_stdout(sys.stderr):
        model = built(released())
        found = [
            model(input_ids=ids, attention_mask=torch.ones_like(IDS), use_cache=False)
            for ids in IDS.chunk(RANKS, 1)
        ]
    layers = zip(*(each.router_logits for each in found), strict=True)
    expected = balance([torch.cat(layer) for layer in layers]).item()
    got = sum(each.aux_loss.item() for each in found) / RANKS
    print(f"expected balance {expected:.4f}, over all tokens")
    print(f"got      balance {got:.4f}, the mean over {RANKS} ranks")
    return int(abs(got - expected) > 1e-5)


if __name__ == "__main__":
    sys.exit(main())
