"""LongContextAttention with a ring of several ranks applies window_size inside each block of keys,
not in the row

yunchang 0.6.4. The kernel counts distances in the block. Values are unit vectors, so outputs
hold the attention weights. A ValueError or NotImplementedError is right.
With --control the two ranks share heads, by Ulysses, and a ring has one rank.

Run: python ring-window-by-block.py [--control] (two processes on the CPU; plain torch stands in
for the kernel of flash-attn, with the window and the causality that it is asked for).
"""

import importlib.machinery
import sys
import tempfile
from types import ModuleType

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

UNUSED = ["_flash_attn_backward", "_flash_attn_varlen_forward", "_flash_attn_varlen_backward"]
LENGTH, HEADS, WINDOW = 8, 2, (1, 0)
RING = 1 if "--control" in sys.argv else 2


def attention(q, k, v, scale, causal, left, right):
    """Output, and the log of the sums; the last query stands beside the last key."""
    scores = torch.einsum("bqhd,bkhd->bhqk", q, k) * scale
    back = torch.arange(q.shape[1])[:, None] + k.shape[1] - q.shape[1] - torch.arange(k.shape[1])
    hidden = (back > left) & (left >= 0)
    ahead = 0 if causal else right
    hidden |= (-back > ahead) & (ahead >= 0)
    scores = scores.masked_fill(hidden, -torch.inf)
    out = torch.einsum("bhqk,bkhd->bqhd", scores.softmax(-1).nan_to_num(0), v)
    lse = scores.logsumexp(-1)  # Positive infinity where a query sees no key.
    return out, lse.masked_fill(lse == -torch.inf, torch.inf)


def stand_ins() -> None:
    """Plain torch in the place of the kernel."""
    flash, interface = ModuleType("flash_attn"), ModuleType("flash_attn.flash_attn_interface")
    flash.__spec__ = importlib.machinery.ModuleSpec("flash_attn", None)
    flash.__version__, flash.flash_attn_func = "2.8.3", None

    def forward(q, k, v, softmax_scale, causal, window_size_left, window_size_right, **_):
        asked = softmax_scale, causal, window_size_left, window_size_right
        return *attention(q, k, v, *asked), None, None

    vars(interface).update(dict.fromkeys(UNUSED), _flash_attn_forward=forward)
    sys.modules |= {"flash_attn": flash, "flash_attn.flash_attn_interface": interface}


def inputs():
    torch.manual_seed(0)
    q, k = torch.randn(2, 1, LENGTH, HEADS, LENGTH, dtype=torch.float64)
    v = torch.eye(LENGTH, dtype=torch.float64)[None, :, None].expand_as(k)
    return torch.stack((q, k, v))


def seen(out):
    """The keys that each token attends to."""
    return [(weights > 1e-6).nonzero().flatten().tolist() for weights in out[0, :, 0]]


def rank(index: int, store: str, found) -> None:
    dist.init_process_group("gloo", init_method=store, rank=index, world_size=2)
    stand_ins()
    from yunchang import EXTRACT_FUNC_DICT, LongContextAttention, set_seq_parallel_pg
    from yunchang.kernels import AttnType

    shape = {"rd": RING, "ud": 2 // RING}
    set_seq_parallel_pg(shape["ud"], shape["rd"], index, 2)
    q, k, v = (EXTRACT_FUNC_DICT["zigzag"](x, index, world_size=2, **shape) for x in inputs())
    try:
        layer = LongContextAttention(ring_impl_type="zigzag", attn_type=AttnType.FA)
        found.put((index, seen(layer(q, k, v, causal=True, window_size=WINDOW))))
    except (ValueError, NotImplementedError) as error:
        found.put((index, str(error)))
    dist.destroy_process_group()


def main() -> int:
    found = mp.get_context("spawn").SimpleQueue()
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(rank, (f"file://{folder}/store", found), nprocs=2)
    (_, first), (_, second) = sorted(found.get() for _ in range(2))
    if isinstance(first, str):
        print(f"refused, as it should be: {first}")
        return 0
    half = LENGTH // 2 // RING
    got = first[:half] + second + first[half:]
    expected = seen(attention(*inputs(), LENGTH**-0.5, True, *WINDOW)[0])
    print("keys that each of 8 tokens attends to, with a window of one key before it")
    print("expected", *expected)
    print("got     ", *got)
    return int(got != expected)


if __name__ == "__main__":
    sys.exit(main())
