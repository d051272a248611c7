"""slice_input_tensor pads labels with zeros: with sp_ulysses_degree above 2 up to sp - 2 tokens of
padding are trained to predict token 0

lmms-engine 0.1.4. Four tokens over three ranks get two tokens of padding, whose labels are zero
and which pass for a row of their own. No row here has token 0 as a target. With --control the row
has six tokens, which three ranks need not pad.

Run: python padding-learnt.py (three processes; PyTorch stands in for Liger's).
"""

import contextlib
import importlib.util
import sys
import tempfile
from types import ModuleType, SimpleNamespace
from typing import ClassVar

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.nn import functional as F

IGNORED = -100
# One row; no target is at the beginning of a shard of two tokens.
ROWS = [[IGNORED, 2, IGNORED, 4, *([IGNORED, 6] if "--control" in sys.argv else [])]]


class LigerFusedLinearCrossEntropyLoss:
    """What Liger's kernel computes, and which targets it was asked for."""

    targets: ClassVar[list[int]] = []

    def __init__(self, reduction: str = "mean") -> None:
        self.reduction = reduction

    def __call__(self, weight, hidden, labels):
        self.targets += labels[labels != IGNORED].tolist()
        return F.cross_entropy(hidden @ weight.T, labels, reduction=self.reduction)


def released():
    """The module of the patched forward, without what the packages above it import beside it."""
    root = importlib.util.find_spec("lmms_engine").submodule_search_locations[0]
    for name in ("lmms_engine", "lmms_engine.models", "lmms_engine.models.qwen3"):
        sys.modules[name] = package = ModuleType(name)
        package.__path__ = [root + name.removeprefix("lmms_engine").replace(".", "/")]
    # It says that Liger is not installed.
    with contextlib.redirect_stdout(None):
        from lmms_engine.models.qwen3 import qwen3_liger
    qwen3_liger.LigerFusedLinearCrossEntropyLoss = LigerFusedLinearCrossEntropyLoss
    return qwen3_liger


def model_of(module, index: int, size: int):
    """A model that says what its layers came to for a rank's tokens; its head is trained."""
    torch.manual_seed(0)
    total = sum(map(len, ROWS))
    hidden = torch.randn(total + -total % size, 4).chunk(size)[index]
    lengths = torch.tensor([0, *map(len, ROWS)]).cumsum(0)
    outputs = module.BaseModelOutputWithPastAndRmpad(
        last_hidden_state=hidden, seq_lens=lengths, word_idx=torch.arange(total)
    )
    config = SimpleNamespace(hidden_size=4, use_return_dict=True)
    config.output_attentions = config.output_hidden_states = False
    return SimpleNamespace(
        config=config, training=True, model=lambda **_: outputs, lm_head=nn.Linear(4, 16)
    )


def rank(index: int, size: int, store: str, found) -> None:
    dist.init_process_group("gloo", init_method=store, rank=index, world_size=size)
    module = released()
    from lmms_engine.parallel.sequence_parallel import ulysses

    ulysses.set_ulysses_sequence_parallel_group(dist.group.WORLD if size > 1 else None)
    labels = torch.tensor([sum(ROWS, [])])
    module.qwen3_lce_forward(model_of(module, index, size), labels=labels, use_rmpad=True)
    found.put(LigerFusedLinearCrossEntropyLoss.targets)
    ulysses.set_ulysses_sequence_parallel_group(None)  # Held at exit, it aborts now and then.
    dist.destroy_process_group()


def run(size: int):
    found = mp.get_context("spawn").SimpleQueue()
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(rank, (size, f"file://{folder}/store", found), nprocs=size)
    return [found.get() for _ in range(size)]


def main() -> int:
    (expected,) = run(1)
    got = sum(sorted(run(3)), [])
    print(f"expected targets {sorted(expected)} (sp_ulysses_degree 1)")
    print(f"got      targets {sorted(got)} (sp_ulysses_degree 3)")
    return int(sorted(got) != sorted(expected))


if __name__ == "__main__":
    sys.exit(main())
