"""A small Llama-architecture decoder, to be read aloud.

It knows nothing about batches, padding, rows or ranks: it maps whatever tokens it is given, with
their positions, to logits, and asks its caller to do the attention between tokens. The reference
calls it with a padded batch, the sequence-parallel path with the tokens of one rank.

Legend: ... any leading token dims, (B, S) in a padded batch or (L,) on a rank,
        D hidden, F feed-forward, N heads, K kv heads, H head dim, V vocabulary.
"""

from collections.abc import Callable
from typing import Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from harness.case import Case
from harness.reference.weights import seeded_weights

ROPE_BASE = 10000.0
NORM_EPSILON = 1e-6

# attend(q, k, v) -> out: the only place where one token sees another.
Attend = Callable[[Tensor, Tensor, Tensor], Tensor]


class Tap(Protocol):
    """Told the name and value of every intermediate tensor, in execution order."""

    def __call__(self, key: str, tensor: Tensor, /) -> None: ...


class Decoder(nn.Module):
    """Embedding, layers, norm, head."""

    def __init__(self, case: Case, dtype: torch.dtype, device: torch.device | str = "cpu") -> None:
        super().__init__()
        self.recompute, self.head_dim = case.checkpoint, case.head_dim
        weights = {
            name: nn.Parameter(weight.to(device))
            for name, weight in seeded_weights(case, dtype).items()
        }
        self.embed = Weighted(weights["embed.weight"])
        self.layers = nn.ModuleList(Layer(case, weights, i) for i in range(case.layers))
        self.norm = Norm(weights["norm.weight"])
        self.head = Linear(weights["embed.weight" if case.tied else "head.weight"])

    def forward(self, ids: Tensor, positions: Tensor, attend: Attend, tap: Tap) -> Tensor:
        """Logits ...V for ids ... at positions ..."""
        watch = Once(tap)
        x = F.embedding(ids, self.embed.weight)
        watch("embed", x)
        rotation = rope_rotation(positions, self.head_dim, x.dtype)
        for layer in self.layers:
            if self.recompute:
                x = checkpoint(layer, x, rotation, attend, watch, use_reentrant=False)
            else:
                x = layer(x, rotation, attend, watch)
        logits: Tensor = self.head(self.norm(x))
        watch("logits", logits)
        watch.over = True
        return logits


class Once:
    """A tap that falls silent after forward: checkpointing runs layers again in backward."""

    def __init__(self, tap: Tap) -> None:
        self.tap, self.over = tap, False

    def __call__(self, key: str, tensor: Tensor, /) -> None:
        if not self.over:
            self.tap(key, tensor)


class Layer(nn.Module):
    """Attention and feed-forward, each behind a norm and added to the stream."""

    def __init__(self, case: Case, weights: dict[str, nn.Parameter], index: int) -> None:
        super().__init__()
        name = self.name = f"layers.{index}"
        self.attn_norm = Norm(weights[f"{name}.attn_norm.weight"])
        self.attn = Attention(case, weights, f"{name}.attn")
        self.mlp_norm = Norm(weights[f"{name}.mlp_norm.weight"])
        self.mlp = FeedForward(weights, f"{name}.mlp")

    def forward(
        self, x: Tensor, rotation: tuple[Tensor, Tensor], attend: Attend, tap: Tap
    ) -> Tensor:
        x = x + self.attn(self.attn_norm(x), rotation, attend, tap)
        x = x + self.mlp(self.mlp_norm(x))
        tap(f"{self.name}.out", x)
        return x


class Attention(nn.Module):
    """Project, rotate, attend, project back."""

    def __init__(self, case: Case, weights: dict[str, nn.Parameter], name: str) -> None:
        super().__init__()
        self.name, self.head_dim = name, case.head_dim
        self.q, self.k, self.v, self.o = (Linear(weights[f"{name}.{p}.weight"]) for p in "qkvo")

    def forward(
        self, x: Tensor, rotation: tuple[Tensor, Tensor], attend: Attend, tap: Tap
    ) -> Tensor:
        q = rotate(self.q(x).unflatten(-1, (-1, self.head_dim)), rotation)
        k = rotate(self.k(x).unflatten(-1, (-1, self.head_dim)), rotation)
        v = self.v(x).unflatten(-1, (-1, self.head_dim))
        tap(f"{self.name}.q", q)
        tap(f"{self.name}.k", k)
        tap(f"{self.name}.v", v)
        out = attend(q, k, v)
        tap(f"{self.name}.out", out)
        projected: Tensor = self.o(out.flatten(-2))
        return projected


class FeedForward(nn.Module):
    """SwiGLU."""

    def __init__(self, weights: dict[str, nn.Parameter], name: str) -> None:
        super().__init__()
        self.gate, self.up, self.down = (
            Linear(weights[f"{name}.{part}.weight"]) for part in ("gate", "up", "down")
        )

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.down(F.silu(self.gate(x)) * self.up(x))
        return out


class Weighted(nn.Module):
    """Holds one weight."""

    def __init__(self, weight: nn.Parameter) -> None:
        super().__init__()
        self.weight = weight


class Linear(Weighted):
    """x W^T, no bias."""

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight)


class Norm(Weighted):
    """Root-mean-square norm, computed in fp32 or better."""

    def forward(self, x: Tensor) -> Tensor:
        wide = at_least_fp32(x)
        scale = torch.rsqrt(wide.square().mean(-1, keepdim=True) + NORM_EPSILON)
        return self.weight * (wide * scale).to(x.dtype)


def rope_rotation(positions: Tensor, head_dim: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Cosine and sine for every position, shaped ...1H so that they apply to every head."""
    exponents = torch.arange(0, head_dim, 2, dtype=torch.float64, device=positions.device)
    angles = positions.unsqueeze(-1) * ROPE_BASE ** (-exponents / head_dim)
    both_halves = torch.cat((angles, angles), -1).unsqueeze(-2)
    return both_halves.cos().to(dtype), both_halves.sin().to(dtype)


def rotate(x: Tensor, rotation: tuple[Tensor, Tensor]) -> Tensor:
    """Turn each pair (x_i, x_{i + H/2}) by its position's angle."""
    cos, sin = rotation
    first, second = x.chunk(2, -1)
    return x * cos + torch.cat((-second, first), -1) * sin


def at_least_fp32(x: Tensor) -> Tensor:
    """The precision that sums, norms, softmax and losses are computed in."""
    return x if x.dtype in (torch.float64, torch.float32) else x.float()
