"""hybrid_context_parallel: a sample that one rank takes alone gets its rotary embedding by the
static group, and the rank raises

megatron-core 0.16.1, two ranks over gloo, no GPU. With context_parallel_size 2, a short sample of
four tokens is scheduled on one rank: its PackedSeqParams have local_cp_size 1 and no cp_group.
GPTModel asks for its rotary embedding as below.

    python hybrid-rotary-of-static-group.py
"""

import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
from megatron.core.models.common.embeddings.rotary_pos_embedding import RotaryEmbedding
from megatron.core.packed_seq_params import PackedSeqParams
from torch import Tensor, multiprocessing
from torch import distributed as dist
from torch.overrides import TorchFunctionMode

TOKENS = 4


class OnCpu(TorchFunctionMode):
    """Nothing is pinned or sent to a GPU."""

    def __torch_function__(self, function: Any, _: Any, args: Any = (), kwargs: Any = None) -> Any:
        named = {key: value for key, value in (kwargs or {}).items() if key != "pin_memory"}
        return args[0] if function is Tensor.cuda else function(*args, **named)


def rank(index: int, folder: str) -> None:
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=index, world_size=2)
    torch.cuda.current_device = lambda: torch.device("cpu")
    packed = PackedSeqParams(qkv_format="sbhd", max_seqlen_q=TOKENS, local_cp_size=1)
    rotary = RotaryEmbedding(8, 1.0, use_cpu_initialization=True, cp_group=dist.group.WORLD)
    with OnCpu():
        embedding = rotary(TOKENS, packed_seq=False, cp_group=packed.cp_group)
    if index == 0:
        print(f"expected a rotary embedding of {TOKENS} tokens")
        print(f"got      one of {len(embedding)}")
        Path(folder, "wrong").write_text("" if len(embedding) == TOKENS else "1")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        multiprocessing.spawn(rank, (folder,), nprocs=2)
        sys.exit(bool(Path(folder, "wrong").read_text()))
