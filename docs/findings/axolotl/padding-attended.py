"""batch_ring ignores attention_mask: padding on the left is attended, as in GRPO.

axolotl 0.19.0, ring-flash-attn 0.1.8. A row of 6 with two tokens of padding before it, as TRL
pads prompts. Two ranks on a CPU; values are unit vectors, so that an output holds the attention
weights.

    python padding-attended.py
"""

import sys
import tempfile
import types
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any

import torch
import transformers.modeling_flash_attention_utils as attention
from torch import distributed as dist
from torch import multiprocessing

# Nothing is compiled on a CPU.
torch.compiler.set_stance("force_eager")
RANKS, TOKENS = 2, 8


def kernel(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    dropout_p: float,
    softmax_scale: float,
    causal: bool,
    window_size_left: int = -1,
    window_size_right: int = -1,
    softcap: float = 0.0,
    alibi_slopes: Any = None,
    return_softmax: bool = False,
) -> tuple[Any, ...]:
    """flash-attn's forward: the last query stands at the last key."""
    back = torch.arange(k.shape[1] - q.shape[1], k.shape[1])[:, None] - torch.arange(k.shape[1])
    seen = back >= 0 if causal else torch.ones_like(back, dtype=torch.bool)
    if window_size_left >= 0:
        seen &= (back <= window_size_left) & (back >= -window_size_right)
    scores = torch.einsum("bqnh,bknh->bnqk", q, k) * softmax_scale
    scores = scores.masked_fill(~seen, -torch.inf)
    out = torch.einsum("bnqk,bknh->bqnh", scores.softmax(-1).nan_to_num(0), v)
    lse = scores.logsumexp(-1)
    return out, lse.masked_fill(lse == -torch.inf, torch.inf), None, None


def stand_in_for_flash_attn() -> None:
    package, interface = (
        types.ModuleType(name) for name in ("flash_attn", "flash_attn.flash_attn_interface")
    )
    for name in ("forward", "backward", "varlen_forward", "varlen_backward"):
        setattr(interface, f"_flash_attn_{name}", kernel)
    for each in (package, interface):
        each.__spec__ = ModuleSpec(each.__name__, None)
        sys.modules[each.__name__] = each
    # As axolotl's check of a config does.
    attention.is_flash_attn_greater_or_equal_2_10 = lambda: True
    attention.is_flash_attn_greater_or_equal = lambda version: True


def work(rank: int, store: str, queue: Any) -> None:
    dist.init_process_group("gloo", f"file://{store}", world_size=RANKS, rank=rank)
    stand_in_for_flash_attn()
    from axolotl.monkeypatch.ring_attn.adapters import batch
    from axolotl.utils.schemas.enums import RingAttnFunc

    attend = batch.create_flash_attn_forward_varlen_llama3(
        dist.group.WORLD, RingAttnFunc.BATCH_RING
    )
    torch.manual_seed(0)
    q, k = torch.randn(2, 1, TOKENS, 1, TOKENS)
    v = torch.eye(TOKENS)[None, :, None]
    mine = [x.chunk(RANKS, 1)[rank] for x in (q, k, v)]
    mask = (torch.arange(TOKENS)[None] >= 2).long().chunk(RANKS, 1)[rank]
    out = attend(*mine, mask, TOKENS // RANKS, True)
    if rank == RANKS - 1:
        queue.put((out[0, -1, 0] > 1e-6).nonzero().flatten().tolist())
    dist.destroy_process_group()


def main() -> int:
    queue = multiprocessing.get_context("spawn").SimpleQueue()
    with tempfile.TemporaryDirectory() as folder:
        multiprocessing.spawn(work, (str(Path(folder, "store")), queue), RANKS)
    got = queue.get()
    expected = [2, 3, 4, 5, 6, 7]
    print("which of 8 tokens the last attends to; the first two are padding")
    print("expected", expected)
    print("got     ", got)
    return 0 if got == expected else 1


if __name__ == "__main__":
    sys.exit(main())
