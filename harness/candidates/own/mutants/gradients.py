"""Bugs in gathers, in autograd and in the scale of gradients.

Legend: L tokens on this rank, T tokens of the stream, N heads, K kv heads, M heads on this rank,
C kv heads on this rank, H head dim, s peers.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch import distributed as dist
from torch.distributed import ProcessGroup
from torch.nn import functional as F

from harness.candidates import Emit, Rank
from harness.candidates.bank import mutant
from harness.candidates.own.native import GatherDialect, LocalDialect
from harness.candidates.own.native.attention import Segments
from harness.candidates.own.native.rows import Batch
from harness.candidates.own.native.training import gradient_or_zeros, sum_over
from harness.candidates.own.native.ulysses import GatherTokens, Shard, Stream, sum_gradients
from harness.case import Case
from harness.reference.decoder import Decoder


def apply(function: type[torch.autograd.Function], *inputs: Any) -> Tensor:
    """Apply an autograd function with a typed result."""
    out: Tensor = function.apply(*inputs)
    return out


class GatherWith(torch.autograd.Function):
    """Join the pieces of all peers; backward calls the given function."""

    @staticmethod
    def forward(ctx: Any, x_L: Tensor, rank: Rank, back: Callable[[Tensor], Tensor]) -> Tensor:
        ctx.back = back
        return GatherTokens.forward(ctx, x_L, rank.sp)

    @staticmethod
    def backward(ctx: Any, grad_T: Tensor) -> tuple[Tensor, None, None]:
        return ctx.back(grad_T), None, None


@mutant(
    "B100",
    "huggingface/accelerate#76",
    "NVIDIA-NeMo/Speech#15679",
    needs=(),
    named="gradient-missing",
)
class KeysLeaveTheGraph(GatherDialect):
    """Keys travel in a plain collective, and no gradient comes back to them."""

    def gather_tokens(self, tensors: tuple[Tensor, ...], rank: Rank) -> tuple[Tensor, ...]:
        q_LNH, k_LKH, v_LKH = tensors
        return super().gather_tokens((q_LNH, k_LKH.detach(), v_LKH), rank)


@mutant("B101", "ByteDance-Seed/VeOmni#681", needs=("sp>1",), named="gradient-times-sp")
class PaidForAMeanAndSummed(GatherDialect):
    """The gather's backward pays for a mean over peers, whose gradients are then summed."""

    def reduce(self, model: Decoder, rank: Rank) -> None:
        sum_gradients(model, rank.world, divide_by=rank.dp.size())


@mutant(
    "B102",
    "ByteDance-Seed/VeOmni#1120",
    "ByteDance-Seed/VeOmni#1079",
    needs=("sp>1",),
    named="gradient-over-sp",
)
class NotPaidForAMean(GatherDialect):
    """The gather's backward does not pay for the mean over peers that follows."""

    def gather_losses(self, nll_L: Tensor, rank: Rank) -> Tensor:
        sp = rank.sp.size()
        return apply(GatherWith, nll_L, rank, lambda grad_T: grad_T.chunk(sp)[rank.sp_index])


@mutant("B103", "verl-project/verl-SpeCo#29", needs=("sp>1",), named="gradient-over-sp")
class SummedBehindAutograd(LocalDialect):
    """Peers' losses are summed in place, unseen by autograd, and their gradients averaged."""

    def loss(self, case: Case, batch: Batch, *rest: Any) -> Tensor:
        *_, rank = rest
        loss = super().loss(case, batch, *rest)
        dist.all_reduce(loss.detach(), group=rank.sp)
        return loss

    def divisor(self, rank: Rank) -> int:
        return rank.sp.size()


class AllReduce(torch.autograd.Function):
    """Sum over the group; backward sums the gradients, which is the adjoint."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: ProcessGroup) -> Tensor:
        ctx.group = group
        total = x.clone()
        dist.all_reduce(total, group=group)
        return total

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return AllReduce.forward(ctx, grad, ctx.group), None


@mutant(
    "B104",
    "ByteDance-Seed/VeOmni#681",
    "ByteDance-Seed/VeOmni#1079",
    "deepspeedai/DeepSpeed#5582",
    needs=("sp>1",),
    named="gradient-times-sp",
)
class SummedTwice(LocalDialect):
    """Peers sum their losses within the graph, all start backward from the sum, and sum again."""

    def loss(self, case: Case, batch: Batch, *rest: Any) -> Tensor:
        *_, rank = rest
        return apply(AllReduce, super().loss(case, batch, *rest), rank.sp)

    def reported_loss(self, total: Tensor, rank: Rank) -> Tensor:
        return sum_over(total, rank.dp)


@mutant("B105", "AlibabaPAI/torchacc#26", needs=("sp>1",), named="gradient-partial")
class SplitWithoutAGather(LocalDialect):
    """Embeddings are split without a gather in backward: parts are averaged as if whole."""

    def reduce(self, model: Decoder, rank: Rank) -> None:
        super().reduce(model, rank)
        model.embed.grad = gradient_or_zeros(model.embed) / rank.sp.size()


@mutant(
    "B106",
    "deepspeedai/DeepSpeed#7672",
    "deepspeedai/DeepSpeed#7809",
    needs=("dp>1",),
    named="crashed",
)
class PieceOfTheGlobalRank(GatherDialect):
    """The gather's backward picks its piece by the global rank, beyond the last there is."""

    def gather_losses(self, nll_L: Tensor, rank: Rank) -> Tensor:
        sp = rank.sp.size()
        return apply(GatherWith, nll_L, rank, lambda grad_T: grad_T.chunk(sp)[rank.index] * sp)


@mutant(
    "B106b",
    "deepspeedai/DeepSpeed#7672",
    "deepspeedai/DeepSpeed#7809",
    needs=("dp>1", "sp>1"),
    named="gradient-partial",
)
class PieceOfTheOtherMesh(GatherDialect):
    """The gather's backward takes its piece as if replicas, not peers, were neighbours."""

    def gather_losses(self, nll_L: Tensor, rank: Rank) -> Tensor:
        sp, number = rank.sp.size(), rank.index // rank.dp.size()
        return apply(GatherWith, nll_L, rank, lambda grad_T: grad_T.chunk(sp)[number] * sp)


@mutant(
    "B107",
    "deepspeedai/DeepSpeed#7384",
    "ByteDance-Seed/VeOmni#1139",
    needs=("sp>1",),
    named="gradient-partial",
)
class CutEvenlyInBackward(GatherDialect):
    """Losses are gathered without padding, in uneven pieces; their gradient is cut evenly."""

    def loss(self, case: Case, batch: Batch, *rest: Any) -> Tensor:
        self.length = len(rest[0].ids_T)
        return super().loss(case, batch, *rest)

    def gather_losses(self, nll_L: Tensor, rank: Rank) -> Tensor:
        sp = rank.sp.size()
        even, padding = self.length // sp, len(nll_L) - self.length // sp

        def back(grad_T: Tensor) -> Tensor:
            return F.pad(grad_T[even * rank.sp_index :][:even], (0, padding)) * sp

        return apply(GatherWith, nll_L, rank, back)


@mutant(
    "B108",
    "ByteDance-Seed/VeOmni#419",
    "ByteDance-Seed/VeOmni#420",
    needs=("sp>1",),
    named="gradient-partial",
)
class KeysBeforeTheirGradient(LocalDialect):
    """Backward goes on with the gradient of keys before its exchange has landed."""

    def gather_tokens(self, tensors: tuple[Tensor, ...], rank: Rank) -> tuple[Tensor, ...]:
        q_TMH, k_TCH, v_TCH = super().gather_tokens(tensors, rank)
        sent_sLCH = tensors[1].unflatten(1, (rank.sp.size(), -1)).movedim(1, 0)
        # The value is what arrived; the gradient goes straight to what this rank sent.
        k_TCH = k_TCH.detach() + (sent_sLCH - sent_sLCH.detach()).flatten(0, 1)
        return q_TMH, k_TCH, v_TCH


@mutant(
    "B109",
    "huggingface/diffusers#13328",
    "huggingface/diffusers#14341",
    "huggingface/diffusers#14338",
    "NVIDIA-NeMo/Automodel#3157",
    needs=(),
    named="gradient-partial",
)
class PermutedBackTwice(LocalDialect):
    """Backward permutes tokens and heads of a gradient that is permuted back already."""

    def scatter_tokens(self, out_TMH: Tensor, rank: Rank) -> Tensor:
        out_LNH = super().scatter_tokens(out_TMH, rank)
        out_LNH.register_hook(lambda grad: grad.transpose(0, 1).reshape(grad.shape))
        return out_LNH


@mutant("B110", "huggingface/diffusers#14265", needs=("layers>1",), named="gradient-partial")
class OneBufferForAllLayers(LocalDialect):
    """What a layer saves for backward lies in the buffer that the next one receives into."""

    buffers: tuple[Tensor, ...] = ()

    def segments(self, shard: Shard, case: Case) -> Segments:
        self.buffers = ()
        return super().segments(shard, case)

    def gather_tokens(self, tensors: tuple[Tensor, ...], rank: Rank) -> tuple[Tensor, ...]:
        received = super().gather_tokens(tensors, rank)
        for saved, new in zip(self.buffers, received, strict=False):
            saved.copy_(new.data)
        self.buffers = tuple(x.data for x in received)
        return received


@mutant("B111", "ByteDance-Seed/VeOmni#993", needs=("sp>1",), named="gradient-times-sp")
class SummedInPlace(GatherDialect):
    """A second gather's backward sums in place a gradient that the first has yet to read."""

    def gather_losses(self, nll_L: Tensor, rank: Rank) -> Tensor:
        def back(grad_T: Tensor) -> Tensor:
            dist.all_reduce(grad_T, group=rank.sp)
            return grad_T.chunk(rank.sp.size())[rank.sp_index]

        # A second term of the loss, with a coefficient of zero.
        penalty_L = 0 * nll_L
        return apply(GatherWith, nll_L, rank, back) + apply(GatherWith, penalty_L, rank, back)


@mutant(
    "B112",
    "NVIDIA/Megatron-LM#5337",
    "NVIDIA/Megatron-LM#5338",
    "NovaSky-AI/SkyRL#1886",
    needs=(),
    named="replica-split",
)
class SumsACopy(LocalDialect):
    """Gradients of matrices are summed through a transpose, in a contiguous copy that is lost."""

    def reduce(self, model: Decoder, rank: Rank) -> None:
        for parameter in model.parameters():
            transposed = gradient_or_zeros(parameter).movedim(0, -1)
            dist.all_reduce(transposed.contiguous(), group=rank.world)


@mutant(
    "B114",
    "NovaSky-AI/SkyRL#1420",
    "NVIDIA/Megatron-LM#3959",
    "NVIDIA/Megatron-LM#673",
    "NVIDIA/Megatron-LM#906",
    "NVIDIA/Megatron-LM#1676",
    "verl-project/verl#4250",
    "verl-project/verl#6609",
    needs=("sp>1",),
    named="gradient-times-sp",
)
class CorrectedTwice(LocalDialect):
    """The loss is multiplied by sp for a mean that has become a sum; the log divides again."""

    def loss(self, case: Case, batch: Batch, *rest: Any) -> Tensor:
        return super().loss(case, batch, *rest) * case.sp

    def reported_loss(self, total: Tensor, rank: Rank) -> Tensor:
        return super().reported_loss(total, rank) / rank.sp.size()


class WeightedSum(torch.autograd.Function):
    """Sum losses times weights; backward returns the weights and ignores its own input."""

    @staticmethod
    def forward(ctx: Any, nll_L: Tensor, weights_L: Tensor) -> Tensor:
        ctx.save_for_backward(weights_L)
        return (nll_L * weights_L).sum()

    @staticmethod
    def backward(ctx: Any, _grad: Tensor) -> tuple[Tensor, None]:
        return ctx.saved_tensors[0], None


@mutant("B115", "mindspore-lab/mindone#1438", needs=(), named="gradient-scaled")
class IgnoresUpstream(LocalDialect):
    """The backward of the sum over targets forgets that the sum is divided by their number."""

    def loss(
        self, case: Case, batch: Batch, stream: Stream, nll_L: Tensor, targets: Tensor, rank: Rank
    ) -> Tensor:
        count = targets.clamp(min=1)
        weights_T = self.weights(case, batch, stream, targets) * count
        weights_L = self.cut_weights(weights_T.to(nll_L.dtype), rank)
        return apply(WeightedSum, nll_L, weights_L) / count


class OneTooMany(GatherTokens):
    """A gather whose backward returns a gradient for the group as well."""

    @staticmethod
    def backward(ctx: Any, grad_T: Tensor) -> Any:
        own, _ = GatherTokens.backward(ctx, grad_T)
        return own, own


@mutant("B116", "sgl-project/SpecForge#563", needs=(), named="crashed")
class OneGradientTooMany(GatherDialect):
    """The gather's backward returns a gradient for an input that can have none."""

    def gather_losses(self, nll_L: Tensor, rank: Rank) -> Tensor:
        return apply(OneTooMany, nll_L, rank.sp)


@mutant(
    "B118",
    "vllm-project/speculators#871",
    "vllm-project/speculators#853",
    "vllm-project/speculators#298",
    needs=(),
    named="gradient-over-sp",
)
class SumAndMeanSwapped(LocalDialect):
    """Gradients are averaged over peers and summed over replicas; it has to be the reverse."""

    def loss(self, case: Case, batch: Batch, *rest: Any) -> Tensor:
        return super().loss(case, batch, *rest) * case.dp

    def divisor(self, rank: Rank) -> int:
        return rank.dp.size()

    def reduce(self, model: Decoder, rank: Rank) -> None:
        sum_gradients(model, rank.world, divide_by=rank.sp.size())


@mutant(
    "B118b",
    "vllm-project/speculators#871",
    "vllm-project/speculators#853",
    "vllm-project/speculators#298",
    needs=("micro_batches>1",),
    named="gradient-partial",
)
class SummedAtEveryMicroBatch(LocalDialect):
    """A hook sums gradients after every micro-batch, and earlier ones again and again."""

    def forward_backward(
        self, model: Decoder, case: Case, batch: Batch, targets: Tensor, rank: Rank, emit: Emit
    ) -> Tensor:
        loss = super().forward_backward(model, case, batch, targets, rank, emit)
        super().reduce(model, rank)
        return loss

    def reduce(self, model: Decoder, rank: Rank) -> None:
        """Do nothing: the hook has summed the gradients."""


LEFT_OUT: dict[str, str] = {
    "B113": "a claim and no bug: backward may fill with zeros and sum, or gather and average; "
    "crossing the two is the step of B101 or of B102",
    "B117": "a symptom without a cause: forward equal, gradients not, as in most of this stage",
}
