"""ring-flash-attn's adapter, which OpenRLHF uses for ring_attn_size above 1, makes a sliding
window one token too wide.

ring-flash-attn 0.1.8, as OpenRLHF 0.11.2 substitutes it (setup_ring_attn). window_size is
(sliding_window, sliding_window), and flash-attn does not count the query's own key.
Two ranks on a CPU; the values are unit vectors, so an output holds the attention weights.
With --control transformers' own function attends to the whole row, with the same kernel.

    python window-one-too-wide.py [--control]
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

RANKS, TOKENS, WINDOW = 2, 8, 2
CONTROL = "--control" in sys.argv


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


def transformers_own() -> Any:
    """transformers' flash attention, with the kernel above."""

    def flash(
        q: Tensor, k: Tensor, v: Tensor, softmax_scale: float, causal: bool, window_size: Any
    ) -> Tensor:
        return kernel(q[0], k[0], v[0], softmax_scale, window_size[0])[0][None]

    process = attention._lazy_define_process_function(flash)
    given = {"_flash_fn": flash, "_process_flash_kwargs_fn": process}
    vars(attention).update(given, _loaded_implementation="above")
    return attention._flash_attention_forward


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
    if CONTROL:
        attend, mine = transformers_own(), [q, k, v]
    options: Any = {"softmax_scale": 1.0, "sliding_window": WINDOW}
    out = attend(*mine, None, mine[0].shape[1], True, **options)
    if rank == RANKS - 1:
        queue.put(int((out[0, -1, 0] > 0).sum()))
    dist.destroy_process_group()


def main() -> int:
    queue = get_context("spawn").SimpleQueue()
    with tempfile.TemporaryDirectory() as folder:
        spawn(work, (f"{folder}/store", queue), RANKS)
    got = queue.get()
    print(f"keys that the last of {TOKENS} tokens attends to, with a window of {WINDOW}")
    print(f"expected {WINDOW}")
    print(f"got      {got}")
    return 0 if got == WINDOW else 1


if __name__ == "__main__":
    sys.exit(main())
