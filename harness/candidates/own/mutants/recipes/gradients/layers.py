"""Bugs in what layers and losses hand back in backward, which forward does not show.

Legend: B rows, L columns of this rank, N heads, H head dim, D width of the model, V vocabulary,
T tokens, E experts, K chosen ones.
"""

from typing import Any

import torch
from torch import Tensor

from harness.candidates.bank import mutant
from harness.candidates.own.shares.experts import OfExperts
from harness.candidates.own.shares.images import WithImages
from harness.candidates.own.shares.losses import (
    Balanced,
    Grpo,
    GrpoK3,
    Gspo,
)
from harness.candidates.own.shares.step import Supervised


@mutant("B203", "PrimeIntellect-ai/prime-rl#1123", needs=(), named="gradient-missing")
class RatioWithoutAGraph(Gspo):
    """The ratio of a row fills a tensor shaped like its log-probabilities, which has no graph."""

    def gains(self) -> Tensor:
        gains_B = super().gains()
        # What it is shaped like is still in the loss, so that backward runs.
        return gains_B.detach() + 0 * gains_B


@mutant("B204", "NovaSky-AI/SkyRL#1353", needs=(), named="term-misweighted")
class ConstantKl(GrpoK3):
    """The estimate of the KL is computed without a graph, and is a constant in the loss."""

    def kl(self) -> Tensor:
        return super().kl().detach()


@mutant(
    "B205",
    "verl-project/verl#6913",
    "ByteDance-Seed/VeOmni#1017",
    needs=(),
    named="gradient-missing",
)
class OnlyTheHeadLearns(Grpo):
    """A fused head asks a detached copy whether a gradient is wanted, and hands none below."""

    def hooks(self, model: Any) -> list[Any]:
        return [model.lm_head.register_forward_pre_hook(lambda _, given: (given[0].detach(),))]


@mutant("B206", "NVIDIA-NeMo/Automodel#2995", needs=(), named="gradient-partial")
class RouterLearnsBalanceAlone(Balanced):
    """The weights of experts leave the graph, and a router learns from its own loss alone."""

    def hooks(self, model: Any) -> list[Any]:
        routers = [m for m in model.modules() if type(m).__name__.endswith("Router")]
        return [router.register_forward_hook(self.detached) for router in routers]

    @staticmethod
    def detached(_router: Any, _given: Any, out: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        logits_TE, weights_TE, chosen_TE = out
        return logits_TE, weights_TE.detach(), chosen_TE


@mutant("B207", "NVIDIA-NeMo/Automodel#1412", needs=(), named="term-misweighted")
class BalanceTeachesNothing(Balanced):
    """The balance loss is in the log, and what carries its gradient is thrown away."""

    def balance(self, logits_TE: Tensor, count: Tensor) -> Tensor:
        return super().balance(logits_TE, count).detach()


class _FlatTiles(torch.autograd.Function):
    """The identity; gradients of two tiles of columns are laid into one flat table in turn."""

    @staticmethod
    def forward(_ctx: Any, x_BLD: Tensor) -> Tensor:
        return x_BLD.clone()

    @staticmethod
    def backward(_ctx: Any, *grads: Tensor) -> Tensor:
        tiles = grads[0].chunk(2, 1)
        return torch.cat([tile.flatten() for tile in tiles]).view_as(grads[0])


@mutant("B209", "deepspeedai/DeepSpeed#7412", needs=(), named="gradient-partial")
class TilesOfAFlatGradient(Supervised):
    """The gradient of a block computed in tiles is cut flat, which is right for one row only."""

    family = "mistral"

    def hooks(self, model: Any) -> list[Any]:
        return [layer.mlp.register_forward_pre_hook(self.tiled) for layer in model.model.layers]

    @staticmethod
    def tiled(_block: Any, given: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        return (_FlatTiles.apply(given[0]),)  # type: ignore[no-untyped-call]


@mutant("B210", "NVIDIA-NeMo/Megatron-Bridge#4784", needs=("sp>1",), named="gradient-partial")
class FeaturesNotSummed(WithImages):
    """A rank keeps the gradient of its own images, and not what other ranks' tokens sent them."""

    def features(self, of_images: Any, mine: Tensor) -> Tensor:
        seen = torch.cat(of_images)
        own = torch.arange(len(seen), device=seen.device).tensor_split(self.sp.size())
        is_own = torch.zeros(len(seen), 1, dtype=torch.bool, device=seen.device)
        is_own[own[self.sp.rank()]] = True
        return torch.where(is_own, seen, seen.detach())[mine]


@mutant("B255", "huggingface/transformers#48205", needs=("sp>1",), named="gradient-partial")
class RouterOfOwnExperts(OfExperts):
    """Ranks share experts, and a router learns from a rank's own: their parts are not summed."""

    def routed_to(self, logits_TE: Tensor, weights_TK: Tensor, chosen_TK: Tensor) -> Any:
        is_own_TK = self.is_own(chosen_TK, logits_TE.shape[1])
        return logits_TE, torch.where(is_own_TK, weights_TK, weights_TK.detach()), chosen_TK


@mutant("B258", "NVIDIA-NeMo/Automodel#1260", needs=("sp>1",), named="gradient-partial")
class TokensOfOwnExperts(OfExperts):
    """Tokens are gathered for a rank's experts, and a piece of its own gradient goes back."""

    def computed_by(
        self, experts: Any, x_TD: Tensor, chosen_TK: Tensor, weights_TK: Tensor
    ) -> Any:
        is_own_TK = self.is_own(chosen_TK, experts.num_experts)
        own_TD = experts.forward(x_TD, chosen_TK, weights_TK * is_own_TK)
        other_TD = experts.forward(x_TD.detach(), chosen_TK, weights_TK * ~is_own_TK)
        return own_TD + other_TD


@mutant("B266", "modelscope/ms-swift#9947", needs=("sp>1",), named="gradient-partial")
class VocabularyOfTheOwner(Grpo):
    """Ranks share a vocabulary, and only the part that has the label gets a gradient."""

    def log_softmax(self, logits_BLV: Tensor) -> Tensor:
        columns = logits_BLV.shape[-1]
        part_V = torch.arange(columns, device=logits_BLV.device) * self.sp.size() // columns
        part_BL = self.labels_BL.clamp(min=0) * self.sp.size() // columns
        is_own_BLV = part_BL[..., None] == part_V
        return super().log_softmax(torch.where(is_own_BLV, logits_BLV, logits_BLV.detach()))


@mutant("B267", "NVIDIA/Megatron-LM#1699", needs=("sp>1",), named="gradient-partial")
class RotaryKeyOfOwnHeads(Supervised):
    """All heads have one rotary key, and it learns from the heads of a single rank."""

    family = "deepseek-v3"

    def attention(
        self, layer: Any, q_RNLH: Tensor, k_RNLH: Tensor, *given: Any, **named: Any
    ) -> Any:
        heads, rotary = k_RNLH.shape[1], layer.qk_rope_head_dim
        rank_N1 = (
            torch.arange(heads, device=k_RNLH.device)[:, None, None] * self.sp.size() // heads
        )
        still, turned = k_RNLH.split([k_RNLH.shape[-1] - rotary, rotary], -1)
        turned = torch.where(rank_N1 == self.sp.rank(), turned, turned.detach())
        return super().attention(layer, q_RNLH, torch.cat((still, turned), -1), *given, **named)


@mutant("B256", "inclusionAI/AReno#496", needs=("sp>1",), named="gradient-partial")
class LatentSummedTwice(Supervised):
    """The gradient of what keys and values are made of is summed, and their projection's again."""

    family = "deepseek-v3"

    def hooks(self, model: Any) -> list[Any]:
        norms = [layer.self_attn.kv_a_layernorm for layer in model.model.layers]
        return [norm.register_forward_pre_hook(self.summed_again) for norm in norms]

    def summed_again(self, _norm: Any, given: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        latent = given[0].view_as(given[0])
        latent.register_hook(lambda gradient: gradient * self.sp.size())
        return (latent,)
