"""zigzag_ring_flash_attn_func takes window_size silently and applies it block by block; it should
raise

ring-flash-attn 0.1.8. The README says that window_size is not supported; the function takes one
and hands it to the kernel with every block, where distances are those in the block and not in the
row. Tokens then see keys far outside the window and miss keys inside it.

Run: python ring-window-by-block.py (two processes on the CPU; plain torch stands in for the
kernel of flash-attn, with the window and the causality that it is asked for).
"""

import importlib.machinery
import importlib.util
import socket
import sys
from types import ModuleType

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

LENGTH, HEADS, DIM, WINDOW = 8, 1, 4, (1, 0)


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
    weights = scores.softmax(-1).nan_to_num(0)
    return torch.einsum("bhqk,bkhd->bqhd", weights, v), scores.logsumexp(-1), None, None


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
    return torch.randn(3, 1, LENGTH, HEADS, DIM, dtype=torch.float64)


def rank(index: int, port: int, found) -> None:
    dist.init_process_group(
        "gloo", init_method=f"tcp://127.0.0.1:{port}", rank=index, world_size=2
    )
    pieces = inputs().chunk(4, 2)
    q, k, v = torch.cat((pieces[index], pieces[3 - index]), 2)
    out = zigzag()(q, k, v, causal=True, window_size=WINDOW, group=dist.group.WORLD)
    found.put((index, out[0, :, 0, 0].tolist()))
    dist.destroy_process_group()


def main() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    found = mp.get_context("spawn").SimpleQueue()
    mp.spawn(rank, (port, found), nprocs=2)
    (_, first), (_, second) = sorted(found.get() for _ in range(2))
    half = LENGTH // 4
    got = torch.tensor(first[:half] + second + first[half:])
    q, k, v = inputs()
    expected = kernel(q, k, v, 0.0, DIM**-0.5, True, *WINDOW, 0.0, None, False)[0][0, :, 0, 0]
    print("expected", *(f"{each:8.4f}" for each in expected))
    print("got     ", *(f"{each:8.4f}" for each in got))
    return int(not torch.allclose(expected.float(), got.float(), atol=1e-4))


if __name__ == "__main__":
    sys.exit(main())
