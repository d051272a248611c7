"""FSDPSFTTrainer with balance_dp_token divides loss and gradients by the number of ranks that
share a sequence

verl 0.6.1. The count of targets is summed over all ranks, so that each counts once for every rank
that shares its sequence, and the loss is multiplied by the number of replicas only. As released it
stops earlier: DeviceMesh.size("dp") raises TypeError; here a mesh that knows "dp" is given.

Run: python balanced-over-sp.py (two processes on the CPU; no flash-attn, ray or hydra).
"""

import ast
import importlib.util
import math
import socket
import sys
from contextlib import nullcontext
from pathlib import Path
from types import ModuleType, SimpleNamespace

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

VOCABULARY = 8


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
    (trainer,) = (node for node in tree.body if getattr(node, "name", "") == "FSDPSFTTrainer")
    name = "_compute_loss_and_backward"
    (method,) = (node for node in trainer.body if getattr(node, "name", "") == name)
    # Of one row without padding there is nothing to take off.
    packing = {
        "unpad_input": lambda x, mask: (x.flatten(0, 1), mask.flatten().nonzero().flatten()),
        "index_first_axis": lambda x, indices: x[indices],
        "rearrange": lambda x, _: x.flatten(0, 1),
        "pad_input": lambda hidden_states, indices, batch, seqlen: hidden_states.unflatten(
            0, (batch, seqlen)
        ),
    }
    given = {**vars(ulysses), **packing, "nn": torch.nn, "nullcontext": nullcontext}
    exec(compile(ast.Module([method], []), "fsdp_sft_trainer.py", "exec"), given)
    return given[name]


def rank(index: int, port: int, found) -> None:
    dist.init_process_group(
        "gloo", init_method=f"tcp://127.0.0.1:{port}", rank=index, world_size=2
    )
    # All tokens are as likely.
    model = lambda input_ids, **_: SimpleNamespace(  # noqa: E731
        logits=torch.zeros(*input_ids.shape, VOCABULARY)
    )
    trainer = SimpleNamespace(
        use_remove_padding=True, device_name="cpu", sharding_manager=nullcontext(),
        fsdp_model=model, ulysses_device_mesh=SimpleNamespace(size=lambda _: 1),
        config=SimpleNamespace(
            ulysses_sequence_parallel_size=2, data=SimpleNamespace(balance_dp_token=True)
        ),
    )  # fmt: skip
    ones = torch.ones(1, 4, dtype=torch.long)
    batch = {"input_ids": 3 * ones, "attention_mask": ones, "loss_mask": ones}
    batch["position_ids"] = torch.arange(4)[None]
    loss = step()(trainer, batch, do_backward=False).item()
    if index == 0:
        found.put(loss)
    dist.destroy_process_group()


def main() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    found = mp.get_context("spawn").SimpleQueue()
    mp.spawn(rank, (port, found), nprocs=2)
    expected, got = math.log(VOCABULARY), found.get()
    print(f"expected loss {expected:.6f}")
    print(f"got      loss {got:.6f}")
    return int(abs(got - expected) > 1e-4)


if __name__ == "__main__":
    sys.exit(main())
