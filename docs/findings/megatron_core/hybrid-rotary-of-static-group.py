"""hybrid_context_parallel: with context_parallel_size above 1, a sample on one rank is rotated by
the static group, and the rank raises without apply_rope_fusion.

megatron-core 0.19.2, two ranks over gloo, no GPU. With context_parallel_size 2, a short sample of
four tokens is scheduled on one rank: its PackedSeqParams have local_cp_size 1 and no cp_group, and
its tokens are not cut. SelfAttention of the local spec runs on it as below; its core attention is
left out. With --control context_parallel_size is 1.

    python hybrid-rotary-of-static-group.py
"""

import sys
import tempfile
import warnings
from pathlib import Path
from typing import Any

import torch
from megatron.core.models.common.embeddings.rotary_pos_embedding import RotaryEmbedding
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
from megatron.core.packed_seq_params import PackedSeqParams
from megatron.core.process_groups_config import ProcessGroupCollection
from megatron.core.transformer.attention import SelfAttention
from megatron.core.transformer.transformer_config import TransformerConfig
from torch import Tensor, multiprocessing, nn
from torch import distributed as dist
from torch.overrides import TorchFunctionMode

TOKENS, WIDTH, HEADS = 4, 16, 2
SIZE = 1 if "--control" in sys.argv else 2


class OnCpu(TorchFunctionMode):
    """Nothing is pinned or sent to a GPU."""

    def __torch_function__(self, function: Any, _: Any, args: Any = (), kwargs: Any = None) -> Any:
        named = {key: value for key, value in (kwargs or {}).items() if key != "pin_memory"}
        return args[0] if function is Tensor.cuda else function(*args, **named)


class NoAttention(nn.Module):
    """Returns its queries, with heads joined."""

    def __init__(self, **_: Any) -> None:
        super().__init__()

    def forward(self, query: Tensor, *_: Any, **__: Any) -> Tensor:
        return query.flatten(-2)


def rank(index: int, folder: str) -> None:
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=index, world_size=2)
    torch.cuda.current_device = lambda: torch.device("cpu")
    alone = [dist.new_group([each]) for each in range(2)][index]
    static = dist.group.WORLD if SIZE == 2 else alone
    config = TransformerConfig(
        num_layers=1,
        hidden_size=WIDTH,
        num_attention_heads=HEADS,
        context_parallel_size=SIZE,
        use_cpu_initialization=True,
    )
    submodules = get_gpt_layer_local_spec().submodules.self_attention.submodules
    submodules.core_attention = NoAttention
    groups = ProcessGroupCollection(tp=alone, cp=static)
    attention = SelfAttention(config, submodules, layer_number=1, pg_collection=groups)
    rotary = RotaryEmbedding(WIDTH // HEADS, 1.0, use_cpu_initialization=True, cp_group=static)
    ends = torch.tensor([0, TOKENS])
    packed = PackedSeqParams("thd", ends, ends, max_seqlen_q=TOKENS, local_cp_size=1)
    with OnCpu():
        embedding = rotary(TOKENS, packed_seq=True, cp_group=packed.cp_group)
        sample = torch.ones(TOKENS, 1, WIDTH)
        try:
            out, _ = attention(sample, None, rotary_pos_emb=embedding, packed_seq_params=packed)
            got = f"{len(out)} tokens rotated"
        except RuntimeError as error:
            got = str(error)
    if index == 0:
        print(f"expected {TOKENS} tokens rotated")
        print(f"got      {got}")
        Path(folder, "wrong").write_text("" if got == f"{TOKENS} tokens rotated" else "1")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    with tempfile.TemporaryDirectory() as folder:
        multiprocessing.spawn(rank, (folder,), nprocs=2)
        sys.exit(bool(Path(folder, "wrong").read_text()))
