"""Bugs in the all-to-all of attention and in the layout of heads.

Legend: L tokens on this rank, T tokens of the padded stream, N heads, K kv heads, M query heads on
this rank, C kv heads on this rank, H head dim, s peers.
"""

from dataclasses import replace

import torch
from torch import Tensor

from harness.candidates import Rank
from harness.candidates.bank import mutant
from harness.candidates.own.native import GatherDialect, LocalDialect
from harness.candidates.own.native.attention import Kernel, Segments
from harness.candidates.own.native.exchange import gather_tokens
from harness.candidates.own.native.ulysses import Shard, Stream
from harness.case import Case

# Messages with more elements than this arrive broken.
LARGE = 128


@mutant("B40", "deepspeedai/DeepSpeed#5664", needs=("sp>1",), named="head-order")
class ReshapedOnTheWayIn(GatherDialect):
    """Queries, keys and values are reshaped for the exchange where axes should be moved."""

    def gather_tokens(self, tensors: tuple[Tensor, ...], rank: Rank) -> tuple[Tensor, ...]:
        reshaped = tuple(sent_in_memory_order(x, rank.sp.size()) for x in tensors)
        return super().gather_tokens(reshaped, rank)


@mutant("B40b", "deepspeedai/DeepSpeed#5664", needs=("sp>1",), named="gradient-partial")
class GradientReshapedOnTheWayIn(LocalDialect):
    """The output's gradient is reshaped for the exchange where axes should be moved."""

    def scatter_tokens(self, out_TMH: Tensor, rank: Rank) -> Tensor:
        out_LNH = super().scatter_tokens(out_TMH, rank)
        out_LNH.register_hook(lambda grad: sent_in_memory_order(grad, rank.sp.size()))
        return out_LNH


@mutant(
    "B41",
    "deepspeedai/DeepSpeed#5808",
    "deepspeedai/DeepSpeed#5823",
    "deepspeedai/DeepSpeed#5366",
    needs=("sp>1",),
    named="head-order",
)
class SeveralInOneExchange(LocalDialect):
    """The exchange is right for one tensor; several lie tensor by tensor, and peers mix them."""

    def gather_tokens(self, tensors: tuple[Tensor, ...], rank: Rank) -> tuple[Tensor, ...]:
        heads = [x_LNH.shape[1] // rank.sp.size() for x_LNH in tensors]
        received: tuple[Tensor, ...] = gather_tokens(torch.cat(tensors, 1), rank.sp).split(
            heads, 1
        )
        return received


@mutant(
    "B42",
    "deepspeedai/DeepSpeed#8317",
    "deepspeedai/DeepSpeed#6750",
    "deepspeedai/DeepSpeed#7868",
    needs=("sp>1", "heads>3"),
    named="head-order",
)
class HeadsBeforeRanks(GatherDialect):
    """On the way back heads are joined as (head, rank), where (rank, head) was meant."""

    def scatter_tokens(self, out_TMH: Tensor, rank: Rank) -> Tensor:
        out_LNH = super().scatter_tokens(out_TMH, rank)
        joined_LNH: Tensor = (
            out_LNH.unflatten(1, (rank.sp.size(), -1)).transpose(1, 2).flatten(1, 2)
        )
        return joined_LNH


@mutant(
    "B42b",
    "deepspeedai/DeepSpeed#8317",
    "deepspeedai/DeepSpeed#6750",
    "deepspeedai/DeepSpeed#7868",
    needs=("sp>1",),
    named="head-order",
)
class ShapeOfTheWayIn(LocalDialect):
    """The way back joins ranks with tokens, as the way in does, and the shape fits by luck."""

    def scatter_tokens(self, out_TMH: Tensor, rank: Rank) -> Tensor:
        return received_in_memory_order(super().scatter_tokens(out_TMH, rank), rank.sp.size())


@mutant(
    "B43",
    "deepspeedai/DeepSpeed#5664",
    "deepspeedai/DeepSpeed#8317",
    needs=("sp>1",),
    named="head-order",
)
class BlocksRolled(LocalDialect):
    """Heads come back one rank's block further on than they left."""

    def scatter_tokens(self, out_TMH: Tensor, rank: Rank) -> Tensor:
        return super().scatter_tokens(out_TMH, rank).roll(out_TMH.shape[1], 1)


@mutant(
    "B43b",
    "deepspeedai/DeepSpeed#5664",
    "deepspeedai/DeepSpeed#8317",
    needs=("sp>1", "kv_heads>1"),
    named="kv-repeat",
)
class KeysOfTheNeighbour(GatherDialect):
    """Keys and values leave one rank's block further on than the queries that need them."""

    def gather_tokens(self, tensors: tuple[Tensor, ...], rank: Rank) -> tuple[Tensor, ...]:
        q_LNH, *rest = tensors
        rolled = (x_LKH.roll(x_LKH.shape[1] // rank.sp.size(), 1) for x_LKH in rest)
        return super().gather_tokens((q_LNH, *rolled), rank)


@mutant(
    "B44",
    "verl-project/verl#850",
    "verl-project/verl#827",
    "PrimeIntellect-ai/prime-rl#3042",
    needs=("kv heads < sp",),
    named="crashed",
)
class FewerHeadsThanRanks(LocalDialect):
    """Kv heads are split over more ranks than there are heads, without being repeated."""

    def repeat_kv_heads(self, x_LKH: Tensor, rank: Rank) -> Tensor:  # noqa: ARG002 - the bug
        return x_LKH


@mutant(
    "B44b",
    "verl-project/verl#850",
    "verl-project/verl#827",
    "PrimeIntellect-ai/prime-rl#3042",
    needs=("kv heads < sp",),
    named="gradient-partial",
)
class GradientOfOneCopy(GatherDialect):
    """Only the first copy's gradient of a kv head that several ranks share is kept."""

    def repeat_kv_heads(self, x_LKH: Tensor, rank: Rank) -> Tensor:
        copies = super().repeat_kv_heads(x_LKH, rank).detach()
        copies[:, :: copies.shape[1] // x_LKH.shape[1]] = x_LKH
        return copies


@mutant("B45", "ekzhang/jax-js#180", needs=("kv heads < sp", "kv_heads>1"), named="kv-repeat")
class TiledForRanks(GatherDialect):
    """Kv heads are tiled over the ranks, 0 1 0 1, where each should lie beside its copies."""

    def repeat_kv_heads(self, x_LKH: Tensor, rank: Rank) -> Tensor:
        return x_LKH.repeat(1, max(1, rank.sp.size() // x_LKH.shape[1]), 1)


@mutant("B45b", "ekzhang/jax-js#180", needs=("kv_heads>1", "heads>3"), named="kv-repeat")
class TiledForQueries(LocalDialect):
    """A rank's kv heads are tiled over its queries, 0 1 0 1, where 0 0 1 1 was meant."""

    def kernel(self, case: Case) -> Kernel:
        attention = super().kernel(case)

        def tiled(q_TMH: Tensor, k_TCH: Tensor, v_TCH: Tensor, segments: Segments) -> Tensor:
            k_TMH, v_TMH = (x.repeat(1, q_TMH.shape[1] // x.shape[1], 1) for x in (k_TCH, v_TCH))
            return attention(q_TMH, k_TMH, v_TMH, segments)

        return tiled


@mutant(
    "B46", "vllm-project/vllm-omni#5716", needs=("kv heads < sp", "kv_heads>1"), named="kv-repeat"
)
class KvHeadsPaddedAlone(LocalDialect):
    """Kv heads are rounded up to the number of ranks by a copy of the last, queries are not."""

    def repeat_kv_heads(self, x_LKH: Tensor, rank: Rank) -> Tensor:
        missing = -x_LKH.shape[1] % rank.sp.size()
        return torch.cat((x_LKH, x_LKH[:, -1:].expand(-1, missing, -1)), 1)


@mutant(
    "B47",
    "deepspeedai/DeepSpeed#8291",
    "deepspeedai/DeepSpeed#8316",
    needs=("sp>1", "kv_heads>1", "heads>3"),
    named="kv-repeat",
)
class GroupTorn(GatherDialect):
    """Queries are dealt to ranks in turn, kv heads in blocks: a group's queries are torn apart."""

    def attend(
        self,
        q_LNH: Tensor,
        k_LKH: Tensor,
        v_LKH: Tensor,
        segments: Segments,
        case: Case,
        rank: Rank,
    ) -> Tensor:
        dealt_LNH = q_LNH.unflatten(1, (-1, case.sp)).transpose(1, 2).flatten(1, 2)
        out_LNH = super().attend(dealt_LNH, k_LKH, v_LKH, segments, case, rank)
        joined_LNH: Tensor = out_LNH.unflatten(1, (case.sp, -1)).transpose(1, 2).flatten(1, 2)
        return joined_LNH


@mutant(
    "B48",
    "deepspeedai/DeepSpeed#8291",
    "deepspeedai/DeepSpeed#8316",
    needs=("kv_heads>1",),
    named="stale-state",
)
class HeadsOfTheFirstModel(LocalDialect):
    """How many queries share a kv head is remembered from the first model of the process."""

    sharing: int | None = None

    def kernel(self, case: Case) -> Kernel:
        attention = super().kernel(case)
        sharing = self.sharing = self.sharing or case.heads // case.kv_heads

        def remembered(q_TMH: Tensor, k_TCH: Tensor, v_TCH: Tensor, segments: Segments) -> Tensor:
            kv_M = torch.arange(q_TMH.shape[1]) // sharing % k_TCH.shape[1]
            return attention(q_TMH, k_TCH[:, kv_M], v_TCH[:, kv_M], segments)

        return remembered


@mutant(
    "B49",
    "vllm-project/vllm-omni#6930",
    "sgl-project/sglang#33327",
    needs=("sp>1",),
    named="keys-repeated",
)
class PrefixExchangedToo(GatherDialect):
    """Keys of the first shard, which all ranks have, are exchanged: each counts once per rank."""

    def kernel(self, case: Case) -> Kernel:
        attention = super().kernel(case)

        def again(q_TMH: Tensor, k_TCH: Tensor, v_TCH: Tensor, segments: Segments) -> Tensor:
            at = torch.arange(len(k_TCH))
            at = torch.cat((at, at[: len(at) // case.sp].repeat(case.sp - 1)))
            seen = Segments.masked(segments.allowed_TT[:, at])
            return attention(q_TMH, k_TCH[at], v_TCH[at], seen)

        return again


@mutant("B50", "sgl-project/sglang#33353", needs=("dp>1",), named="crashed")
class ExchangedOverTheWorld(LocalDialect):
    """Attention is given the group of all ranks, replicas and all, for its exchange."""

    def attend(
        self,
        q_LNH: Tensor,
        k_LKH: Tensor,
        v_LKH: Tensor,
        segments: Segments,
        case: Case,
        rank: Rank,
    ) -> Tensor:
        everyone = replace(rank, sp=rank.world)
        return super().attend(q_LNH, k_LKH, v_LKH, segments, case, everyone)


@mutant("B51", "NVIDIA/TransformerEngine#530", needs=("sp>1",), named="gradient-partial")
class JoinedAlongTheFirstAxis(GatherDialect):
    """Gradients come back stacked by rank and are viewed as if joined along the heads."""

    def gather_tokens(self, tensors: tuple[Tensor, ...], rank: Rank) -> tuple[Tensor, ...]:
        for x_LNH in tensors:
            x_LNH.register_hook(lambda grad: received_in_memory_order(grad, rank.sp.size()))
        return super().gather_tokens(tensors, rank)


@mutant("B53", "volcengine/verl", needs=("T divisible by sp",), named="crashed")
class CutWherePadded(LocalDialect):
    """Labels are cut on the branch that pads; where there is nothing to pad they stay whole."""

    def shard(self, case: Case, stream: Stream, rank: Rank) -> Shard:
        shard = super().shard(case, stream, rank)
        return shard if shard.pad else replace(shard, labels_L=stream.labels_T)


@mutant(
    "B54",
    "verl-project/verl#6212",
    "verl-project/verl#7137",
    "modelscope/ms-swift#8468",
    "pytorch/pytorch#144267",
    needs=("heads>1",),
    named="head-order",
)
class SentAsStored(GatherDialect):
    """Attention's output is a transposed view, and the exchange sends it as memory has it."""

    def scatter_tokens(self, out_TMH: Tensor, rank: Rank) -> Tensor:
        stored_MTH = out_TMH.transpose(0, 1)
        return super().scatter_tokens(stored_MTH.reshape(out_TMH.shape), rank)


@mutant("B55", "intel/torch-xpu-ops#3021", needs=("sp>1",), named="head-order")
class LargeMessagesBroken(LocalDialect):
    """The backend swaps what the first two peers sent when a message is large."""

    def scatter_tokens(self, out_TMH: Tensor, rank: Rank) -> Tensor:
        out_LNH, size = super().scatter_tokens(out_TMH, rank), out_TMH.shape[1]
        if out_LNH.numel() <= LARGE:
            return out_LNH
        first, second, rest = out_LNH.tensor_split((size, 2 * size), 1)
        return torch.cat((second, first, rest), 1)


def sent_in_memory_order(x_LNH: Tensor, sp: int) -> Tensor:
    """Rearrange a tensor so that the exchange sends consecutive memory instead of heads."""
    pieces_sLMH = x_LNH.reshape(sp, x_LNH.shape[0], -1, x_LNH.shape[2])
    return pieces_sLMH.movedim(0, 1).flatten(1, 2)


def received_in_memory_order(x_LNH: Tensor, sp: int) -> Tensor:
    """Rearrange a tensor as if the received pieces stayed in the order in which they arrive."""
    pieces_sLMH: Tensor = x_LNH.unflatten(1, (sp, -1)).movedim(1, 0)
    return pieces_sLMH.reshape(x_LNH.shape)


LEFT_OUT: dict[str, str] = {}
