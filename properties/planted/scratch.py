"""A step written from scratch, which gathers keys from all peers, and variants of it with bugs.

It shares only the case and the seeded weights with the native step, and emits only the required
tensors. Class names say what is wrong; `WRONG` has the anomaly that each must be named.

Legend: T tokens of a micro-batch with its padding, L tokens on this rank, N heads, K kv heads,
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
    """The correct step. Each part that a subclass gets wrong is a method."""

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
        emit("loss", self.reported_loss(total, rank))
        found = {name: w.grad for name, w in weights.items() if w.grad is not None}
        self.reduce(found, rank)
        for name, gradient in found.items():
            emit(f"grad.{name}", gradient)

    def micro_batch(
        self, case: Case, rows: list[int], weights: dict[str, Tensor], rank: Rank
    ) -> tuple[Tensor, Tensor, Tensor]:
        def padded(values: list[range] | list[list[int]], fill: int) -> Tensor:
            flat = [number for row in values for number in row]
            return torch.tensor([*flat, *[fill] * (-len(flat) % case.sp)], device=rank.device)

        ids_T = padded([list(case.ids_of(row)) for row in rows], case.pad_id)
        row_T = padded([[row] * len(case.rows[row]) for row in rows], -1)
        place_T = padded([range(len(case.rows[row])) for row in rows], 0)
        number_T = padded([range(*case.offsets[row : row + 2]) for row in rows], -1)
        target_T = padded([[int(bit) for bit in case.rows[row].mask] for row in rows], 0)
        size = len(ids_T) // case.sp
        own = slice(rank.sp_index * size, (rank.sp_index + 1) * size)
        seen_TT = self.visible(row_T, case, size)
        x = weights["embed"][ids_T[own]]
        position_L = self.positions(place_T, own)
        for layer in range(case.layers):
            at = {
                k.split(".")[2]: w for k, w in weights.items() if k.startswith(f"layers.{layer}.")
            }
            y = norm(x, at["attn_norm"])
            q, k, v = (F.linear(y, at[part]).unflatten(-1, (-1, case.head_dim)) for part in "qkv")
            q, k = rotate(q, position_L), rotate(k, position_L)
            k_TKH, v_TKH = (self.gather(x_LKH, rank) for x_LKH in (k, v))
            out = self.attention(q, k_TKH, v_TKH, seen_TT[own], case)
            x = x + F.linear(out.flatten(-2), at["o"])
            y = norm(x, at["mlp_norm"])
            x = x + F.linear(F.silu(F.linear(y, at["gate"])) * F.linear(y, at["up"]), at["down"])
        logits = self.logits(F.linear(norm(x, weights["norm"]), weights["head"]))
        labels_L = self.labels(ids_T, own)
        nll_L = F.cross_entropy(logits, labels_L, reduction="none")
        counts_L = self.is_target(target_T, row_T)[own]
        return nll_L, number_T[own], self.loss(nll_L, counts_L, case)

    def positions(self, place_T: Tensor, own: slice) -> Tensor:
        return place_T[own]

    def gather(self, x_LKH: Tensor, rank: Rank) -> Tensor:
        x_TKH: Tensor = Gathered.apply(x_LKH, rank)  # type: ignore[no-untyped-call]
        return x_TKH

    def visible(self, row_T: Tensor, case: Case, size: int) -> Tensor:  # noqa: ARG002 - overrides
        at_T = torch.arange(len(row_T), device=row_T.device)
        back_TT = at_T[:, None] - at_T
        seen_TT = (row_T[:, None] == row_T) & (back_TT >= 0)
        return seen_TT if case.window is None else seen_TT & (back_TT < case.window)

    def attention(
        self, q_LNH: Tensor, k_TKH: Tensor, v_TKH: Tensor, seen_LT: Tensor, case: Case
    ) -> Tensor:
        k_TNH, v_TNH = (self.repeat_heads(x, case.heads // case.kv_heads) for x in (k_TKH, v_TKH))
        scores_NLT = torch.einsum("lnh,tnh->nlt", q_LNH, k_TNH) * self.softmax_scale(case)
        scores_NLT = scores_NLT.masked_fill(~seen_LT, -math.inf)
        return torch.einsum("nlt,tnh->lnh", scores_NLT.softmax(-1), v_TNH)

    def repeat_heads(self, x_TKH: Tensor, times: int) -> Tensor:
        return x_TKH.repeat_interleave(times, 1)

    def softmax_scale(self, case: Case) -> float:
        return 1 / math.sqrt(case.head_dim)

    def logits(self, logits: Tensor) -> Tensor:
        return logits

    def labels(self, ids_T: Tensor, own: slice) -> Tensor:
        return ids_T.roll(-1)[own]

    def is_target(self, target_T: Tensor, row_T: Tensor) -> Tensor:
        """Return where the next token is a target of the same row."""
        return (target_T.roll(-1) * (row_T.roll(-1) == row_T)).index_fill(
            0, torch.tensor([len(row_T) - 1], device=row_T.device), 0
        )

    def loss(self, nll_L: Tensor, counts_L: Tensor, case: Case) -> Tensor:
        return (nll_L * counts_L).sum() / sum(len(row.supervised()) for row in case.rows)

    def reported_loss(self, total: Tensor, rank: Rank) -> Tensor:
        dist.all_reduce(total, group=rank.world)
        return total

    def reduce(self, gradients: dict[str, Tensor], rank: Rank) -> None:
        for gradient in gradients.values():
            dist.all_reduce(gradient, group=rank.world)


class Gathered(torch.autograd.Function):
    """Gather the pieces of all peers; backward sums the gradients of each peer's piece."""

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


def rotate(x_LNH: Tensor, position_L: Tensor) -> Tensor:
    half = x_LNH.shape[-1] // 2
    rate = 10000.0 ** -(torch.arange(half, dtype=torch.float64, device=x_LNH.device) / half)
    angle = position_L[:, None, None] * rate
    a, b = x_LNH.split(half, -1)
    return torch.cat((a * angle.cos() - b * angle.sin(), b * angle.cos() + a * angle.sin()), -1)


class PositionsOfTheShard(Scratch):
    def positions(self, place_T: Tensor, own: slice) -> Tensor:
        return torch.arange(len(place_T[own]), device=place_T.device)


class PositionsOfTheColumnsOfAShard(Scratch):
    """Positions restart as if a batch, padded on the right, were cut into columns."""

    def positions(self, place_T: Tensor, own: slice) -> Tensor:
        peers = len(place_T) // len(place_T[own])
        return place_T[own] % -(-(int(place_T.max()) + 1) // peers)


class NoWindow(Scratch):
    def visible(self, row_T: Tensor, case: Case, size: int) -> Tensor:
        at_T = torch.arange(len(row_T), device=row_T.device)
        return super().visible(row_T, case, size) | (
            (row_T[:, None] == row_T) & (at_T[:, None] >= at_T)
        )


class RowsJoined(Scratch):
    def visible(self, row_T: Tensor, case: Case, size: int) -> Tensor:
        return super().visible(row_T.clamp(max=0), case, size)


class SeesAheadAtTheEdge(Scratch):
    def visible(self, row_T: Tensor, case: Case, size: int) -> Tensor:
        seen_TT = super().visible(row_T, case, size)
        last_T = torch.arange(size - 1, len(row_T) - 1, size, device=row_T.device)
        seen_TT[last_T, last_T + 1] = row_T[last_T] == row_T[last_T + 1]
        return seen_TT


class ScaledByThePeers(Scratch):
    def softmax_scale(self, case: Case) -> float:
        return super().softmax_scale(case) / math.sqrt(case.sp)


class KeysTiled(Scratch):
    def repeat_heads(self, x_TKH: Tensor, times: int) -> Tensor:
        return x_TKH.repeat(1, times, 1)


class HeadsReversed(Scratch):
    def attention(
        self, q_LNH: Tensor, k_TKH: Tensor, v_TKH: Tensor, seen_LT: Tensor, case: Case
    ) -> Tensor:
        return super().attention(q_LNH, k_TKH, v_TKH, seen_LT, case).flip(1)


class LabelsOfTheShard(Scratch):
    def labels(self, ids_T: Tensor, own: slice) -> Tensor:
        return ids_T[own].roll(-1)


class MaskNotShifted(Scratch):
    def is_target(self, target_T: Tensor, row_T: Tensor) -> Tensor:
        return target_T * (row_T >= 0)


class MeanOfMeans(Scratch):
    def loss(self, nll_L: Tensor, counts_L: Tensor, case: Case) -> Tensor:
        mean = (nll_L * counts_L).sum() / counts_L.sum().clamp(min=1)
        return mean / (case.ranks * case.micro_batches)


class KeysAveragedInBackward(Scratch):
    def gather(self, x_LKH: Tensor, rank: Rank) -> Tensor:
        x_TKH = super().gather(x_LKH, rank)
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
    """With a window it is wrong in a way that resembles no known bug."""

    def attention(
        self, q_LNH: Tensor, k_TKH: Tensor, v_TKH: Tensor, seen_LT: Tensor, case: Case
    ) -> Tensor:
        out_LNH = super().attention(q_LNH, k_TKH, v_TKH, seen_LT, case)
        return out_LNH if case.window is None else out_LNH.square()


class OddBesideManyHeads(KeysTiled):
    """With few heads it has a known bug, with more it has another one as well."""

    def attention(
        self, q_LNH: Tensor, k_TKH: Tensor, v_TKH: Tensor, seen_LT: Tensor, case: Case
    ) -> Tensor:
        out_LNH = super().attention(q_LNH, k_TKH, v_TKH, seen_LT, case)
        return out_LNH if case.heads <= 4 else out_LNH.square()


class ScaledALittle(Scratch):
    """Its errors are small everywhere, and none is due to rounding."""

    def softmax_scale(self, case: Case) -> float:
        return super().softmax_scale(case) * 1.0005


class GradientsBentALittle(Scratch):
    """Its gradients have small errors, and none is due to rounding."""

    def reduce(self, gradients: dict[str, Tensor], rank: Rank) -> None:
        super().reduce(gradients, rank)
        for gradient in gradients.values():
            gradient.add_(gradient.square(), alpha=0.01)


class NothingSeenBesidePadding(NoWindow):
    """It has two bugs: it ignores windows, and with padding every loss is NaN."""

    def visible(self, row_T: Tensor, case: Case, size: int) -> Tensor:
        return super().visible(row_T, case, size) & (row_T >= 0).all()


class NoWindowAndMeanOfMeans(NoWindow, MeanOfMeans):
    """It has two bugs, one in attention and one in the loss."""


# The anomaly that the diagnosis must name for each.
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
