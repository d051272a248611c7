"""A mixture of experts under Ulysses: a correct step, and bugs that do not show at sp 1."""

from typing import Any

import torch
from torch import Tensor
from torch import distributed as dist
from transformers import MixtralConfig, MixtralForCausalLM

from harness.candidates import Rank
from harness.case import Case
from properties.planted.stranger import Stranger, Tokens, planted


class Mixtral(Stranger):
    """A correct step with a small Mixtral."""

    def build_model(self, case: Case) -> Any:
        config = MixtralConfig(
            vocab_size=case.vocab,
            hidden_size=case.heads * case.head_dim,
            intermediate_size=2 * case.heads * case.head_dim,
            num_hidden_layers=case.layers,
            num_attention_heads=case.heads,
            num_key_value_heads=case.kv_heads,
            head_dim=case.head_dim,
            num_local_experts=4,
            num_experts_per_tok=2,
            tie_word_embeddings=case.tied,
            bos_token_id=None,
            eos_token_id=None,
            use_cache=False,
        )
        return MixtralForCausalLM(config)


class LabelsRolledLocally(Mixtral):
    """Labels are shifted after the stream is cut."""

    def shard(self, stream: Tokens, rank: Rank) -> Tokens:
        shard = super().shard(stream, rank)
        return shard._replace(labels=shard.ids.roll(-1))


class RowsCountedLocally(Mixtral):
    """Rows are numbered after the cut: several rows share a number, and a cut row has two."""

    def number_rows(self, positions_T: Tensor, rank: Rank) -> Tensor:
        number_rows = super().number_rows
        shards = positions_T.chunk(rank.sp.size())
        return torch.cat([number_rows(positions_L, rank) for positions_L in shards])


class KeyValueHeadsRepeatedInTurn(Mixtral):
    """Where several ranks share a sequence, key-value heads are repeated 0 1 0 1, not 0 0 1 1."""

    def repeat_heads(self, x: Tensor, times: int, rank: Rank) -> Tensor:
        if rank.sp.size() == 1:
            return super().repeat_heads(x, times, rank)
        return x.repeat(1, times, 1, 1)


class RouterLeftLocal(Mixtral):
    """The gradients of routers are reduced over replicas only."""

    def reduce_gradient(self, name: str, gradient: Tensor, rank: Rank) -> Tensor:
        if not name.endswith(".gate.weight"):
            return super().reduce_gradient(name, gradient, rank)
        dist.all_reduce(gradient, group=rank.dp)
        return gradient


class ExpertsAveraged(Mixtral):
    """The gradients of experts are averaged over the ranks that share a sequence."""

    def reduce_gradient(self, name: str, gradient: Tensor, rank: Rank) -> Tensor:
        ranks = rank.sp.size() if ".experts." in name else 1
        return super().reduce_gradient(name, gradient, rank) / ranks


MIXTRAL = Mixtral("mixtral")
globals().update(
    planted(
        LabelsRolledLocally,
        RowsCountedLocally,
        KeyValueHeadsRepeatedInTurn,
        RouterLeftLocal,
        ExpertsAveraged,
    )
)
