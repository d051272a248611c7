"""Bugs in losses of other models and of reinforcement learning."""

from harness.candidates.own.mutants.recipes.loss import (
    advantages,
    counts,
    limits,
    metrics,
    routers,
)

__all__ = ["LEFT_OUT", "advantages", "counts", "limits", "metrics", "routers"]

LEFT_OUT: dict[str, str] = {
    "B163": "a step trains, and this exchange is left out in evaluation only",
    "B173": "plain training balances the whole batch, so a step cannot balance micro-batches",
    "B178": "no family replays the choices of a router",
    "B179": "no family replays the choices of a router",
    "B180": "no family replays the choices of a router",
    "B185": "no family has an indexer, whose loss is not that of the model",
    "B202": "a path of fp8 kernels, which no CPU and no family here has",
}
