"""zigzag_ring_flash_attn_func takes window_size silently and applies it block by block; it should
raise

ring-flash-attn 0.1.8. window_size goes to the kernel with every block, where distances are those
in the block and not in the row. Values are unit vectors, so that an output holds the attention
weights. A ValueError or NotImplementedError is right.

Run: python ring-window-by-block.py (two processes; plain torch stands in for flash-attn's kernel)
"""

import importlib.machinery
import importlib.util
import socket
import sys
from types import ModuleType

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

LENGTH, HEADS, WINDOW = 8, 1, (1, 0)


def kernel(
    q, k, v, dropout_p, softmax_scale, causal, window_size_left, window_size_right,
    softcap, alibi_slopes, return_softmax,
):  # fmt: skip
    """`_flash_attn_forward`: output, and the log of the sums."""
    scores = torch.einsum("bqhd,bkhd->bhqk", q, k) * softmax_scale
    # The last query stands beside the last key.
    back = torch.arange(q.shape[1])[:, None] + k.shape[1] - q.shape[1] - torch.arange(k.shape[1])
    hidden = (back > window_size_left) & (window_size_left >= 0)
    ahead = 0 if causal else window_size_right
    hidden |= (-back > ahead) & (ahead >= 0)
    scores = scores.masked_fill(hidden, -torch.inf)
    out = torch.einsum("bhqk,bkhd->bqhd", scores.softmax(-1).nan_to_num(0), v)
    lse = scores.logsumexp(-1)  # Positive infinity where a query sees no key.
    return out, lse.masked_fill(lse == -torch.inf, torch.inf), None, None


def zigzag():
    """The released function over that kernel, without what its package imports beside it."""
    flash, interface = ModuleType("flash_attn"), ModuleType("flash_attn.flash_attn_interface")
    flash.__spec__ = importlib.machinery.ModuleSpec("flash_attn", None)
    interface._flash_attn_forward, interface._flash_attn_backward = kernel, None
    sys.modules |= {"flash_attn": flash, "flash_attn.flash_attn_interface": interface}
    package = ModuleType("ring_flash_attn")
    package.__path__ = importlib.util.find_spec("ring_flash_attn").submodule_search_locations
    sys.modules["ring_flash_attn"] = package
    from ring_flash_attn.zigzag_ring_flash_attn import zigzag_ring_flash_attn_func

    return zigzag_ring_flash_attn_func


def inputs():
    torch.manual_seed(0)
    q, k = torch.randn(2, 1, LENGTH, HEADS, LENGTH, dtype=torch.float64)
    return torch.stack((q, k, torch.eye(LENGTH, dtype=torch.float64)[None, :, None]))


def seen(out):
    """The keys that each token attends to."""
    return [(weights > 1e-6).nonzero().flatten().tolist() for weights in out[0, :, 0]]


def rank(index: int, port: int, found) -> None:
    dist.init_process_group(
        "gloo", init_method=f"tcp://127.0.0.1:{port}", rank=index, world_size=2
    )
    pieces = inputs().chunk(4, 2)
    q, k, v = torch.cat((pieces[index], pieces[3 - index]), 2)
    try:
        out = zigzag()(q, k, v, causal=True, window_size=WINDOW, group=dist.group.WORLD)
        found.put((index, seen(out)))
    except (ValueError, NotImplementedError) as error:
        found.put((index, str(error)))
    dist.destroy_process_group()


def main() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    found = mp.get_context("spawn").SimpleQueue()
    mp.spawn(rank, (port, found), nprocs=2)
    (_, first), (_, second) = sorted(found.get() for _ in range(2))
    if isinstance(first, str):
        print(f"refused, as it should be: {first}")
        return 0
    half = LENGTH // 4
    got = first[:half] + second + first[half:]
    expected = seen(kernel(*inputs(), 0.0, LENGTH**-0.5, True, *WINDOW, 0.0, None, False)[0])
    print("keys that each of 8 tokens attends to, with a window of one key before it")
    print("expected", *expected)
    print("got     ", *got)
    return int(got != expected)


if __name__ == "__main__":
    sys.exit(main())
