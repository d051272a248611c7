"""cp_size above 1 silently ignores the sliding window of a transformers model.

The loss of a Mistral with a window of one token, on one rank and with the batch shared by two.

nemo-automodel 0.7.0, transformers 5.18.0 and torch 2.13.0; two ranks on CPU over gloo. With
--control the model has no sliding window.

    python window-dropped.py
"""

import sys
import tempfile
from typing import Any

import torch
from nemo_automodel.components.distributed.context_parallel import ContextParallelSharder
from nemo_automodel.components.distributed.context_parallel.utils import (
    attach_context_parallel_hooks,
)
from nemo_automodel.components.loss.masked_ce import MaskedCrossEntropy
from torch import Tensor, distributed, multiprocessing
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Shard
from torch.distributed.tensor._dtensor_spec import DTensorSpec, TensorMeta
from torch.distributed.tensor.experimental._context_parallel import _attention as ring
from transformers import MistralConfig, MistralForCausalLM

# Already moved up by one, as the library's datasets do.
BATCH = {
    "input_ids": [[1, 2, 3, 4]],
    "labels": [[2, 3, 4, -100]],
    "attention_mask": [[1, 1, 1, 1]],
}
TARGETS = 3
WINDOW = None if "--control" in sys.argv else 1

# torch's ring takes the kernels of GPUs only; the same ring with that of CPUs.
FORWARD = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu


def forward(_: Any, given: Any, named: Any) -> Any:
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


HANDLERS: dict[Any, Any] = {FORWARD.default: forward}
ring.custom_ops.update(HANDLERS)


def loss(mesh: DeviceMesh | None) -> Tensor:
    """As the recipe computes it, summed over ranks."""
    torch.manual_seed(0)
    sizes: dict[str, Any] = {"vocab_size": 16, "hidden_size": 16, "intermediate_size": 32}
    sizes |= {"num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 2}
    sizes |= {"initializer_range": 0.5, "sliding_window": WINDOW}
    model = MistralForCausalLM(MistralConfig(**sizes))
    batch: dict[str, Any] = {name: torch.tensor(rows) for name, rows in BATCH.items()}
    if mesh is not None:
        attach_context_parallel_hooks(model)
    context, batch = ContextParallelSharder(model, mesh, batch).shard(batch)
    labels = batch.pop("labels")
    with torch.no_grad(), context():
        share: Tensor = MaskedCrossEntropy()(
            model(**batch).logits, labels, num_label_tokens=TARGETS
        )
    if mesh is not None:
        distributed.all_reduce(share)
    return share


def rank_main(rank: int, folder: str) -> None:
    distributed.init_process_group(
        "gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2
    )
    expected, got = loss(None), loss(init_device_mesh("cpu", (2,), mesh_dim_names=("cp",)))
    distributed.destroy_process_group()
    if rank == 0:
        print(f"expected {expected.item():.4f}, the loss of one rank")
        print(f"got      {got.item():.4f}, the loss with cp_size 2")
    sys.exit(not torch.allclose(expected, got, atol=1e-5))


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        context = multiprocessing.get_context("spawn")
        ranks = [context.Process(target=rank_main, args=(rank, folder)) for rank in range(2)]
        for process in ranks:
            process.start()
        for process in ranks:
            process.join()
    sys.exit(int(any(process.exitcode for process in ranks)))
