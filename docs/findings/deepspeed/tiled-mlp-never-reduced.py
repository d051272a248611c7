"""TiledMLP under ZeRO: gradients are not reduced where torch.chunk gives fewer tiles than shards.

DeepSpeed 0.19.8, two ranks of ZeRO 3 on CPU. torch.chunk makes ceil(n / ceil(n / shards)) tiles of
n tokens: 2 of 4 tokens and 3 shards. The loop of backward sets ds_grad_is_ready only at tile
i + 1 == shards, so never, and ZeRO does not reduce these gradients: what safe_get_full_grad shows
is each rank's own. With --control there are 2 shards, and so 2 tiles.

    python tiled-mlp-never-reduced.py
"""

import logging
import os
import sys
import tempfile
from typing import Any

os.environ.setdefault("DS_ACCELERATOR", "cpu")
# The library logs the time to where this prints.
logging.disable(logging.WARNING)

import deepspeed
import torch
from deepspeed.runtime.sequence_parallel.ulysses_sp import TiledMLP
from deepspeed.utils import safe_get_full_grad
from torch import Tensor, distributed, nn
from torch.multiprocessing.spawn import spawn

RANKS, TOKENS, HIDDEN, SHARDS = 2, 4, 8, 2 if "--control" in sys.argv else 3
CONFIG = {
    "train_micro_batch_size_per_gpu": 1,
    "gradient_clipping": 0.0,
    "zero_optimization": {"stage": 3, "overlap_comm": False},
    "zero_allow_untested_optimizer": True,
    "zero_force_ds_cpu_optimizer": False,
}


class MLP(nn.Module):
    """Without tiles."""

    def __init__(self) -> None:
        super().__init__()
        self.up_proj = nn.Linear(HIDDEN, 16, bias=False)
        self.down_proj = nn.Linear(16, HIDDEN, bias=False)

    def forward(self, x: Tensor) -> Any:
        return self.down_proj(self.up_proj(x).relu())


class Tiled(MLP):
    """In tiles, as the docstring of TiledMLP has it."""

    def forward(self, x: Tensor) -> Any:
        weights = [self.up_proj.weight, self.down_proj.weight]
        return TiledMLP.apply(MLP.forward, self, x, SHARDS, weights)


def build(kind: type[MLP]) -> MLP:
    torch.manual_seed(0)
    return kind()


def batch(rank: int) -> Tensor:
    generator = torch.Generator().manual_seed(rank)
    return torch.randn(1, TOKENS, HIDDEN, generator=generator).requires_grad_()


def rank_main(rank: int, folder: str) -> None:
    os.environ.update(LOCAL_RANK=str(rank))
    distributed.init_process_group("gloo", f"file://{folder}/store", rank=rank, world_size=RANKS)
    # Otherwise a kernel for shared memory is compiled, for a minute.
    sys.modules["deepspeed.comm.torch"].build_shm_op = lambda: None  # type: ignore[attr-defined]
    deepspeed.init_distributed(dist_backend="gloo", verbose=False)
    model = build(Tiled)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=CONFIG)
    engine.backward(engine(batch(rank)).square().mean())
    gradient = safe_get_full_grad(engine.module.down_proj.weight)
    torch.save(gradient, f"{folder}/{rank}.pt")
    distributed.destroy_process_group()


def main() -> int:
    plain = build(MLP)
    torch.stack([plain(batch(rank)).square().mean() for rank in range(RANKS)]).mean().backward()
    expected = plain.get_parameter("down_proj.weight").grad
    assert expected is not None
    with tempfile.TemporaryDirectory() as folder:
        spawn(rank_main, (folder,), nprocs=RANKS)
        got = [torch.load(f"{folder}/{rank}.pt") for rank in range(RANKS)]
    print(f"expected |gradient of down_proj| {expected.norm():.4f} on both ranks")
    for rank, gradient in enumerate(got):
        print(f"got      |gradient of down_proj| {gradient.norm():.4f} on rank {rank}")
    return int(not all(torch.allclose(expected, each, atol=1e-5) for each in got))


if __name__ == "__main__":
    sys.exit(main())
