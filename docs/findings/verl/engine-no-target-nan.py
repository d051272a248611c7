"""sft_loss is NaN for a batch without a target, and the step is taken all the same

verl 0.9.1. The loss is 0 / 0. masked_sum gives tokens outside the mask a gradient of zero, not of
NaN. So FSDPEngine.optimizer_step finds a finite norm and does not skip the step: weight decay and
momentum still move the weights.

Run: python engine-no-target-nan.py (one process, no GPU; sequence parallelism plays no part).
"""

import ast
import importlib.util
import sys
from pathlib import Path
from types import SimpleNamespace

import torch

ROOT = Path(importlib.util.find_spec("verl").submodule_search_locations[0])


def released(path: str, name: str, **given):
    """A function or method as released, out of a module that imports all of the trainer."""
    tree = ast.parse((ROOT / path).read_text())
    (node,) = (each for each in ast.walk(tree) if getattr(each, "name", "") == name)
    exec(compile(ast.Module([node], []), path, "exec"), given)
    return given[name]


def sft_loss():
    masked_sum = released("utils/torch_functional.py", "masked_sum", torch=torch)
    return released(
        "workers/utils/losses.py",
        "sft_loss",
        torch=torch,
        ActorConfig=object,
        TensorDict=object,
        DatasetPadMode=SimpleNamespace(NO_PADDING="no_padding"),
        tu=SimpleNamespace(get_non_tensor_data=lambda data, key, default: default),
        masked_sum=masked_sum,
    )


def optimizer_step():
    nothing = type("NotUsedHere", (), {})
    path = "workers/engine/fsdp/transformer_impl.py"
    types = {"FSDP": nothing, "FSDPModule": nothing, "DTensor": nothing}
    return released(path, "optimizer_step", torch=torch, **types)


def loss_of(log_probs, masks):
    """As forward_backward_batch calls it, on one replica."""
    rows, mask = (
        torch.nested.as_nested_tensor(x, layout=torch.jagged) for x in (log_probs, masks)
    )
    data = {"dp_size": 1, "loss_mask": mask, "batch_num_tokens": mask.values().sum().item()}
    value, _ = sft_loss()(None, {"log_probs": rows}, data)
    return value


def main() -> int:
    model = torch.nn.Linear(1, 1, bias=False)
    with torch.no_grad():
        model.weight.fill_(1.0)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1, weight_decay=0.1)
    log_probs = -model(torch.tensor([[1.0], [10.0]])).flatten()
    loss = loss_of([log_probs], [torch.tensor([0, 0])])
    loss.backward()
    engine = SimpleNamespace(
        module=model,
        optimizer=optimizer,
        optimizer_config=SimpleNamespace(clip_grad=1.0),
        _qat_enabled=False,
    )
    norm = optimizer_step()(engine)
    weight = model.weight.item()
    print("expected loss 0.0; or where it is NaN, a step that is skipped: weight 1.00 as before")
    print(f"got      loss {loss.item()}, gradient norm {norm}, weight {weight:.2f} after the step")
    return int(loss.item() != 0 and weight != 1)


if __name__ == "__main__":
    sys.exit(main())
