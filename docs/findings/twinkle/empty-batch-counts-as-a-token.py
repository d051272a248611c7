"""CrossEntropyLoss(reduction='sum') counts one token for a micro-batch without targets

twinkle-kit 0.5.1. calculate_loss adds up num_tokens over micro-batches, and clip_grad_norm divides
gradients by it, as the logged loss is divided: a micro-batch without targets makes it larger
by one.

Run: python empty-batch-counts-as-a-token.py (one process on the CPU, nothing of transformers).
"""

import importlib.util
import sys
from types import ModuleType

import torch


def released():
    """The loss, without what the packages above its module import beside it."""
    root = importlib.util.find_spec("twinkle").submodule_search_locations[0]
    for name, path in {"twinkle": root, "twinkle.loss": f"{root}/loss"}.items():
        sys.modules[name] = package = ModuleType(name)
        package.__path__ = [path]
    from twinkle.loss.cross_entropy import CrossEntropyLoss

    return CrossEntropyLoss


def main() -> int:
    torch.manual_seed(0)
    loss = released()(reduction="sum")
    batches = [torch.tensor([[3, 1, -100]]), torch.tensor([[-100, -100, -100]])]
    results = [
        loss({"labels": labels}, {"logps": torch.randn(1, 3).sigmoid().log()})
        for labels in batches
    ]
    total = sum(result["loss"].item() for result in results)
    got = sum(result["num_tokens"].item() for result in results)
    expected = sum((labels != -100).sum().item() for labels in batches)
    print("two micro-batches, of which the second has no targets")
    print(f"expected {expected} tokens, loss {total / expected:.6f}")
    print(f"got      {got:.0f} tokens, loss {total / got:.6f}")
    return int(got != expected)


if __name__ == "__main__":
    sys.exit(main())
