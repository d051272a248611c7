"""Multi-head latent attention under Ulysses, right, and with faults that sp 1 does not have."""

from typing import Any

import torch
from torch import Tensor
from torch import distributed as dist
from transformers import DeepseekV3Config, DeepseekV3ForCausalLM

from harness.candidates import Rank
from harness.case import Case
from properties.planted.stranger import Stranger, Tokens, planted

EXPERTS = 8


class Mla(Stranger):
    def model(self, case: Case) -> Any:
        config = DeepseekV3Config(
            vocab_size=case.vocab,
            hidden_size=case.heads * case.head_dim,
            intermediate_size=2 * case.heads * case.head_dim,
            moe_intermediate_size=case.heads * case.head_dim,
            # The first is dense.
            num_hidden_layers=1 + case.layers,
            first_k_dense_replace=1,
            num_attention_heads=case.heads,
            num_key_value_heads=case.heads,
            q_lora_rank=3 * case.head_dim,
            kv_lora_rank=2 * case.head_dim,
            qk_nope_head_dim=case.head_dim,
            qk_rope_head_dim=case.head_dim,
            v_head_dim=case.head_dim,
            n_routed_experts=EXPERTS,
            n_group=4,
            topk_group=2,
            num_experts_per_tok=2,
            num_mtp_layers=0,
            tie_word_embeddings=case.tied,
            bos_token_id=None,
            eos_token_id=None,
            use_cache=False,
        )
        model = DeepseekV3ForCausalLM(config)
        for layer in model.model.layers[1:]:
            layer.mlp.gate.e_score_correction_bias.copy_(torch.linspace(-0.2, 0.2, EXPERTS))
        return model

    def supports(self, case: Case) -> str | None:
        if case.dtype == "fp64" and case.sp > 1:
            return "dtype=fp64: routers choose in fp32, in which another sp rounds otherwise"
        return super().supports(case)


class PositionsRestarted(Mla):
    """Positions are counted after the cut: a row that goes on begins anew."""

    def shard(self, stream: Tokens, rank: Rank) -> Tokens:
        mine = super().shard(stream, rank)
        goes_on_L = (mine.positions == 0).cumsum(0) == 0
        return mine._replace(positions=mine.positions - goes_on_L * mine.positions[0])


class SeesNeighbours(Mla):
    """Where several ranks share a sequence, attention is only causal."""

    def rows(self, positions_T: Tensor, rank: Rank) -> Tensor:
        rows_T = super().rows(positions_T, rank)
        return rows_T if rank.sp.size() == 1 else torch.zeros_like(rows_T)


class MeanOfMeans(Mla):
    """The mean of a replica is that of its ranks' means, however many targets each has."""

    def terms(self, case: Case, mine: Tokens, rank: Rank) -> Tensor:
        own = mine.counts.sum()
        of_replica = own.clone()
        dist.all_reduce(of_replica, group=rank.sp)
        equally = own.clamp(min=1) * rank.sp.size() / of_replica.clamp(min=1)
        return super().terms(case, mine, rank) * equally


class ValueHeadsDealt(Mla):
    """Heads of values go to ranks in turn, those of queries and keys in blocks."""

    def exchanged(
        self, layer: Any, q: Tensor, k: Tensor, v: Tensor, rank: Rank
    ) -> tuple[Tensor, ...]:
        dealt = v.unflatten(1, (-1, rank.sp.size())).transpose(1, 2).flatten(1, 2)
        return super().exchanged(layer, q, k, dealt, rank)


class RotaryKeyOfOwnHeads(Mla):
    """All heads use the rotary part of a key; the gradient comes back from this rank's only.

    So it is where that part is gathered apart from the heads, and backward only slices it.
    """

    def exchanged(
        self, layer: Any, q: Tensor, k: Tensor, v: Tensor, rank: Rank
    ) -> tuple[Tensor, ...]:
        nope, rope = k.split([layer.qk_nope_head_dim, layer.qk_rope_head_dim], -1)
        parts = list(rope.detach().chunk(rank.sp.size(), 1))
        parts[rank.sp_index] = rope.chunk(rank.sp.size(), 1)[rank.sp_index]
        return super().exchanged(layer, q, torch.cat((nope, torch.cat(parts, 1)), -1), v, rank)


MLA = Mla("mla")
globals().update(
    planted(
        PositionsRestarted,
        SeesNeighbours,
        MeanOfMeans,
        ValueHeadsDealt,
        RotaryKeyOfOwnHeads,
    )
)
