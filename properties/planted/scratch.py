"""A step written from scratch, with keys gathered from all peers, and what may be wrong with it.

It shares with ours the case and the seeded weights alone, and shows what it must and no more.

Legend: T tokens of a micro-batch with its padding, L of this rank, N heads, K kv heads,
H head dim.
"""

import math
from typing import Any

import torch
from torch import Tensor
from torch import distributed as dist
from torch.nn import functional as F

from harness.candidates import Emit, Rank
from harness.case import Case
from harness.reference.weights import seeded_weights


class Scratch:
    """Right. Each part that a kin gets wrong is a method."""

    limits = (
        "dtype=fp64 model=llama tied=0 steps=1 loss=token-mean wrapper=none compiled=0 mixed=0"
    )

    def __init__(self) -> None:
        self.name = type(self).__name__

    def supports(self, case: Case) -> str | None:
        return None if any(row.supervised() for row in case.rows) else "no target"

    def run(self, case: Case, rank: Rank, emit: Emit) -> None:
        torch.manual_seed(0)
        weights = {
            name: value.to(rank.device).requires_grad_()
            for name, value in seeded_weights(case, torch.float64).items()
        }
        rows = list(range(rank.dp_index, len(case.rows), case.dp))
        total = torch.zeros((), dtype=torch.float64, device=rank.device)
        nll, numbers = [], []
        for part in torch.tensor(rows).tensor_split(case.micro_batches):
            nll_L, numbers_L, loss = self.micro_batch(case, part.tolist(), weights, rank)
            loss.backward()
            total += loss.detach()
            nll.append(nll_L.detach())
            numbers.append(numbers_L)
        emit("nll", torch.cat(nll), torch.cat(numbers))
        emit("loss", self.reported(total, rank))
        found = {name: w.grad for name, w in weights.items() if w.grad is not None}
        self.reduce(found, rank)
        for name, gradient in found.items():
            emit(f"grad.{name}", gradient)

    def micro_batch(
        self, case: Case, rows: list[int], weights: dict[str, Tensor], rank: Rank
    ) -> tuple[Tensor, Tensor, Tensor]:
        def whole(of_rows: list[range] | list[list[int]], fill: int) -> Tensor:
            flat = [number for each in of_rows for number in each]
            return torch.tensor([*flat, *[fill] * (-len(flat) % case.sp)], device=rank.device)

        ids_T = whole([list(case.ids_of(row)) for row in rows], case.pad_id)
        row_T = whole([[row] * len(case.rows[row]) for row in rows], -1)
        place_T = whole([range(len(case.rows[row])) for row in rows], 0)
        number_T = whole([range(*case.offsets[row : row + 2]) for row in rows], -1)
        target_T = whole([[int(bit) for bit in case.rows[row].mask] for row in rows], 0)
        size = len(ids_T) // case.sp
        mine = slice(rank.sp_index * size, (rank.sp_index + 1) * size)
        seen_TT = self.seen(row_T, case, size)
        x = weights["embed"][ids_T[mine]]
        position_L = self.positions(place_T, mine)
        for layer in range(case.layers):
            at = {
                k.split(".")[2]: w for k, w in weights.items() if k.startswith(f"layers.{layer}.")
            }
            y = norm(x, at["attn_norm"])
            q, k, v = (F.linear(y, at[part]).unflatten(-1, (-1, case.head_dim)) for part in "qkv")
            q, k = turned(q, position_L), turned(k, position_L)
            k_TKH, v_TKH = (self.gathered(each, rank) for each in (k, v))
            out = self.attention(q, k_TKH, v_TKH, seen_TT[mine], case)
            x = x + F.linear(out.flatten(-2), at["o"])
            y = norm(x, at["mlp_norm"])
            x = x + F.linear(F.silu(F.linear(y, at["gate"])) * F.linear(y, at["up"]), at["down"])
        logits = self.logits(F.linear(norm(x, weights["norm"]), weights["head"]))
        labels_L = self.labels(ids_T, mine)
        nll_L = F.cross_entropy(logits, labels_L, reduction="none")
        counts_L = self.counts(target_T, row_T)[mine]
        return nll_L, number_T[mine], self.loss(nll_L, counts_L, case)

    def positions(self, place_T: Tensor, mine: slice) -> Tensor:
        return place_T[mine]

    def gathered(self, x_LKH: Tensor, rank: Rank) -> Tensor:
        x_TKH: Tensor = Gathered.apply(x_LKH, rank)  # type: ignore[no-untyped-call]
        return x_TKH

    def seen(self, row_T: Tensor, case: Case, size: int) -> Tensor:  # noqa: ARG002 - of a shard
        at_T = torch.arange(len(row_T), device=row_T.device)
        back_TT = at_T[:, None] - at_T
        seen_TT = (row_T[:, None] == row_T) & (back_TT >= 0)
        return seen_TT if case.window is None else seen_TT & (back_TT < case.window)

    def attention(
        self, q_LNH: Tensor, k_TKH: Tensor, v_TKH: Tensor, seen_LT: Tensor, case: Case
    ) -> Tensor:
        k_TNH, v_TNH = (self.repeated(x, case.heads // case.kv_heads) for x in (k_TKH, v_TKH))
        scores_NLT = torch.einsum("lnh,tnh->nlt", q_LNH, k_TNH) * self.scale(case)
        scores_NLT = scores_NLT.masked_fill(~seen_LT, -math.inf)
        return torch.einsum("nlt,tnh->lnh", scores_NLT.softmax(-1), v_TNH)

    def repeated(self, x_TKH: Tensor, times: int) -> Tensor:
        return x_TKH.repeat_interleave(times, 1)

    def scale(self, case: Case) -> float:
        return 1 / math.sqrt(case.head_dim)

    def logits(self, logits: Tensor) -> Tensor:
        return logits

    def labels(self, ids_T: Tensor, mine: slice) -> Tensor:
        return ids_T.roll(-1)[mine]

    def counts(self, target_T: Tensor, row_T: Tensor) -> Tensor:
        """Where the next token is a target of the same row."""
        return (target_T.roll(-1) * (row_T.roll(-1) == row_T)).index_fill(
            0, torch.tensor([len(row_T) - 1], device=row_T.device), 0
        )

    def loss(self, nll_L: Tensor, counts_L: Tensor, case: Case) -> Tensor:
        return (nll_L * counts_L).sum() / sum(len(row.supervised()) for row in case.rows)

    def reported(self, total: Tensor, rank: Rank) -> Tensor:
        dist.all_reduce(total, group=rank.world)
        return total

    def reduce(self, gradients: dict[str, Tensor], rank: Rank) -> None:
        for gradient in gradients.values():
            dist.all_reduce(gradient, group=rank.world)


class Gathered(torch.autograd.Function):
    """What all peers have, one after the other; each gets back what all make of its own."""

    @staticmethod
    def forward(ctx: Any, x_LKH: Tensor, rank: Rank) -> Tensor:
        ctx.rank, ctx.size = rank, len(x_LKH)
        pieces = [torch.empty_like(x_LKH) for _ in range(rank.sp.size())]
        dist.all_gather(pieces, x_LKH.contiguous(), group=rank.sp)
        return torch.cat(pieces)

    @staticmethod
    def backward(ctx: Any, grad_TKH: Tensor) -> tuple[Tensor, None]:
        whole = grad_TKH.contiguous()
        dist.all_reduce(whole, group=ctx.rank.sp)
        return whole.split(ctx.size)[ctx.rank.sp_index], None


def norm(x: Tensor, weight: Tensor) -> Tensor:
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6) * weight


def turned(x_LNH: Tensor, position_L: Tensor) -> Tensor:
    half = x_LNH.shape[-1] // 2
    rate = 10000.0 ** -(torch.arange(half, dtype=torch.float64, device=x_LNH.device) / half)
    angle = position_L[:, None, None] * rate
    a, b = x_LNH.split(half, -1)
    return torch.cat((a * angle.cos() - b * angle.sin(), b * angle.cos() + a * angle.sin()), -1)


class PositionsOfTheShard(Scratch):
    def positions(self, place_T: Tensor, mine: slice) -> Tensor:
        return torch.arange(len(place_T[mine]), device=place_T.device)


class PositionsOfTheColumnsOfAShard(Scratch):
    """As where a batch is padded on the right and cut into columns."""

    def positions(self, place_T: Tensor, mine: slice) -> Tensor:
        peers = len(place_T) // len(place_T[mine])
        return place_T[mine] % -(-(int(place_T.max()) + 1) // peers)


class NoWindow(Scratch):
    def seen(self, row_T: Tensor, case: Case, size: int) -> Tensor:
        at_T = torch.arange(len(row_T), device=row_T.device)
        return super().seen(row_T, case, size) | (
            (row_T[:, None] == row_T) & (at_T[:, None] >= at_T)
        )


class RowsJoined(Scratch):
    def seen(self, row_T: Tensor, case: Case, size: int) -> Tensor:
        return super().seen(row_T.clamp(max=0), case, size)


class SeesAheadAtTheEdge(Scratch):
    def seen(self, row_T: Tensor, case: Case, size: int) -> Tensor:
        seen_TT = super().seen(row_T, case, size)
        last_T = torch.arange(size - 1, len(row_T) - 1, size, device=row_T.device)
        seen_TT[last_T, last_T + 1] = row_T[last_T] == row_T[last_T + 1]
        return seen_TT


class ScaledByThePeers(Scratch):
    def scale(self, case: Case) -> float:
        return super().scale(case) / math.sqrt(case.sp)


class KeysTiled(Scratch):
    def repeated(self, x_TKH: Tensor, times: int) -> Tensor:
        return x_TKH.repeat(1, times, 1)


class HeadsReversed(Scratch):
    def attention(
        self, q_LNH: Tensor, k_TKH: Tensor, v_TKH: Tensor, seen_LT: Tensor, case: Case
    ) -> Tensor:
        return super().attention(q_LNH, k_TKH, v_TKH, seen_LT, case).flip(1)


class LabelsOfTheShard(Scratch):
    def labels(self, ids_T: Tensor, mine: slice) -> Tensor:
        return ids_T[mine].roll(-1)


class MaskNotShifted(Scratch):
    def counts(self, target_T: Tensor, row_T: Tensor) -> Tensor:
        return target_T * (row_T >= 0)


class MeanOfMeans(Scratch):
    def loss(self, nll_L: Tensor, counts_L: Tensor, case: Case) -> Tensor:
        mean = (nll_L * counts_L).sum() / counts_L.sum().clamp(min=1)
        return mean / (case.ranks * case.micro_batches)


class KeysAveragedInBackward(Scratch):
    def gathered(self, x_LKH: Tensor, rank: Rank) -> Tensor:
        x_TKH = super().gathered(x_LKH, rank)
        return x_TKH.detach() + (x_TKH - x_TKH.detach()) / rank.sp.size()


class Clipped(Scratch):
    def reduce(self, gradients: dict[str, Tensor], rank: Rank) -> None:
        super().reduce(gradients, rank)
        size = torch.stack([gradient.norm() for gradient in gradients.values()]).norm()
        for gradient in gradients.values():
            gradient.mul_(min(1.0, 0.1 / float(size)))


class NormOfOneRank(Scratch):
    def reduce(self, gradients: dict[str, Tensor], rank: Rank) -> None:
        kept = gradients["norm"].clone()
        dist.broadcast(kept, group=rank.world, group_src=0)
        super().reduce(gradients, rank)
        gradients["norm"].copy_(kept)


class LogitsInHalf(Scratch):
    def logits(self, logits: Tensor) -> Tensor:
        return logits.bfloat16().double()


class OddBesideAWindow(Scratch):
    """Like no known bug."""

    def attention(
        self, q_LNH: Tensor, k_TKH: Tensor, v_TKH: Tensor, seen_LT: Tensor, case: Case
    ) -> Tensor:
        out_LNH = super().attention(q_LNH, k_TKH, v_TKH, seen_LT, case)
        return out_LNH if case.window is None else out_LNH.square()


class OddBesideManyHeads(KeysTiled):
    """Of a few heads a known bug; of more, another."""

    def attention(
        self, q_LNH: Tensor, k_TKH: Tensor, v_TKH: Tensor, seen_LT: Tensor, case: Case
    ) -> Tensor:
        out_LNH = super().attention(q_LNH, k_TKH, v_TKH, seen_LT, case)
        return out_LNH if case.heads <= 4 else out_LNH.square()


class ScaledALittle(Scratch):
    """Small errors everywhere, and none of them rounding."""

    def scale(self, case: Case) -> float:
        return super().scale(case) * 1.0005


class GradientsBentALittle(Scratch):
    """The same of gradients alone."""

    def reduce(self, gradients: dict[str, Tensor], rank: Rank) -> None:
        super().reduce(gradients, rank)
        for gradient in gradients.values():
            gradient.add_(gradient.square(), alpha=0.01)


class NothingSeenBesidePadding(NoWindow):
    """Two bugs: where there is padding, every loss is NaN."""

    def seen(self, row_T: Tensor, case: Case, size: int) -> Tensor:
        return super().seen(row_T, case, size) & (row_T >= 0).all()


class NoWindowAndMeanOfMeans(NoWindow, MeanOfMeans):
    """Two bugs, one in attention and one in the loss."""


# What each is to be called.
WRONG = {
    PositionsOfTheShard: "positions-restarted",
    PositionsOfTheColumnsOfAShard: "positions-restarted",
    NoWindow: "window-ignored",
    RowsJoined: "segment-leak",
    SeesAheadAtTheEdge: "future-leak",
    ScaledByThePeers: "softmax-scale",
    KeysTiled: "kv-repeat",
    HeadsReversed: "head-order",
    LabelsOfTheShard: "label-rolled-locally",
    MaskNotShifted: "mask-shifted",
    MeanOfMeans: "denominator-per-rank",
    KeysAveragedInBackward: "gradient-partial",
    Clipped: "gradient-scaled",
    NormOfOneRank: "gradient-partial",
    LogitsInHalf: "low-precision",
}
SCRATCH, ODD, ODDOFMANY = Scratch(), OddBesideAWindow(), OddBesideManyHeads()
BOTH = NoWindowAndMeanOfMeans()
SCALED, BENT = ScaledALittle(), GradientsBentALittle()
NOTHINGSEENBESIDEPADDING = NothingSeenBesidePadding()
globals().update({kind.__name__.upper(): kind() for kind in WRONG})
