"""sft_loss trains a row's last token to predict the next row's first where that is masked in

verl 0.9.1. The loss mask is rolled over the whole packed micro-batch, and its tokens are counted
before that. What is trained then depends on which rows share a micro-batch. The masks below have
all tokens in, as a data set of one's own (data.custom_cls) may give them for plain text.

Run: python engine-first-token-counts.py (one process, no GPU; sequence parallelism plays no part).
"""

import ast
import importlib.util
import sys
from pathlib import Path
from types import SimpleNamespace

import torch

ROOT = Path(importlib.util.find_spec("verl").submodule_search_locations[0])


def released(path: str, name: str, **given):
    """A function as released, out of a module that imports much beside it."""
    tree = ast.parse((ROOT / path).read_text())
    (function,) = (node for node in tree.body if getattr(node, "name", "") == name)
    exec(compile(ast.Module([function], []), path, "exec"), given)
    return given[name]


def sft_loss():
    return released(
        "workers/utils/losses.py",
        "sft_loss",
        torch=torch,
        ActorConfig=object,
        TensorDict=object,
        DatasetPadMode=SimpleNamespace(NO_PADDING="no_padding"),
        tu=SimpleNamespace(get_non_tensor_data=lambda data, key, default: default),
        masked_sum=released("utils/torch_functional.py", "masked_sum", torch=torch),
    )


def loss_of(log_probs, masks):
    """As forward_backward_batch calls it, on one replica."""
    rows, mask = (torch.nested.nested_tensor(x, layout=torch.jagged) for x in (log_probs, masks))
    data = {"dp_size": 1, "loss_mask": mask, "batch_num_tokens": mask.values().sum()}
    value, _ = sft_loss()(None, {"log_probs": rows}, data)
    return value


def main() -> int:
    # Of each token's prediction of the next one; the last of a row predicts another row's first.
    log_probs = [torch.tensor([-1.0, -10.0]), torch.tensor([-2.0, -20.0])]
    masks = [torch.tensor([1, 1]), torch.tensor([1, 1])]
    got = loss_of(log_probs, masks).item()
    expected = (1.0 + 2.0) / 2
    print(f"expected {expected} (the mean of what row 0 and row 1 predict of themselves)")
    print(f"got      {got} (their last tokens predict each other's first)")
    return int(got != expected)


if __name__ == "__main__":
    sys.exit(main())
