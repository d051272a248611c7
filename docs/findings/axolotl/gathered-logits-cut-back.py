"""rl: ebft (mode: structured) with context_parallel_size N: gradients are 1/N, because gathered
logits hand back one slice and FSDP2 averages over the ranks that share a sequence

axolotl-ringmaster 0.2.7, as axolotl 0.21.0 pins it, two ranks over gloo, no GPU: a head under
FSDP2, whose logits are gathered as for a trainer that asks for gathered outputs. With --control
one rank has the whole sequence.

    python gathered-logits-cut-back.py
"""

import sys
import tempfile

import torch
from ringmaster.cp_collectives import seq_gather_cp
from torch import distributed as dist
from torch import multiprocessing as mp
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn import functional as F

RANKS = 1 if "--control" in sys.argv else 2
LABELS = torch.tensor([[1, 0, 3, 2]])


def head():
    torch.manual_seed(0)
    return torch.nn.Linear(4, 4, bias=False), torch.randn(1, 4, 4)


def loss_of(logits):
    return F.cross_entropy(logits.flatten(0, 1), LABELS.flatten())


def rank(index, store, results):
    dist.init_process_group("gloo", f"file://{store}", rank=index, world_size=RANKS)
    model, hidden = head()
    fully_shard(model, mesh=init_device_mesh("cpu", (RANKS,), mesh_dim_names=("cp",)))
    own = hidden.chunk(RANKS, dim=1)[index]
    loss_of(seq_gather_cp(model(own), dist.group.WORLD)).backward()
    gradient = model.weight.grad.full_tensor()
    if index == 0:
        results.put(gradient.tolist())
    dist.barrier()
    dist.destroy_process_group()


def main():
    model, hidden = head()
    loss_of(model(hidden)).backward()
    expected = model.weight.grad
    results = mp.get_context("spawn").SimpleQueue()
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(rank, (f"{folder}/store", results), nprocs=RANKS)
    got = torch.tensor(results.get())
    print(f"expected gradient of a weight {expected[0, 0]:.4f}")
    print(f"got      gradient of a weight {got[0, 0]:.4f}")
    return int(not torch.allclose(expected, got, atol=1e-4))


if __name__ == "__main__":
    sys.exit(main())
