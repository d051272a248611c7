"""Steps with ALST's tiled compute: an MLP or the loss runs on a few tokens at a time.

Legend: B rows, S tokens of this rank, D hidden, V vocabulary.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from deepspeed.runtime.sequence_parallel.ulysses_sp import (
    TiledFusedLogitsLoss,
    TiledMLP,
    sequence_tiled_compute,
)
from torch import Tensor
from torch.nn import functional as F

from harness.candidates.protocol import Emit, Rank
from harness.candidates.published.deepspeed import alst, engine
from harness.candidates.published.deepspeed.alst import MicroBatch
from harness.candidates.published.wiring.rows import IGNORED
from harness.case import Case

# Few lengths of cases are a multiple of it.
SHARDS = 3
# tiled(micro-batch, hidden states, factor of each tile's loss, reduction over tiles) -> the loss.
Tiled = Callable[[MicroBatch, Tensor, float, str], Tensor]


def mlp_step(case: Case, rank: Rank, emit: Emit, *, mlp: str, **rest: Any) -> None:
    """Train by ALST with a tiled MLP; with a `stage`, through the engine."""

    def change(model: Any) -> None:
        tile_mlps(model, mlp)

    if "stage" in rest:
        engine.step(case, rank, emit, change=change, **rest)
    else:
        alst.step(case, rank, emit, change=change, loss="sum")


def loss_step(case: Case, rank: Rank, emit: Emit, *, loss: str) -> None:
    """Train by ALST with a tiled loss."""
    alst.step(case, rank, emit, loss=(LOSSES[loss], False))


def tile_mlps(model: Any, mlp_kind: str) -> None:
    """Compute every layer's MLP in tiles, by the recipe of the tutorial."""

    def forward(mlp: Any, x_BSD: Tensor) -> Tensor:
        out: Tensor
        original = type(mlp).forward
        weights = [mlp.down_proj.weight, mlp.gate_proj.weight, mlp.up_proj.weight]
        if mlp_kind == "mlp":
            out = TiledMLP.apply(original, mlp, x_BSD, SHARDS, weights)
        else:
            out = sequence_tiled_compute(
                original,
                x_BSD.shape[1],
                SHARDS,
                {"x": x_BSD},
                {"self": mlp},
                "x",
                weights,
                output_unshard_dimension=1,
                output_reduction=None,
            )
        return out

    for layer in model.model.layers:
        layer.mlp.forward = forward.__get__(layer.mlp)


def hidden_states(batch: MicroBatch) -> Tensor:
    """Return the last hidden states; emit each token's loss, computed without tiles."""
    x_BSD: Tensor = batch.model.model(**batch.shard.inputs).last_hidden_state
    with torch.no_grad():
        logits = F.linear(x_BSD, batch.model.lm_head.weight)
        alst.token_losses(logits, batch.shard, batch.emit)
    return x_BSD


def summed(head: Any, x: Tensor, labels: Tensor, weights: Tensor) -> Tensor:
    """Sum over one tile each token's loss times its weight in the batch's loss."""
    # Calling the head would emit its output as the logits of all tokens.
    logits = F.linear(x, head.weight).flatten(0, -2)
    nll = F.cross_entropy(logits, labels.flatten(), ignore_index=IGNORED, reduction="none")
    return (nll * weights.flatten().to(nll.dtype)).sum()


def compute(batch: MicroBatch, x_BSD: Tensor, times: float, reduction: str) -> Tensor:
    """Compute the loss by `sequence_tiled_compute`, as in the tutorial."""
    loss: Tensor = sequence_tiled_compute(
        lambda x, labels, weights, head: summed(head, x, labels, weights) * times,
        x_BSD.shape[1],
        SHARDS,
        {"x": x_BSD, "labels": batch.shard.shift_labels, "weights": batch.shard.weights},
        {"head": batch.model.lm_head},
        "x",
        [batch.model.lm_head.weight],
        output_unshard_dimension=0,
        output_reduction=reduction,
    )
    return loss


def fused(batch: MicroBatch, x_BSD: Tensor, times: float, reduction: str) -> Tensor:
    """Compute the loss by `TiledFusedLogitsLoss`; a token's weight takes the place of its mask."""
    loss: Tensor = TiledFusedLogitsLoss.apply(
        lambda head, x, labels, weights: summed(head, x, labels, weights) * times,
        batch.model.lm_head,
        x_BSD,
        batch.shard.shift_labels,
        batch.shard.weights,
        SHARDS,
        [batch.model.lm_head.weight],
        reduction,
    )
    return loss


def in_tiles(batch: MicroBatch, *, tiled: Tiled, times: float, reduction: str) -> Tensor:
    return tiled(batch, hidden_states(batch), times, reduction)


def scaled(batch: MicroBatch, *, tiled: Tiled) -> Tensor:
    """Divide the sum over all tokens by their number, as the tutorial and the docstring do."""
    return tiled(batch, hidden_states(batch), batch.case.tokens, "sum") / batch.case.tokens


def beside(batch: MicroBatch, *, tiled: Tiled, times: float, reduction: str) -> Tensor:
    """Compute half of the loss in tiles, the other half in one piece like an auxiliary loss."""
    x_BSD, shard = hidden_states(batch), batch.shard
    plain = summed(batch.model.lm_head, x_BSD, shard.shift_labels, shard.weights) / 2
    return plain + tiled(batch, x_BSD, times, reduction)


def fused_mean(batch: MicroBatch) -> Tensor:
    """Average as many values as there are tiles."""
    tiles = len(torch.empty(batch.shard.shift_labels.numel()).chunk(SHARDS))
    return fused(batch, hidden_states(batch), tiles, "mean")


LOSSES: dict[str, alst.Loss] = {
    "compute-sum": partial(in_tiles, tiled=compute, times=1, reduction="sum"),
    "compute-scaled": partial(scaled, tiled=compute),
    "compute-mean": partial(in_tiles, tiled=compute, times=SHARDS, reduction="mean"),
    "compute-beside": partial(beside, tiled=compute, times=SHARDS / 2, reduction="mean"),
    "fused-sum": partial(in_tiles, tiled=fused, times=1, reduction="sum"),
    "fused-scaled": partial(scaled, tiled=fused),
    "fused-mean": fused_mean,
    "fused-beside": partial(beside, tiled=fused, times=0.5, reduction="sum"),
}
