"""FSDPSFTTrainer with balance_dp_token and sequence parallelism raises TypeError; with that
repaired, loss and gradients are 1/sp of what they should be

verl 0.6.1. DeviceMesh.size takes the number of a dimension, and the trainer calls size("dp").
With size(0) in its place the loss is wrong: the count of targets is summed over all ranks, so each
target counts once for every rank that shares its sequence, and the loss is multiplied by the
number of replicas only.

Run: python balanced-over-sp.py (two processes on the CPU; no flash-attn, ray or hydra).
"""

import ast
import importlib.util
import math
import sys
import tempfile
from contextlib import nullcontext
from pathlib import Path
from types import ModuleType, SimpleNamespace

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.distributed.device_mesh import init_device_mesh

VOCABULARY, SP = 8, 2


def step():
    """`_compute_loss_and_backward`, over the released functions that share a sequence."""
    root = Path(importlib.util.find_spec("verl").submodule_search_locations[0])
    for name in ("verl", "verl.utils"):
        package = ModuleType(name)
        package.__path__ = [str(root.joinpath(*name.split(".")[1:]))]
        sys.modules[name] = package
    from verl.utils import ulysses

    ulysses.set_ulysses_sequence_parallel_group(dist.group.WORLD)
    tree = ast.parse((root / "trainer" / "fsdp_sft_trainer.py").read_text())
    name = "_compute_loss_and_backward"
    (method,) = (node for node in ast.walk(tree) if getattr(node, "name", "") == name)
    # Of one row without padding there is nothing to take off.
    given = {
        **vars(ulysses),
        "nn": torch.nn,
        "nullcontext": nullcontext,
        "unpad_input": lambda x, mask: (x.flatten(0, 1), mask.flatten().nonzero().flatten()),
        "index_first_axis": lambda x, indices: x[indices],
        "rearrange": lambda x, _: x.flatten(0, 1),
        "pad_input": lambda hidden_states, batch, seqlen, **_: hidden_states.unflatten(
            0, (batch, seqlen)
        ),
    }
    exec(compile(ast.Module([method], []), "fsdp_sft_trainer.py", "exec"), given)
    return given[name]


def model(input_ids, **_):
    """All tokens are as likely."""
    return SimpleNamespace(logits=torch.zeros(*input_ids.shape, VOCABULARY))


def loss_with(compute, mesh) -> float:
    data = SimpleNamespace(balance_dp_token=True)
    config = SimpleNamespace(ulysses_sequence_parallel_size=SP, data=data)
    trainer = SimpleNamespace(
        use_remove_padding=True, device_name="cpu", sharding_manager=nullcontext(),
        config=config, fsdp_model=model, ulysses_device_mesh=mesh,
    )  # fmt: skip
    ones = torch.ones(1, 4, dtype=torch.long)
    batch = dict.fromkeys(("input_ids", "attention_mask", "loss_mask", "position_ids"), ones)
    return compute(trainer, batch, do_backward=False).item()


def rank(index: int, store: str, found) -> None:
    dist.init_process_group("gloo", init_method=store, rank=index, world_size=SP)
    mesh = init_device_mesh("cpu", (1, SP), mesh_dim_names=("dp", "sp"))
    compute = step()
    try:
        released = f"loss {loss_with(compute, mesh):.6f}"
    except (TypeError, RuntimeError) as error:
        released = f"{type(error).__name__}: {error}"
    repaired = loss_with(compute, SimpleNamespace(size=lambda _: mesh.size(0)))
    if index == 0:
        found.put((released, f"loss {repaired:.6f}"))
    dist.destroy_process_group()


def main() -> int:
    found = mp.get_context("spawn").SimpleQueue()
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(rank, (f"file://{folder}/store", found), nprocs=SP)
    expected, (released, repaired) = f"loss {math.log(VOCABULARY):.6f}", found.get()
    print(f"expected {expected}\ngot      {released}")
    print(f"got      {repaired} with that call repaired")
    return int({released, repaired} != {expected})


if __name__ == "__main__":
    sys.exit(main())
