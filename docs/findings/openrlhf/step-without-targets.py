"""A step in which no token has a loss makes every gradient NaN.

OpenRLHF 0.11.2. The normalizers are those of SFTTrainer.fit for a batch whose loss masks are all
zero, for instance because answers were truncated away.

    python step-without-targets.py
"""

import importlib
import sys
import types
from importlib import metadata
from typing import Any

import torch

root = metadata.distribution("openrlhf").locate_file("openrlhf")


def released(name: str) -> Any:
    """A module of OpenRLHF, where its packages would import what needs a GPU."""
    for package in ("models", "utils"):
        bare = types.ModuleType(f"openrlhf.{package}")
        bare.__path__ = [f"{root}/{package}"]
        sys.modules.setdefault(bare.__name__, bare)
    sys.modules.setdefault("deepspeed", types.ModuleType("deepspeed"))
    return importlib.import_module(name)


def main() -> int:
    loss = released("openrlhf.models.loss").SFTLoss()
    utils = released("openrlhf.utils.loss_utils")
    log_probs = torch.full((1, 3), -1.0, requires_grad=True)
    mask = torch.zeros(1, 3)
    info = utils._optimizer_step_loss_norm([mask], None, 1, 1)
    value = loss(log_probs, mask, **info)
    (gradient,) = torch.autograd.grad(value, log_probs)
    print("expected loss 0.0, gradients", torch.zeros(1, 3).tolist())
    print(f"got      loss {value.item()}, gradients", gradient.tolist())
    return 0 if torch.isfinite(gradient).all() else 1


if __name__ == "__main__":
    sys.exit(main())
