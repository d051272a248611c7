"""ring_attn_size above 1 accepts a model with a sliding window, and ring-flash-attn's adapter
drops a window as long as a rank's shard or longer.

ring-flash-attn 0.1.8, as OpenRLHF 0.11.2 substitutes it (setup_ring_attn). The window is compared
with the number of keys of one rank (key_states.shape[1]), not of the row, and left out.
Two ranks on a CPU; the values are unit vectors, so an output holds the attention weights. The
script calls ring-flash-attn alone: it does not see a refusal by OpenRLHF.
With --control the row has 16 tokens, so that a shard is longer than the window.

    python window-gated-on-shard.py [--control]
"""

import sys
import tempfile
import types
from multiprocessing import get_context
from typing import Any

import torch
import transformers.modeling_flash_attention_utils as attention
from torch import Tensor
from torch import distributed as dist
from torch.multiprocessing.spawn import spawn

RANKS, TOKENS, WINDOW = 2, 16 if "--control" in sys.argv else 8, 4


def kernel(
    q: Tensor, k: Tensor, v: Tensor, softmax_scale: float, window_size_left: int, **_: object
) -> tuple[Tensor, Tensor, None, None]:
    """flash-attn's forward for one row: the last query stands at the last key."""
    back = torch.arange(len(k) - len(q), len(k))[:, None] - torch.arange(len(k))
    seen = back >= 0 if window_size_left < 0 else (back >= 0) & (back <= window_size_left)
    scores = torch.einsum("qnh,knh->nqk", q, k) * softmax_scale
    scores = scores.masked_fill(~seen, -torch.inf)
    out = torch.einsum("nqk,knh->qnh", scores.softmax(-1), v)
    return out, scores.logsumexp(-1), None, None


def stand_in_for_flash_attn() -> None:
    package, interface = (
        types.ModuleType(name) for name in ("flash_attn", "flash_attn.flash_attn_interface")
    )
    for name in ("forward", "backward", "varlen_forward", "varlen_backward"):
        setattr(interface, f"_flash_attn_{name}", kernel)
    sys.modules.update({each.__name__: each for each in (package, interface)})
    # As OpenRLHF's patch_transformers_for_ring_flash_attn does.
    vars(attention).update(is_flash_attn_greater_or_equal_2_10=lambda: True)


def work(rank: int, store: str, queue: Any) -> None:
    dist.init_process_group("gloo", f"file://{store}", world_size=RANKS, rank=rank)
    stand_in_for_flash_attn()
    from ring_flash_attn.adapters import hf_adapter

    hf_adapter.update_ring_flash_attn_params(
        torch.tensor([0, TOKENS], dtype=torch.int32), dist.group.WORLD
    )
    attend, *_ = hf_adapter.create_ring_flash_attention_forward(dist.group.WORLD, 1)
    torch.manual_seed(0)
    q, k = torch.randn(2, 1, TOKENS, 1, TOKENS)
    v = torch.eye(TOKENS)[None, :, None]
    mine = [x.chunk(RANKS, 1)[rank] for x in (q, k, v)]
    out = attend(*mine, None, TOKENS // RANKS, True, sliding_window=WINDOW)
    if rank == RANKS - 1:
        queue.put(int((out[0, -1, 0] > 0).sum()))
    dist.destroy_process_group()


def main() -> int:
    queue = get_context("spawn").SimpleQueue()
    with tempfile.TemporaryDirectory() as folder:
        spawn(work, (f"{folder}/store", queue), RANKS)
    got = queue.get()
    print(f"keys that the last of {TOKENS} tokens attends to, with a window of {WINDOW}")
    # One key too many is another fault.
    print(f"expected {WINDOW + 1}, or {WINDOW} without the other fault, window-one-too-wide")
    print(f"got      {got}")
    return 0 if got in (WINDOW, WINDOW + 1) else 1


if __name__ == "__main__":
    sys.exit(main())
