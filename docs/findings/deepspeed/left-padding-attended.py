"""UlyssesSPAttentionHF drops attention_mask, as documented, and lets padding before a row pass
without a warning.

DeepSpeed 0.19.8, transformers 5.23.0, two ranks on CPU. A row with two tokens of padding before
it. transformers on one rank hides them. UlyssesSPDataLoaderAdapter accepts and shards the mask.
The attention drops it. Real tokens then attend to the padding. Padding after a row does no harm.
A ValueError is right. A warning would be right as well, but the script does not see one.

    python left-padding-attended.py
"""

import os
import sys
import tempfile
from typing import Any

os.environ.setdefault("DS_ACCELERATOR", "cpu")

import deepspeed
import torch
from deepspeed.runtime.sequence_parallel.ulysses_sp import (
    UlyssesSPAttentionHF,
    UlyssesSPDataLoaderAdapter,
)
from torch import Tensor, distributed
from torch.multiprocessing.spawn import spawn
from transformers import LlamaConfig, LlamaForCausalLM

SP = 2
BATCH = {
    "input_ids": torch.tensor([[0, 0, 3, 4, 5, 6]]),
    "position_ids": torch.tensor([[0, 0, 0, 1, 2, 3]]),
    "attention_mask": torch.tensor([[0, 0, 1, 1, 1, 1]]),
    "labels": torch.tensor([[-100, -100, 3, 4, 5, 6]]),
}


def build() -> Any:
    torch.manual_seed(0)
    size: dict[str, Any] = {"vocab_size": 16, "hidden_size": 16, "intermediate_size": 32}
    heads: dict[str, Any] = {"num_attention_heads": 2, "num_key_value_heads": 2}
    config = LlamaConfig(**size, **heads, num_hidden_layers=1, initializer_range=0.5)
    return LlamaForCausalLM(config)


def shared(rank: int) -> Tensor:
    """The logits of a rank's part of the row."""
    model = build()
    mpu = UlyssesSPAttentionHF.register_with_transformers(model, "sdpa", SP, micro_batch_size=1)
    group = mpu.get_sequence_parallel_group()
    loader = UlyssesSPDataLoaderAdapter([dict(BATCH)], rank, group, SP, model.device)
    return model(**next(iter(loader)), use_cache=False).logits.detach().contiguous()


def rank_main(rank: int, folder: str) -> None:
    distributed.init_process_group("gloo", f"file://{folder}/store", rank=rank, world_size=SP)
    # Otherwise a kernel for shared memory is compiled, for a minute.
    sys.modules["deepspeed.comm.torch"].build_shm_op = lambda: None  # type: ignore[attr-defined]
    deepspeed.init_distributed(dist_backend="gloo", verbose=False)
    try:
        logits = shared(rank)
        pieces = [torch.empty_like(logits) for _ in range(SP)]
        distributed.all_gather(pieces, logits)
        found: Tensor | str = torch.cat(pieces, dim=1)
    except ValueError as error:
        found = str(error)
    if rank == 0:
        torch.save(found, f"{folder}/found.pt")
    distributed.destroy_process_group()


def show(name: str, logits: Tensor) -> None:
    for place, first in enumerate(logits[0, 2:, 0].tolist()):
        print(f"{name} logit 0 of real token {place}: {first:.6f}")


def main() -> int:
    expected = build()(**BATCH).logits.detach()
    with tempfile.TemporaryDirectory() as folder:
        spawn(rank_main, (folder,), nprocs=SP)
        got = torch.load(f"{folder}/found.pt")
    if isinstance(got, str):
        print(f"refused, as it should be: {got}")
        return 0
    show("expected", expected)
    show("got     ", got)
    return int(not torch.allclose(expected[:, 2:], got[:, 2:], atol=1e-5))


if __name__ == "__main__":
    sys.exit(main())
