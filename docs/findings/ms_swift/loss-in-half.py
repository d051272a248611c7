"""With sequence_parallel_size > 1 under DeepSpeed the loss is computed and summed in bf16:
per_token_loss_func_sp does not upcast the logits

ms-swift 4.6.0. On one rank per_token_loss_func upcasts logits to fp32 "to avoid potential
precision issues"; where the sequence is shared the loss of bf16 logits stays in bf16, to two or
three digits. Logits are bf16 with --deepspeed. With plain DDP accelerate has turned the model's
outputs to fp32 before, and the loss is right. With --control the logits are fp32, as plain DDP has
them.

Run: python loss-in-half.py (two processes on the CPU; no GPU, nothing of transformers).
"""

import ast
import importlib.util
import os
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import torch.nn.functional as F
from torch import nn

TOKENS, VOCABULARY = 512, 64
DTYPE = torch.float32 if "--control" in sys.argv else torch.bfloat16


class GatherLoss:
    """As the released one gathers tokens that are in order; no gradient is looked at here."""

    @staticmethod
    def apply(loss, labels, dim, _positions):
        def gather(x):
            received = [torch.empty_like(x) for _ in range(dist.get_world_size())]
            dist.all_gather(received, x)
            return torch.cat(received, dim)

        return gather(loss), gather(labels)


def released(name: str, **given):
    """One function out of a module that imports much beside it."""
    root = importlib.util.find_spec("swift").submodule_search_locations[0]
    tree = ast.parse(Path(root, "trainers", "utils.py").read_text())
    (node,) = (node for node in tree.body if getattr(node, "name", "") == name)
    exec(compile(ast.Module([node], []), "utils.py", "exec"), given)
    return given[name]


def outputs_and_labels():
    torch.manual_seed(0)
    logits = torch.randn(1, TOKENS, VOCABULARY).to(DTYPE)
    return logits, torch.randint(VOCABULARY, (1, TOKENS))


def rank(index: int, size: int, store: str, found) -> None:
    dist.init_process_group("gloo", init_method=store, rank=index, world_size=size)
    logits, labels = outputs_and_labels()
    # What prepare_inputs does: labels are moved up, then cut.
    mine = logits.chunk(size, 1)[index], labels.roll(-1, 1).chunk(size, 1)[index]
    loss = released(
        "per_token_loss_func_sp",
        os=os,
        CrossEntropyLoss=nn.CrossEntropyLoss,
        GatherLoss=GatherLoss,
        sequence_parallel=SimpleNamespace(real_position_ids=None),
        torch=torch,
    )(SimpleNamespace(logits=mine[0]), mine[1])
    if index == 0:
        found.put((str(loss.dtype), (loss.sum() / TOKENS).item()))
    dist.destroy_process_group()


def main() -> int:
    logits, labels = outputs_and_labels()
    plain = released("per_token_loss_func", torch=torch, F=F)
    expected = plain(SimpleNamespace(logits=logits), labels)
    found = mp.get_context("spawn").SimpleQueue()
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(rank, (2, f"file://{folder}/store", found), nprocs=2)
    dtype, loss = found.get()
    print(f"expected losses of {expected.dtype}, mean {expected.mean().item():.4f}")
    print(f"got      losses of {dtype}, mean {loss:.4f}")
    return int(dtype != str(expected.dtype))


if __name__ == "__main__":
    sys.exit(main())
