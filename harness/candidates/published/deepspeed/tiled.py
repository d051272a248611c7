"""ALST's tiled compute: a part of the model, or its loss, a few tokens at a time.

Legend: B rows, S tokens of this rank, D hidden, V vocabulary.
"""

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
from harness.candidates.published.deepspeed.batches import IGNORED
from harness.case import Case

# A number that divides few of the lengths that cases have.
SHARDS = 3


def mlp_step(case: Case, rank: Rank, emit: Emit, *, mlp: str, **rest: Any) -> None:
    """ALST with a tiled MLP; with a `stage`, through the engine."""

    def change(model: Any) -> None:
        replace(model, mlp)

    if "stage" in rest:
        engine.step(case, rank, emit, change=change, **rest)
    else:
        alst.step(case, rank, emit, change=change, loss="sum")


def loss_step(case: Case, rank: Rank, emit: Emit, *, loss: str) -> None:
    """ALST with a tiled loss."""
    alst.step(case, rank, emit, loss=(LOSSES[loss], False))


def replace(model: Any, how: str) -> None:
    """Compute every layer's MLP in tiles, by the recipe of the tutorial."""

    def forward(mlp: Any, x_BSD: Tensor) -> Tensor:
        out: Tensor
        original = type(mlp).forward
        weights = [mlp.down_proj.weight, mlp.gate_proj.weight, mlp.up_proj.weight]
        if how == "mlp":
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


def hidden(at: alst.At) -> Tensor:
    """The last hidden states; each token's loss is emitted, computed without tiles."""
    x_BSD: Tensor = at.model.model(**at.shard.inputs).last_hidden_state
    with torch.no_grad():
        alst.tell(F.linear(x_BSD, at.model.lm_head.weight), at.shard, at.emit)
    return x_BSD


def summed(head: Any, x: Tensor, labels: Tensor, weights: Tensor) -> Tensor:
    """The sum over one tile of each token's loss times its weight in the batch's."""
    # The module is not called: the harness takes what it returns for the logits of all tokens.
    logits = F.linear(x, head.weight).flatten(0, -2)
    nll = F.cross_entropy(logits, labels.flatten(), ignore_index=IGNORED, reduction="none")
    return (nll * weights.flatten().to(nll.dtype)).sum()


def compute(at: alst.At, x_BSD: Tensor, times: float, reduction: str) -> Tensor:
    """`sequence_tiled_compute` as the tutorial uses it for a loss."""
    found: Tensor = sequence_tiled_compute(
        lambda x, labels, weights, head: summed(head, x, labels, weights) * times,
        x_BSD.shape[1],
        SHARDS,
        {"x": x_BSD, "labels": at.shard.shift_labels, "weights": at.shard.weights},
        {"head": at.model.lm_head},
        "x",
        [at.model.lm_head.weight],
        output_unshard_dimension=0,
        output_reduction=reduction,
    )
    return found


def fused(at: alst.At, x_BSD: Tensor, times: float, reduction: str) -> Tensor:
    """`TiledFusedLogitsLoss`; a token's share takes the place of its mask."""
    found: Tensor = TiledFusedLogitsLoss.apply(
        lambda head, x, labels, weights: summed(head, x, labels, weights) * times,
        at.model.lm_head,
        x_BSD,
        at.shard.shift_labels,
        at.shard.weights,
        SHARDS,
        [at.model.lm_head.weight],
        reduction,
    )
    return found


def compute_sum(at: alst.At) -> Tensor:
    return compute(at, hidden(at), 1, "sum")


def compute_scaled(at: alst.At) -> Tensor:
    """The sum over all tokens, divided by how many they are, as the tutorial does."""
    return compute(at, hidden(at), at.case.tokens, "sum") / at.case.tokens


def compute_mean(at: alst.At) -> Tensor:
    return compute(at, hidden(at), SHARDS, "mean")


def compute_beside(at: alst.At) -> Tensor:
    """Half of the loss in tiles, and the other half in one piece, as an auxiliary loss is."""
    x_BSD = hidden(at)
    plain = summed(at.model.lm_head, x_BSD, at.shard.shift_labels, at.shard.weights) / 2
    return plain + compute(at, x_BSD, SHARDS / 2, "mean")


def fused_sum(at: alst.At) -> Tensor:
    return fused(at, hidden(at), 1, "sum")


def fused_scaled(at: alst.At) -> Tensor:
    """The sum over all tokens, divided by how many they are, as its docstring recommends."""
    return fused(at, hidden(at), at.case.tokens, "sum") / at.case.tokens


def fused_mean(at: alst.At) -> Tensor:
    """The mean of as many values as there are tiles."""
    tiles = len(torch.empty(at.shard.shift_labels.numel()).chunk(SHARDS))
    return fused(at, hidden(at), tiles, "mean")


def fused_beside(at: alst.At) -> Tensor:
    """Half of the loss in tiles, and the other half in one piece."""
    x_BSD = hidden(at)
    plain = summed(at.model.lm_head, x_BSD, at.shard.shift_labels, at.shard.weights) / 2
    return plain + fused(at, x_BSD, 0.5, "sum")


LOSSES: dict[str, alst.Loss] = {
    "compute-sum": compute_sum,
    "compute-scaled": compute_scaled,
    "compute-mean": compute_mean,
    "compute-beside": compute_beside,
    "fused-sum": fused_sum,
    "fused-scaled": fused_scaled,
    "fused-mean": fused_mean,
    "fused-beside": fused_beside,
}
