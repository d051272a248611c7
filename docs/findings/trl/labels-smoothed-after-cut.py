"""label_smoothing_factor with cp_size > 1: labels are shifted after they are cut.

The model has no layers, for attention plays no part. With --control labels are not smoothed.

trl 1.16.0, transformers 5.23.0, accelerate 1.15.0 and torch 2.13.0; two ranks on CPU over gloo.

    python labels-smoothed-after-cut.py [--control]
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
from torch import distributed
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
from trl import SFTConfig, SFTTrainer

ROWS = {"input_ids": [[1, 2, 3, 4]]}


def train(ranks: int) -> float:
    torch.manual_seed(0)
    sizes: Any = {"vocab_size": 16, "hidden_size": 16, "intermediate_size": 32}
    sizes |= {"num_hidden_layers": 0, "num_attention_heads": 2, "initializer_range": 0.5}
    model = LlamaForCausalLM(LlamaConfig(**sizes))
    options: dict[str, Any] = {"max_steps": 1, "logging_steps": 1, "save_strategy": "no"}
    options |= {"output_dir": tempfile.gettempdir(), "pad_to_multiple_of": 4}
    options |= {"bf16": False, "label_smoothing_factor": 0.0 if "--control" in sys.argv else 0.1}
    options |= {"dataset_kwargs": {"skip_prepare_dataset": True}, "max_length": None}
    if ranks > 1:
        options |= {"fsdp": True, "fsdp_config": {"auto_wrap_policy": "NO_WRAP"}}
        options["parallelism_config"] = ParallelismConfig(cp_size=ranks)
        # accelerate gives FSDP to GPUs only.
        PartialState._prepare_backend = lambda *_, **__: ("gloo", DistributedType.MULTI_GPU)
    words: Any = Tokenizer(WordLevel({str(i): i for i in range(16)}))
    reader = PreTrainedTokenizerFast(tokenizer_object=words, pad_token="0")
    rows = Dataset.from_dict(ROWS)
    trainer = SFTTrainer(model, SFTConfig(**options), train_dataset=rows, processing_class=reader)
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
