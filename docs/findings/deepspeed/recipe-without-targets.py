"""ALST tutorial: the reported loss is NaN where one rank's shard has no target; gradients are
right.

DeepSpeed 0.19.8, transformers 5.23.0, two ranks on CPU. The training loop of DeepSpeed's tutorial
docs/_tutorials/ulysses-alst-sequence-parallelism.md (in the repository, not in the wheel), on a
row whose first half is a prompt. The first rank has that half. The mean of its losses is NaN, from
model.loss_function of transformers. The tutorial multiplies it by the number of targets, 0, and
NaN times 0 is NaN: so is the loss of all ranks. deepspeed_sp_compute_loss of transformers has the
same lines, and leaves such ranks out. This script holds a copy of the tutorial's lines: a mend of
the tutorial does not reach it. With --control the first half has a target too.

    python recipe-without-targets.py
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
import torch.distributed.nn
from deepspeed.runtime.sequence_parallel import ulysses_sp
from deepspeed.utils import groups
from torch import distributed
from torch.multiprocessing.spawn import spawn
from transformers import LlamaConfig, LlamaForCausalLM

SP = 2
ROW = {
    "input_ids": torch.tensor([[1, 2, 3, 4, 5, 6]]),
    "position_ids": torch.arange(6)[None],
    "labels": torch.tensor([[-100, -100, 3 if "--control" in sys.argv else -100, -100, 5, 6]]),
}
CONFIG = {
    "train_micro_batch_size_per_gpu": 1,
    "zero_optimization": {"stage": 3},
    "zero_allow_untested_optimizer": True,
    "sequence_parallel_size": SP,
}


def build() -> Any:
    torch.manual_seed(0)
    size: dict[str, Any] = {"vocab_size": 16, "hidden_size": 16, "intermediate_size": 32}
    heads: dict[str, Any] = {"num_attention_heads": 2, "num_key_value_heads": 2}
    return LlamaForCausalLM(LlamaConfig(**size, **heads, num_hidden_layers=1))


def rank_main(rank: int, folder: str) -> None:
    os.environ.update(LOCAL_RANK=str(rank))
    distributed.init_process_group("gloo", f"file://{folder}/store", rank=rank, world_size=SP)
    # Otherwise a kernel for shared memory is compiled, for a minute.
    sys.modules["deepspeed.comm.torch"].build_shm_op = lambda: None  # type: ignore[attr-defined]
    deepspeed.init_distributed(dist_backend="gloo", verbose=False)
    hook = ulysses_sp.UlyssesSPAttentionHF.register_with_transformers
    mpu = hook(build(), "sdpa", SP, micro_batch_size=1)
    optimizer = torch.optim.SGD((plain := build()).parameters(), lr=0.1)
    model, *_ = deepspeed.initialize(model=plain, optimizer=optimizer, config=CONFIG, mpu=mpu)
    sp_group, sp_world_size = groups._get_sequence_parallel_group(), SP
    adapter = ulysses_sp.UlyssesSPDataLoaderAdapter
    batch = next(iter(adapter([ROW], rank, sp_group, sp_world_size, model.device)))

    # From here on as in the tutorial, lines 106 to 123 at commit edaa722.
    outputs = model(**batch)
    shift_labels = batch["shift_labels"]
    loss = model.module.loss_function(
        logits=outputs.logits,
        labels=None,
        shift_labels=shift_labels,
        vocab_size=model.module.config.vocab_size,
    )
    losses_per_rank = torch.distributed.nn.functional.all_gather(loss, group=sp_group)
    good_tokens = (shift_labels != -100).view(-1).sum()
    good_tokens_per_rank = torch.distributed.nn.functional.all_gather(good_tokens, group=sp_group)
    total_loss = sum(losses_per_rank[r] * good_tokens_per_rank[r] for r in range(sp_world_size))
    total_good_tokens = sum(good_tokens_per_rank)
    loss = total_loss / max(total_good_tokens, 1)

    torch.save(loss.detach(), f"{folder}/{rank}.pt")
    distributed.destroy_process_group()


def main() -> int:
    expected = build()(**ROW).loss.item()
    with tempfile.TemporaryDirectory() as folder:
        spawn(rank_main, (folder,), nprocs=SP)
        got = torch.load(f"{folder}/0.pt").item()
    print(f"expected loss {expected:.4f}")
    print(f"got      loss {got:.4f}")
    return int(not abs(expected - got) < 1e-5)


if __name__ == "__main__":
    sys.exit(main())
