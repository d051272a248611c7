"""train_rm with loss_type logexp ignores margin_loss_enable, silently: LogExpLoss takes the
margins and drops them

OpenRLHF 0.11.2. Two pairs of rewards and their margins, in the loss of either type as
RewardModelTrainer calls it. log(1 + exp(-x)) is -logsigmoid(x), so both are to be the same.
With --control margin_loss_enable is off.

    python margins-ignored-by-logexp.py [--control]
"""

import importlib
import sys
import types
from importlib import metadata
from typing import Any

import torch

CHOSEN, REJECTED = torch.tensor([1.0, 0.5]), torch.tensor([0.0, 1.0])
MARGIN = None if "--control" in sys.argv else torch.tensor([1.0, 2.0])


def released() -> Any:
    """The module of losses, where its package would import what needs a GPU."""
    bare = types.ModuleType("openrlhf.models")
    bare.__path__ = [str(metadata.distribution("openrlhf").locate_file("openrlhf/models"))]
    sys.modules |= {bare.__name__: bare, "deepspeed": types.ModuleType("deepspeed")}
    return importlib.import_module("openrlhf.models.loss")


def main() -> int:
    losses = released()
    expected = losses.PairWiseLoss()(CHOSEN, REJECTED, MARGIN).item()
    got = losses.LogExpLoss()(CHOSEN, REJECTED, MARGIN).item()
    print(f"expected {expected:.6f}, of loss_type sigmoid")
    print(f"got      {got:.6f}, of loss_type logexp")
    return int(abs(got - expected) > 1e-6)


if __name__ == "__main__":
    sys.exit(main())
