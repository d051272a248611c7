"""A small decoder of the Llama, Qwen2 or Qwen3 architecture, written to be easy to check.

It knows nothing about batches, padding, rows or ranks. It maps any tokens, with their positions,
to logits, and lets its caller do the attention between tokens. The reference calls it with a
padded batch, our sequence-parallel step with the tokens of one rank.

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

# attend(q, k, v) -> out: the only function in which one token sees another.
Attend = Callable[[Tensor, Tensor, Tensor], Tensor]
# head(x) -> logits, for any tokens of the last hidden state.
Head = Callable[[Tensor], Tensor]
# read(x, head) -> the output that the caller wants from the last hidden state instead of logits.
Read = Callable[[Tensor, Head], Tensor]


class Tap(Protocol):
    """A callback that gets the name and value of every intermediate tensor, in execution order."""

    def __call__(self, key: str, tensor: Tensor, /) -> None: ...


class Decoder(nn.Module):
    """The model of a case with its seeded weights: embedding, layers, norm, head."""

    def __init__(self, case: Case, dtype: torch.dtype, device: torch.device | str = "cpu") -> None:
        super().__init__()
        self.recompute, self.head_dim, self.dtype = case.checkpoint, case.head_dim, dtype
        weights = {
            name: nn.Parameter(weight.to(device))
            for name, weight in seeded_weights(case, dtype).items()
        }
        self.embed = weights["embed"]
        self.layers = nn.ModuleList(Layer(case, weights, i) for i in range(case.layers))
        self.norm = weights["norm"]
        self.head = weights["embed" if case.tied else "head"]

    def forward(
        self,
        ids: Tensor,
        positions: Tensor,
        attend: Attend,
        tap: Tap,
        read: Read | None = None,
    ) -> Tensor:
        """Return logits ...V for ids ... at positions ..., or the output of `read` if given."""
        forward_tap = ForwardTap(tap)
        x = F.embedding(ids, self.embed).to(self.dtype)
        forward_tap("embed", x)
        rotation = rope_rotation(positions, self.head_dim, x.dtype)
        for layer in self.layers:
            if self.recompute:
                x = checkpoint(layer, x, rotation, attend, forward_tap, use_reentrant=False)
            else:
                x = layer(x, rotation, attend, forward_tap)
        x = rms_norm(x, self.norm)
        if read is None:
            x = self.logits(x)
            forward_tap("logits", x)
        else:
            x = read(x, self.logits)
        forward_tap.is_over = True
        return x

    def logits(self, x: Tensor) -> Tensor:
        return linear(x, self.head)


class ForwardTap:
    """A tap that does nothing after forward, as checkpointing runs layers again in backward."""

    def __init__(self, tap: Tap) -> None:
        self.tap, self.is_over = tap, False

    def __call__(self, key: str, tensor: Tensor, /) -> None:
        if not self.is_over:
            self.tap(key, tensor)


class Layer(nn.Module):
    """One layer: attention, then SwiGLU, each after a norm and added to the hidden state."""

    def __init__(self, case: Case, weights: dict[str, nn.Parameter], index: int) -> None:
        super().__init__()
        name = self.name = f"layers.{index}"
        self.head_dim = case.head_dim
        self.attn_norm = weights[f"{name}.attn_norm"]
        self.q, self.k, self.v, self.o = (weights[f"{name}.{part}"] for part in "qkvo")
        # Only qwen2 has these biases, and only qwen3 norms of queries and keys.
        self.q_bias, self.k_bias, self.v_bias = (
            weights.get(f"{name}.{part}_bias") for part in "qkv"
        )
        self.q_norm, self.k_norm = (weights.get(f"{name}.{part}_norm") for part in "qk")
        self.mlp_norm = weights[f"{name}.mlp_norm"]
        self.gate, self.up, self.down = (
            weights[f"{name}.{part}"] for part in ("gate", "up", "down")
        )

    def forward(
        self, x: Tensor, rotation: tuple[Tensor, Tensor], attend: Attend, tap: Tap
    ) -> Tensor:
        x = x + self.attention(rms_norm(x, self.attn_norm), rotation, attend, tap)
        x = x + self.feed_forward(rms_norm(x, self.mlp_norm))
        tap(f"{self.name}.out", x)
        return x

    def attention(
        self, x: Tensor, rotation: tuple[Tensor, Tensor], attend: Attend, tap: Tap
    ) -> Tensor:
        """Return the output of attention: project, rotate, attend, project back."""
        q, k, v = self.project(x, rotation)
        tap(f"{self.name}.attn.q", q)
        tap(f"{self.name}.attn.k", k)
        tap(f"{self.name}.attn.v", v)
        out = attend(q, k, v)
        tap(f"{self.name}.attn.out", out)
        return linear(out.flatten(-2), self.o)

    def project(self, x: Tensor, rotation: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
        """Return rotated queries, rotated keys, and values."""
        q, k, v = (
            linear(x, weight, bias).unflatten(-1, (-1, self.head_dim))
            for weight, bias in (
                (self.q, self.q_bias),
                (self.k, self.k_bias),
                (self.v, self.v_bias),
            )
        )
        if self.q_norm is not None and self.k_norm is not None:
            q, k = rms_norm(q, self.q_norm), rms_norm(k, self.k_norm)
        return rotate(q, rotation), rotate(k, rotation), v

    def feed_forward(self, x: Tensor) -> Tensor:
        """Return the output of SwiGLU."""
        return linear(F.silu(linear(x, self.gate)) * linear(x, self.up), self.down)


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Project in the dtype of the input, even if the weight is held in a wider one."""
    return F.linear(x, weight.to(x.dtype), None if bias is None else bias.to(x.dtype))


def rms_norm(x: Tensor, weight: Tensor) -> Tensor:
    """Return the root-mean-square norm, computed in fp32 or better."""
    wide = at_least_fp32(x)
    scale = torch.rsqrt(wide.square().mean(-1, keepdim=True) + NORM_EPSILON)
    return weight.to(x.dtype) * (wide * scale).to(x.dtype)


def rope_rotation(positions: Tensor, head_dim: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Return cosine and sine of every position, shaped ...1H so that they apply to every head."""
    exponents = torch.arange(0, head_dim, 2, dtype=torch.float64, device=positions.device)
    angles = positions.unsqueeze(-1) * ROPE_BASE ** (-exponents / head_dim)
    both_halves = torch.cat((angles, angles), -1).unsqueeze(-2)
    return both_halves.cos().to(dtype), both_halves.sin().to(dtype)


def rotate(x: Tensor, rotation: tuple[Tensor, Tensor]) -> Tensor:
    """Rotate each pair (x_i, x_{i + H/2}) by the angle of its position."""
    cos, sin = rotation
    first, second = x.chunk(2, -1)
    return x * cos + torch.cat((-second, first), -1) * sin


def at_least_fp32(x: Tensor) -> Tensor:
    """Widen half precisions to fp32, in which sums, norms, softmax and losses are computed."""
    return x if x.dtype in (torch.float64, torch.float32) else x.float()
