"""Knowledge distillation of language models with cp_size above 1 raises KeyError: 'labels' in its
first step

nemo-automodel 0.7.0: the released _forward_backward_step on a small Llama and its teacher, whose
sequences two ranks share. With --control labels stay in the batch until it is cut, as in
recipes/vlm/kd.py.

pip install nemo-automodel==0.7.0; needs no GPU. Exit status 1 if the bug shows.
"""

import ast
import importlib.util
import socket
import sys
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import torch
from nemo_automodel.components.distributed.context_parallel import ContextParallelSharder
from nemo_automodel.components.distributed.context_parallel.utils import (
    attach_context_parallel_hooks,
)
from nemo_automodel.components.distributed.utils import get_sync_ctx
from nemo_automodel.components.loss import utils as losses
from nemo_automodel.components.loss.kd_loss import KDLoss
from nemo_automodel.components.loss.linear_ce_base import LinearCrossEntropy
from nemo_automodel.components.loss.masked_ce import MaskedCrossEntropy
from nemo_automodel.components.training.model_output_utils import get_final_hidden_states
from nemo_automodel.components.training.utils import ScopedModuleOffloading
from nemo_automodel.components.utils.model_utils import filter_forward_kwargs
from torch import distributed as dist
from torch import multiprocessing as mp
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard
from torch.distributed.tensor._dtensor_spec import DTensorSpec, TensorMeta
from torch.distributed.tensor.experimental._context_parallel import _attention as ring
from transformers import LlamaConfig, LlamaForCausalLM

CONTROL = "--control" in sys.argv
LABELS = [[2, 3, 4, -100]]
# torch's ring takes the kernels of GPUs only; the same ring with that of CPUs.
FORWARD = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu


def forward(_, given, named):
    mesh, qkv = given[0].device_mesh, [x.to_local() for x in given[:3]]
    options = {"is_causal": (*given, 0.0, False)[4], "scale": named.get("scale")}
    options["is_causal"] = named.get("is_causal", options["is_causal"])
    pieces = ring._templated_ring_attention(mesh.get_group(), 2, FORWARD, *qkv, **options)
    specs = []
    for piece in pieces:
        whole = torch.cat([piece] * mesh.size(), 2)
        meta = TensorMeta(whole.shape, whole.stride(), whole.dtype)
        specs.append(DTensorSpec(mesh, (Shard(2),), tensor_meta=meta))
    return DTensor._op_dispatcher.wrap(pieces, specs)


def released_step():
    """The method alone, because its module imports torchao, datasets and more."""
    root = Path(importlib.util.find_spec("nemo_automodel").submodule_search_locations[0])
    path = root / "recipes/llm/kd.py"
    source = path.read_text()
    if CONTROL:
        source = source.replace("            loss_mask=labels,\n", "")
        out, cut = '        labels = batch.pop("labels")\n', "cp_sharder.shard(batch)\n"
        before, _, after = source.rpartition(f"{out}        # KD has not")
        source = before + "        # KD has not" + after.replace(cut, cut + out, 1)
    classes = (node for node in ast.parse(source).body if isinstance(node, ast.ClassDef))
    method = next(
        x for x in next(classes).body if getattr(x, "name", "") == "_forward_backward_step"
    )
    names = {
        **vars(losses),
        "ContextParallelSharder": ContextParallelSharder,
        "LinearCrossEntropy": LinearCrossEntropy,
        "ScopedModuleOffloading": ScopedModuleOffloading,
        "filter_forward_kwargs": filter_forward_kwargs,
        "get_final_hidden_states": get_final_hidden_states,
        "get_sync_ctx": get_sync_ctx,
        "nullcontext": nullcontext,
        "torch": torch,
    }
    exec(compile(ast.Module([method], []), str(path), "exec"), names)
    return names["_forward_backward_step"]


def loss(mesh):
    torch.manual_seed(0)
    sizes = {"vocab_size": 16, "hidden_size": 16, "intermediate_size": 32}
    sizes |= {"num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 2}
    models = [LlamaForCausalLM(LlamaConfig(**sizes, initializer_range=0.5)) for _ in range(2)]
    if mesh is not None:
        for model in models:
            attach_context_parallel_hooks(model)
    recipe = SimpleNamespace(
        pp_enabled=False,
        dist_env=SimpleNamespace(device=torch.device("cpu")),
        device_mesh=mesh,
        model_parts=models[:1],
        teacher_model=models[1],
        _offload_teacher_model=False,
        kd_ratio=0.5,
        loss_fn=MaskedCrossEntropy(),
        kd_loss_fn=KDLoss(),
    )
    batch = {"input_ids": torch.tensor([[1, 2, 3, 4]]), "labels": torch.tensor(LABELS)}
    options = {"num_label_tokens": 3, "num_batches": 1, "is_train": False}
    with torch.no_grad():
        share = released_step()(recipe, 0, batch, **options)[0]
    if mesh is not None:
        dist.all_reduce(share)
    return f"{share.item():.4f}"


def rank(index, port, results):
    dist.init_process_group(
        "gloo", init_method=f"tcp://127.0.0.1:{port}", rank=index, world_size=2
    )
    ring.custom_ops.update({FORWARD.default: forward})
    expected = loss(None)
    try:
        got = loss(init_device_mesh("cpu", (2,), mesh_dim_names=("cp",)))
    except KeyError as error:
        got = f"KeyError: {error}"
    if index == 0:
        results.put((expected, got))
    dist.barrier()
    dist.destroy_process_group()


def main():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    results = mp.get_context("fork").SimpleQueue()
    mp.start_processes(rank, (port, results), nprocs=2, start_method="fork")
    expected, got = results.get()
    print(f"expected {expected}, the loss of one rank")
    print(f"got      {got}, with cp_size 2")
    return int(got != expected)


if __name__ == "__main__":
    sys.exit(main())
