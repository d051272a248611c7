"""UlyssesSPAttentionHF: with sdpa, packed documents attend to each other.

DeepSpeed 0.19.8, transformers 5.23.0, two ranks on CPU. Two documents are packed in a row, and
position_ids reset where the second begins, as register_with_transformers asks. transformers on one
rank keeps them apart. With Ulysses its mask is dropped, and none takes its place.

    python packed-rows-leak.py
"""

import os
import sys
import tempfile
from typing import Any

os.environ.setdefault("DS_ACCELERATOR", "cpu")

import deepspeed
import torch
from deepspeed.runtime.sequence_parallel.ulysses_sp import UlyssesSPAttentionHF
from torch import Tensor, distributed
from torch.multiprocessing.spawn import spawn
from transformers import LlamaConfig, LlamaForCausalLM

SP = 2
INPUT_IDS = torch.tensor([[1, 2, 3, 4, 5, 6]])
POSITION_IDS = torch.tensor([[0, 1, 0, 1, 2, 3]])


def build() -> Any:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=16,
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=2,
        initializer_range=0.5,
        use_cache=False,
    )
    return LlamaForCausalLM(config)


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
        document = POSITION_IDS[0, : place + 1].eq(0).sum().item()
        print(f"{name} logit 0 of token {place}, document {document}: {first:.6f}")


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
