"""With cp_size above 1 and ep_size 1 the balance loss of experts is that of each rank's tokens,
and weighs cp_size times as much

nemo-automodel 0.7.0: the gradient that the balance loss gives to a router. Four tokens are on one
rank, or two of them on each of two, whose experts are as the library leaves them where ep_size is
1: without a cp_mesh. The scale is that of _set_moe_aux_loss_backward_scale, and gradients are
averaged over ranks, as by FSDP. With --control the experts have the mesh of ranks that share a
sequence.

pip install nemo-automodel==0.7.0; needs no GPU. Exit status 1 if the bug shows.
"""

import socket
import sys

import torch
import torch._dynamo
from nemo_automodel.components.models.common import BackendConfig
from nemo_automodel.components.moe.config import MoEConfig
from nemo_automodel.components.moe.layers import MoE
from nemo_automodel.components.moe.megatron.moe_utils import MoEAuxLossAutoScaler
from torch import distributed as dist
from torch import multiprocessing as mp
from torch.distributed.device_mesh import init_device_mesh

CONTROL = "--control" in sys.argv
# Experts compile their activation, which takes long on a CPU.
torch._dynamo.config.disable = True
COEFFICIENT = 1.0
# As Qwen3-MoE has it, but small.
CONFIG = {
    "dim": 2,
    "inter_dim": 2,
    "moe_inter_dim": 2,
    "n_routed_experts": 3,
    "n_shared_experts": 0,
    "n_activated_experts": 2,
    "n_expert_groups": 0,
    "n_limited_groups": 0,
    "train_gate": True,
    "gate_bias_update_factor": 0.0,
    "aux_loss_coeff": COEFFICIENT,
    "score_func": "softmax",
    "route_scale": 1.0,
    "norm_topk_prob": True,
    "softmax_before_topk": True,
    "dtype": torch.float32,
}


def gradient(ranks, index, mesh):
    torch.manual_seed(0)
    backend = BackendConfig(attn="sdpa", linear="torch", experts="torch", dispatcher="torch")
    experts = MoE(MoEConfig(**CONFIG), backend)
    for parameter in experts.parameters():
        torch.nn.init.normal_(parameter)
    tokens = torch.randn(1, 4, 2).chunk(ranks, 1)[index]
    if ranks > 1 and CONTROL:
        experts.cp_mesh = mesh
    # cp_size over the number of micro-batches.
    MoEAuxLossAutoScaler.main_loss_backward_scale = torch.tensor(float(ranks))
    # Any loss will do: only the gradient of the balance loss is left of this one.
    (experts(tokens).sum() * 0).backward()
    found = experts.gate.weight.grad
    if ranks > 1:
        dist.all_reduce(found)
    return (found / ranks).flatten()


def rank(index, port, results):
    dist.init_process_group(
        "gloo", init_method=f"tcp://127.0.0.1:{port}", rank=index, world_size=2
    )
    mesh = init_device_mesh("cpu", (2,), mesh_dim_names=("cp",))
    expected, got = gradient(1, 0, mesh), gradient(2, index, mesh)
    if index == 0:
        results.put((expected.tolist(), got.tolist()))
    dist.barrier()
    dist.destroy_process_group()


def main():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    results = mp.get_context("fork").SimpleQueue()
    mp.start_processes(rank, (port, results), nprocs=2, start_method="fork")
    expected, got = results.get()
    print("expected", *(f"{number:7.4f}" for number in expected), "on one rank")
    print("got     ", *(f"{number:7.4f}" for number in got), "with cp_size 2")
    return int(not torch.allclose(torch.tensor(got), torch.tensor(expected), atol=1e-5))


if __name__ == "__main__":
    sys.exit(main())
