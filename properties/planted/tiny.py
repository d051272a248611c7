"""A small model whose steps are written in any style, plain, or with adapters of low rank.

Legend: B rows, S columns, L columns of this rank, N heads, H head dim, V vocabulary, D width.
"""

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from harness.case import Case
from harness.recipes.batch import IGNORED, Batch


class Attention(nn.Module):
    """Causal attention over whole rows; a step may replace `attend`."""

    def __init__(self, case: Case) -> None:
        super().__init__()
        width = case.heads * case.head_dim
        self.heads, self.attend = case.heads, causal
        self.qkv = nn.Linear(width, 3 * width)
        self.out: nn.Module = nn.Linear(width, width)

    def forward(self, x_BLD: Tensor, real_BS: Tensor) -> Tensor:
        split = self.qkv(x_BLD).unflatten(-1, (3, self.heads, -1)).movedim(3, 1)
        q, k, v = split.unbind(3)
        o_BNLH = self.attend(q, k, v, real_BS)
        out: Tensor = self.out(o_BNLH.movedim(1, 2).flatten(2))
        return out


def causal(q: Tensor, k: Tensor, v: Tensor, real_BS: Tensor, first: Any = 0) -> Tensor:
    """Attention of queries at the places from `first` on, or at these places, over all keys."""
    places_S = torch.arange(k.shape[2], device=q.device)
    own_L = first if isinstance(first, Tensor) else places_S[first : first + q.shape[2]]
    seen_BLS = (own_L[:, None] >= places_S) & real_BS[:, None] | (own_L[:, None] == places_S)
    scores = (q @ k.mT / math.sqrt(q.shape[-1])).masked_fill(~seen_BLS[:, None], -1e9)
    return scores.softmax(-1) @ v


class Tiny(nn.Module):
    """Embedding, blocks of attention and an MLP, and a head."""

    def __init__(self, case: Case) -> None:
        super().__init__()
        width = case.heads * case.head_dim
        self.embed = nn.Embedding(case.vocab, width)
        self.places = nn.Embedding(512, width)
        self.blocks = nn.ModuleList(Block(case) for _ in range(case.layers))
        self.head = nn.Linear(width, case.vocab)
        self.checkpointed = False

    def forward(self, ids_BL: Tensor, positions_BL: Tensor, real_BS: Tensor) -> Tensor:
        x_BLD = self.embed(ids_BL) + self.places(positions_BL)
        for block in self.blocks:
            if self.checkpointed:
                x_BLD = checkpoint(block, x_BLD, real_BS, use_reentrant=False)
            else:
                x_BLD = block(x_BLD, real_BS)
        logits_BLV: Tensor = self.head(x_BLD)
        return logits_BLV


class Block(nn.Module):
    def __init__(self, case: Case) -> None:
        super().__init__()
        width = case.heads * case.head_dim
        self.norm, self.attention = nn.LayerNorm(width), Attention(case)
        self.mlp = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, width), nn.SiLU())

    def forward(self, x_BLD: Tensor, real_BS: Tensor) -> Tensor:
        x_BLD = x_BLD + self.attention(self.norm(x_BLD), real_BS)
        out: Tensor = x_BLD + self.mlp(x_BLD)
        return out


def next_labels(batch: Batch) -> Tensor:
    return F.pad(batch["labels"][:, 1:], (0, 1), value=IGNORED)


def loss(model: Any, batch: Batch) -> Tensor:
    real_BS = batch["attention_mask"].bool()
    logits_BSV = model(batch["input_ids"], batch["position_ids"], real_BS)
    labels_BS = next_labels(batch)
    total = F.cross_entropy(
        logits_BSV.flatten(0, 1), labels_BS.flatten(), ignore_index=IGNORED, reduction="sum"
    )
    return total / (labels_BS != IGNORED).sum().clamp(min=1)


class WithAdapters(Tiny):
    """A frozen model whose attention has adapters of low rank."""

    def __init__(self, case: Case) -> None:
        super().__init__(case)
        self.requires_grad_(requires_grad=False)
        for module in self.modules():
            if isinstance(module, Attention):
                module.out = Adapted(module.out, case.heads * case.head_dim)


class Adapted(nn.Module):
    def __init__(self, base: nn.Module, width: int) -> None:
        super().__init__()
        self.base = base
        self.lora_a, self.lora_b = (
            nn.Linear(*sizes, bias=False) for sizes in ((width, 2), (2, width))
        )

    def forward(self, x_BLD: Tensor) -> Tensor:
        out: Tensor = self.base(x_BLD) + 0.5 * self.lora_b(self.lora_a(x_BLD))
        return out
