"""Multi-head latent attention under Ulysses: a correct step, and bugs that do not show at sp 1."""

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
    """A correct step with a small DeepSeek-V3."""

    def build_model(self, case: Case) -> Any:
        config = DeepseekV3Config(
            vocab_size=case.vocab,
            hidden_size=case.heads * case.head_dim,
            intermediate_size=2 * case.heads * case.head_dim,
            moe_intermediate_size=case.heads * case.head_dim,
            # The first layer is dense.
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
    """Positions are counted after the cut: a row that was cut starts again at 0."""

    def shard(self, stream: Tokens, rank: Rank) -> Tokens:
        shard = super().shard(stream, rank)
        cut_row_L = (shard.positions == 0).cumsum(0) == 0
        return shard._replace(positions=shard.positions - cut_row_L * shard.positions[0])


class SeesNeighbours(Mla):
    """Where several ranks share a sequence, attention is causal and ignores rows."""

    def number_rows(self, positions_T: Tensor, rank: Rank) -> Tensor:
        rows_T = super().number_rows(positions_T, rank)
        return rows_T if rank.sp.size() == 1 else torch.zeros_like(rows_T)


class MeanOfMeans(Mla):
    """A replica averages the means of its ranks, although some have more targets than others."""

    def divisor(self, case: Case, shard: Tokens, rank: Rank) -> Tensor:
        own_count = shard.counts.sum()
        replica_count = own_count.clone()
        dist.all_reduce(replica_count, group=rank.sp)
        factor = own_count.clamp(min=1) * rank.sp.size() / replica_count.clamp(min=1)
        return super().divisor(case, shard, rank) * factor


class ValueHeadsDealt(Mla):
    """Heads of values go to ranks in turn, but those of queries and keys in blocks."""

    def exchange_tokens(
        self, layer: Any, q: Tensor, k: Tensor, v: Tensor, rank: Rank
    ) -> tuple[Tensor, ...]:
        dealt = v.unflatten(1, (-1, rank.sp.size())).transpose(1, 2).flatten(1, 2)
        return super().exchange_tokens(layer, q, k, dealt, rank)


class RotaryKeyOfOwnHeads(Mla):
    """All heads use the rotary part of a key, but it gets the gradient of this rank's heads only.

    This happens if the part is gathered apart from the heads, and backward only slices it.
    """

    def exchange_tokens(
        self, layer: Any, q: Tensor, k: Tensor, v: Tensor, rank: Rank
    ) -> tuple[Tensor, ...]:
        nope, rope = k.split([layer.qk_nope_head_dim, layer.qk_rope_head_dim], -1)
        parts = list(rope.detach().chunk(rank.sp.size(), 1))
        parts[rank.sp_index] = rope.chunk(rank.sp.size(), 1)[rank.sp_index]
        k = torch.cat((nope, torch.cat(parts, 1)), -1)
        return super().exchange_tokens(layer, q, k, v, rank)


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
