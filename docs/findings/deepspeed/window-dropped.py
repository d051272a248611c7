"""UlyssesSPAttentionHF: with sdpa or flex_attention a model's sliding window is lost without an
error.

DeepSpeed 0.19.8, transformers 5.23.0, two ranks on CPU. A Mistral with sliding_window=2. For sdpa
the window is in the mask that transformers makes; Ulysses drops the mask, and every token attends
to all before it. One rank alone, and the core flash_attention_2, keep the window. With --control
the model has no sliding window.

    python window-dropped.py
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
from deepspeed.runtime.sequence_parallel.ulysses_sp import UlyssesSPAttentionHF
from torch import Tensor, distributed
from torch.multiprocessing.spawn import spawn
from transformers import MistralConfig, MistralForCausalLM

SP = 2
INPUT_IDS = torch.tensor([[1, 2, 3, 4, 5, 6]])
POSITION_IDS = torch.arange(6)[None]
WINDOW = None if "--control" in sys.argv else 2


def build() -> Any:
    torch.manual_seed(0)
    config = MistralConfig(
        vocab_size=16,
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=2,
        sliding_window=WINDOW,
        initializer_range=0.5,
        use_cache=False,
    )
    return MistralForCausalLM(config)


def rank_main(rank: int, folder: str) -> None:
    distributed.init_process_group("gloo", f"file://{folder}/store", rank=rank, world_size=SP)
    # Otherwise a kernel for shared memory is compiled, for a minute.
    sys.modules["deepspeed.comm.torch"].build_shm_op = lambda: None  # type: ignore[attr-defined]
    deepspeed.init_distributed(dist_backend="gloo", verbose=False)
    model = build()
    UlyssesSPAttentionHF.register_with_transformers(
        model_name_or_path=model,
        core_attn_implementation="sdpa",
        sequence_parallel_size=SP,
        micro_batch_size=1,
    )
    mine = {"input_ids": INPUT_IDS, "position_ids": POSITION_IDS}
    mine = {key: value.chunk(SP, dim=1)[rank] for key, value in mine.items()}
    logits = model(**mine).logits.detach().contiguous()
    pieces = [torch.empty_like(logits) for _ in range(SP)]
    distributed.all_gather(pieces, logits)
    if rank == 0:
        torch.save(torch.cat(pieces, dim=1), f"{folder}/logits.pt")
    distributed.destroy_process_group()


def show(name: str, logits: Tensor) -> None:
    for place, first in enumerate(logits[0, :, 0].tolist()):
        print(f"{name} logit 0 of token {place}: {first:.4f}")


def main() -> int:
    expected = build()(input_ids=INPUT_IDS, position_ids=POSITION_IDS).logits.detach()
    with tempfile.TemporaryDirectory() as folder:
        spawn(rank_main, (folder,), nprocs=SP)
        got = torch.load(f"{folder}/logits.pt")
    show("expected", expected)
    show("got     ", got)
    return int(not torch.allclose(expected, got, atol=1e-5))


if __name__ == "__main__":
    sys.exit(main())
