"""sft_loss is NaN for a batch without a target, and the step is taken all the same

verl 0.9.1. Zero over zero; gradients are zero and not NaN, so that the step is not skipped, and
weight decay and momentum still act.

Run: python engine-no-target-nan.py (one process, no GPU; sequence parallelism plays no part).
"""

import ast
import importlib.util
import sys
from pathlib import Path
from types import SimpleNamespace

import torch


def sft_loss():
    """The released function, out of a module that imports all of the trainer."""
    root = Path(importlib.util.find_spec("verl").submodule_search_locations[0])
    tree = ast.parse((root / "workers" / "utils" / "losses.py").read_text())
    (function,) = (node for node in tree.body if getattr(node, "name", "") == "sft_loss")
    given = {
        "torch": torch,
        "ActorConfig": object,
        "TensorDict": object,
        "DatasetPadMode": SimpleNamespace(NO_PADDING="no_padding"),
        "tu": SimpleNamespace(get_non_tensor_data=lambda data, key, default: default),
        "masked_sum": lambda values, mask: (values * mask).sum(),
    }
    exec(compile(ast.Module([function], []), "losses.py", "exec"), given)
    return given["sft_loss"]


def loss_of(log_probs, masks):
    """As forward_backward_batch calls it, on one replica."""
    rows, mask = (torch.nested.nested_tensor(x, layout=torch.jagged) for x in (log_probs, masks))
    data = {"dp_size": 1, "loss_mask": mask, "batch_num_tokens": mask.values().sum()}
    value, _ = sft_loss()(None, {"log_probs": rows}, data)
    return value


def main() -> int:
    log_probs = torch.tensor([-1.0, -10.0], requires_grad=True)
    got = loss_of([log_probs], [torch.tensor([0, 0])]).item()
    print("expected 0.0")
    print(f"got      {got}")
    return int(got != 0)


if __name__ == "__main__":
    sys.exit(main())
