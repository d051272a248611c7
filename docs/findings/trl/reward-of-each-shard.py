"""RewardTrainer should refuse cp_size > 1: each rank takes its reward from its own part of the
row.

Two ranks share the rows of one pair; each trains on rewards of its own part. With --control the
same ranks are replicas of whole rows (dp_shard_size=2).
trl 1.16.0, transformers 5.23.0, accelerate 1.15.0 and torch 2.13.0; two ranks on CPU over gloo.
The kernel of torch's ring and accelerate's backend, both for GPUs, are replaced, in --control too.

    python reward-of-each-shard.py
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
from datasets import Dataset
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from torch import Tensor, distributed
from torch.distributed.tensor import DTensor, Shard
from torch.distributed.tensor.experimental._context_parallel import _attention as ring
from transformers import LlamaConfig, LlamaForSequenceClassification, PreTrainedTokenizerFast
from trl import RewardConfig, RewardTrainer

PAIR = {"chosen_ids": [1, 2, 3], "rejected_ids": [4, 5, 6, 7, 8]}

# torch's ring takes the kernels of GPUs only; the same ring with that of CPUs.
FORWARD = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
BACKWARD = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward


def wrapped(like: Any, pieces: tuple[Tensor, ...]) -> Any:
    return tuple(DTensor.from_local(x, like.device_mesh, [Shard(2)]) for x in pieces)


def forward(_: Any, given: Any, named: Any) -> Any:
    group, qkv = given[0].device_mesh.get_group(), [x.to_local() for x in given[:3]]
    options = {"is_causal": (*given, 0.0, False)[4], **named}
    return wrapped(given[0], ring._templated_ring_attention(group, 2, FORWARD, *qkv, **options))


def backward(_: Any, given: Any, named: Any) -> Any:
    names = ("grad_out", "query", "key", "value", "out", "logsumexp")
    local: Any = {name: x.to_local() for name, x in zip(names, given[:6], strict=True)}
    options = {"dropout_p": 0.0, "is_causal": given[7], "scale": named.get("scale")}
    options |= {"grad_out_name": "grad_out", **local}
    group, op = given[0].device_mesh.get_group(), BACKWARD.default
    return wrapped(given[1], ring._templated_ring_attention_backward(group, 2, op, **options))


ring.custom_ops.update({FORWARD.default: forward, BACKWARD.default: backward})


def train(**parallel: int) -> float:
    torch.manual_seed(0)
    sizes: Any = {"vocab_size": 16, "hidden_size": 16, "intermediate_size": 32, "pad_token_id": 0}
    sizes |= {"num_hidden_layers": 1, "num_attention_heads": 2, "initializer_range": 0.5}
    model = LlamaForSequenceClassification(LlamaConfig(**sizes, num_labels=1))
    options: dict[str, Any] = {"max_steps": 1, "logging_steps": 1, "save_strategy": "no"}
    options |= {"output_dir": tempfile.gettempdir(), "pad_to_multiple_of": 4}
    options |= {"bf16": False, "max_length": None, "per_device_train_batch_size": 1}
    if parallel:
        options |= {"fsdp": True, "fsdp_config": {"auto_wrap_policy": "NO_WRAP"}}
        options["parallelism_config"] = ParallelismConfig(**parallel)
        PartialState._prepare_backend = lambda *_, **__: ("gloo", DistributedType.MULTI_GPU)
    words: Any = Tokenizer(WordLevel({str(i): i for i in range(16)}))
    reader = PreTrainedTokenizerFast(tokenizer_object=words, pad_token="0")
    pairs, config = Dataset.from_list([PAIR, PAIR]), RewardConfig(**options)
    trainer = RewardTrainer(model, config, train_dataset=pairs, processing_class=reader)
    with redirect_stdout(sys.stderr):
        trainer.train()
    return float(trainer.state.log_history[0]["loss"])


def rank_main(rank: int, store: str, losses: Any, how: str) -> None:
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2"}
    distributed.init_process_group("gloo", f"file://{store}", rank=rank, world_size=2)
    losses.put(train(**{how: 2}))
    distributed.destroy_process_group()


def main() -> int:
    how = "dp_shard_size" if "--control" in sys.argv else "cp_size"
    losses = torch.multiprocessing.get_context("spawn").SimpleQueue()
    with tempfile.TemporaryDirectory() as folder:
        torch.multiprocessing.spawn(rank_main, (f"{folder}/store", losses, how), nprocs=2)
    expected, got = train(), losses.get()
    print(f"expected loss {expected:.4f}\ngot      loss {got:.4f}")
    return int(abs(expected - got) > 1e-4)


if __name__ == "__main__":
    raise SystemExit(main())
