"""SupervisedFinetune cuts labels before the model moves them up: a target is lost at every cut

xtuner 0.2.0. `_split_for_sequence_parallel` cuts input_ids and labels; a transformers model then
predicts labels[1:] from logits[:-1] of its own shard. So the first label of every shard but the
first is never learnt. DPO and ORPO in this package move labels first.
With --control one rank has the whole sequence.

Run: python label-lost-at-cut.py [--control] (two processes on the CPU; no GPU, no mmengine).
"""

import ast
import importlib.util
import socket
import sys
from pathlib import Path
from types import ModuleType

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

RANKS = 1 if "--control" in sys.argv else 2
LABELS = torch.tensor([[5, 6, 7, 8, 9, 10]])


def split_of_sft(group):
    """The released method out of a module that imports mmengine, with the released cut."""
    root = Path(importlib.util.find_spec("xtuner").submodule_search_locations[0])
    for name in ("xtuner", "xtuner.parallel", "xtuner.parallel.sequence"):
        package = ModuleType(name)
        package.__path__ = [str(root.joinpath(*name.split(".")[1:]))]
        sys.modules[name] = package
    from xtuner.parallel.sequence.comm import split_for_sequence_parallel

    tree = ast.parse((root / "model" / "sft.py").read_text())
    (sft,) = (node for node in tree.body if getattr(node, "name", "") == "SupervisedFinetune")
    name = "_split_for_sequence_parallel"
    (method,) = (node for node in sft.body if getattr(node, "name", "") == name)
    method.decorator_list = []
    given = {
        "get_sequence_parallel_group": lambda: group,
        "split_for_sequence_parallel": split_for_sequence_parallel,
    }
    exec(compile(ast.Module([method], []), "sft.py", "exec"), given)
    return given[name]


def rank(index: int, port: int, found) -> None:
    dist.init_process_group(
        "gloo", init_method=f"tcp://127.0.0.1:{port}", rank=index, world_size=RANKS
    )
    data = split_of_sft(dist.group.WORLD)({"input_ids": LABELS.clone(), "labels": LABELS.clone()})
    # What ForCausalLM of transformers predicts of the labels that it is given.
    found.put(data["labels"][0, 1:].tolist())
    dist.destroy_process_group()


def main() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    found = mp.get_context("spawn").SimpleQueue()
    mp.spawn(rank, (port, found), nprocs=RANKS)
    learnt = sorted(sum((found.get() for _ in range(RANKS)), []))
    expected = LABELS[0, 1:].tolist()
    print(f"expected targets {expected}")
    print(f"got      targets {learnt}")
    return int(learnt != expected)


if __name__ == "__main__":
    sys.exit(main())
