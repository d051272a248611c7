"""Trainer with cp_size > 1 averages the means of shards where model_accepts_loss_kwargs is False.

One rank has one of the three targets, the other two of them. Each counts for half of the loss.
The model has no layers, for attention plays no part. With --control the model takes
num_items_in_batch.

transformers 5.24.0, accelerate 1.15.0 and torch 2.13.0; two ranks on CPU over gloo.

    python mean-of-rank-means.py [--control]
"""

import os
import sys
import tempfile
from contextlib import redirect_stdout
from typing import Any

os.environ["ACCELERATE_TORCH_DEVICE"] = "cpu"

import torch
from accelerate import PartialState
from accelerate.utils import DistributedType, ParallelismConfig
from torch import distributed
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

BATCH = {"input_ids": [[1, 2, 3, 4]], "labels": [[1, 2, 3, 4]]}


def train(ranks: int) -> float:
    torch.manual_seed(0)
    sizes: Any = {"vocab_size": 16, "hidden_size": 16, "intermediate_size": 32}
    sizes |= {"num_hidden_layers": 0, "num_attention_heads": 2, "initializer_range": 0.5}
    model = LlamaForCausalLM(LlamaConfig(**sizes))
    model.accepts_loss_kwargs = "--control" in sys.argv
    options: dict[str, Any] = {"max_steps": 1, "logging_steps": 1, "save_strategy": "no"}
    options |= {"output_dir": tempfile.gettempdir(), "remove_unused_columns": False}
    if ranks > 1:
        options |= {"fsdp": True, "fsdp_config": {"auto_wrap_policy": "NO_WRAP"}}
        options["parallelism_config"] = ParallelismConfig(cp_size=ranks)
        # accelerate gives FSDP to GPUs only.
        PartialState._prepare_backend = lambda *_, **__: ("gloo", DistributedType.MULTI_GPU)
    batch = {name: torch.tensor(rows) for name, rows in BATCH.items()}
    given: Any = {"data_collator": lambda _: batch, "train_dataset": [0]}
    trainer = Trainer(model, TrainingArguments(**options), **given)
    with redirect_stdout(sys.stderr):
        trainer.train()
    return float(trainer.state.log_history[0]["loss"])


def rank_main(rank: int, store: str, losses: Any) -> None:
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2"}
    distributed.init_process_group("gloo", f"file://{store}", rank=rank, world_size=2)
    losses.put(train(2))
    distributed.destroy_process_group()


def main() -> int:
    multiprocessing: Any = torch.multiprocessing
    losses = multiprocessing.get_context("spawn").SimpleQueue()
    with tempfile.TemporaryDirectory() as folder:
        multiprocessing.spawn(rank_main, (f"{folder}/store", losses), nprocs=2)
    expected, got = train(1), losses.get()
    print(f"expected loss {expected:.4f}\ngot      loss {got:.4f}")
    return int(abs(expected - got) > 1e-4)


if __name__ == "__main__":
    raise SystemExit(main())
