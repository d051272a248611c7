"""Context parallelism averages the shards' mean losses, though shards have unequal numbers of
targets.

axolotl 0.19.0, transformers 5.16.1. AxolotlTrainer sets model_accepts_loss_kwargs to False, so
that each rank's loss is the mean over its own shard, and FSDP averages over ranks. Three targets
are on the first rank, one is on the second, and none is at the cut. Two ranks on a CPU. The model
trains within axolotl's hooks, so that a mend in these is seen; one in the trainer is not.

    python loss-mean-of-means.py
"""

import sys
import tempfile
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from torch import distributed as dist
from torch import multiprocessing
from transformers.loss.loss_utils import ForCausalLMLoss
from transformers.modeling_outputs import CausalLMOutputWithPast

RANKS = 2
BATCH = {
    "input_ids": torch.arange(8)[None],
    "labels": torch.tensor([[-100, 1, 2, 3, -100, -100, -100, 7]]),
}


class Model(torch.nn.Module):
    """Its loss is the one that causal models of transformers have."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.table = torch.nn.Embedding(10, 10)

    def forward(self, input_ids: Any = None, labels: Any = None, **given: Any) -> Any:
        logits = self.table(input_ids)
        loss = ForCausalLMLoss(logits, labels, 10, **given)
        return CausalLMOutputWithPast(loss=loss, logits=logits)


def step(model: Model) -> torch.Tensor:
    """The loss, and then the gradient."""
    loss = model(**{key: tensor.clone() for key, tensor in BATCH.items()}).loss
    loss.backward()
    assert model.table.weight.grad is not None
    return torch.cat((loss.detach()[None], model.table.weight.grad.flatten()))


def work(rank: int, store: str, queue: Any) -> None:
    dist.init_process_group("gloo", f"file://{store}", world_size=RANKS, rank=rank)
    from axolotl.monkeypatch.ring_attn import set_ring_attn_group
    from axolotl.utils.ctx_managers import sequence_parallel as sharing
    from axolotl.utils.schemas.enums import RingAttnFunc

    set_ring_attn_group(dist.group.WORLD)
    manager, model = sharing.SequenceParallelContextManager, Model()
    # There is no attention to replace.
    with patch.object(manager, "_register_ring_attn"):
        hooks = manager([model], RANKS, 1, RingAttnFunc.BATCH_RING, None, False)
    with hooks:
        found = step(model)
    # As FSDP does with gradients.
    dist.all_reduce(found)
    if rank == 0:
        queue.put((found / RANKS).tolist())
    dist.destroy_process_group()


def main() -> int:
    queue = multiprocessing.get_context("spawn").SimpleQueue()
    with tempfile.TemporaryDirectory() as folder:
        multiprocessing.spawn(work, (str(Path(folder, "store")), queue), RANKS)
    got, expected = torch.tensor(queue.get()), step(Model())
    for name, found in (("expected", expected), ("got     ", got)):
        print(f"{name} loss {found[0]:.4f}, |gradient| {found[1:].norm():.4f}")
    return 0 if torch.allclose(got, expected, atol=1e-4) else 1


if __name__ == "__main__":
    sys.exit(main())
