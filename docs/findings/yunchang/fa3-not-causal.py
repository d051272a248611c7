"""AttnType.FA3 computes every block of a ring with causal=False

yunchang 0.6.4. `flash_attn3_func_forward` and `flash_attn3_func_backward` hand causal=False and
window_size=(-1, -1) to the kernel, whatever they were asked for: tokens see those after them.
With --control the layer has AttnType.FA.

Run: python fa3-not-causal.py [--control] (two processes on the CPU; plain torch stands in for the
kernels of flash-attn, with the window and the causality that they are asked for).
"""

import importlib.machinery
import socket
import sys
from types import ModuleType

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

CONTROL = "--control" in sys.argv
LENGTH, HEADS, DIM, WINDOW = 8, 1, 4, (-1, -1)
UNUSED = ["_flash_attn_backward", "_flash_attn_varlen_forward", "_flash_attn_varlen_backward"]


def attention(q, k, v, scale, causal, left, right):
    """Output, and the log of the sums; the last query stands beside the last key."""
    scores = torch.einsum("bqhd,bkhd->bhqk", q, k) * scale
    back = torch.arange(q.shape[1])[:, None] + k.shape[1] - q.shape[1] - torch.arange(k.shape[1])
    hidden = (back > left) & (left >= 0)
    ahead = 0 if causal else right
    hidden |= (-back > ahead) & (ahead >= 0)
    scores = scores.masked_fill(hidden, -torch.inf)
    weights = scores.softmax(-1).nan_to_num(0)
    return torch.einsum("bhqk,bkhd->bqhd", weights, v), scores.logsumexp(-1)


def stand_ins() -> None:
    """Plain torch in the place of the kernels: FlashAttention-3's module, and that of FA."""

    def forward3(q, k, v, softmax_scale, causal, window_size, **_):
        return attention(q, k, v, softmax_scale, causal, *window_size)

    def forward(q, k, v, softmax_scale, causal, window_size_left, window_size_right, **_):
        asked = softmax_scale, causal, window_size_left, window_size_right
        return *attention(q, k, v, *asked), None, None

    kernels = {"flash_attn": None, "flash_attn.flash_attn_interface": forward}
    for name, kernel in {**kernels, "flash_attn_interface": forward3}.items():
        sys.modules[name] = module = ModuleType(name)
        module.__spec__ = importlib.machinery.ModuleSpec(name, None)
        module.__version__, module.flash_attn_func = "2.8.3", None
        vars(module).update(dict.fromkeys(UNUSED), _flash_attn_forward=kernel)


def inputs():
    torch.manual_seed(0)
    return torch.randn(3, 1, LENGTH, HEADS, DIM, dtype=torch.float64)


def rank(index: int, port: int, found) -> None:
    dist.init_process_group(
        "gloo", init_method=f"tcp://127.0.0.1:{port}", rank=index, world_size=2
    )
    stand_ins()
    from yunchang import EXTRACT_FUNC_DICT, LongContextAttention, set_seq_parallel_pg
    from yunchang.kernels import AttnType

    set_seq_parallel_pg(1, 2, index, 2)
    q, k, v = (EXTRACT_FUNC_DICT["zigzag"](x, index, world_size=2, rd=2, ud=1) for x in inputs())
    kernel = AttnType.FA if CONTROL else AttnType.FA3
    layer = LongContextAttention(ring_impl_type="zigzag", attn_type=kernel)
    out = layer(q, k, v, causal=True, window_size=WINDOW)
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
    expected = attention(*inputs(), DIM**-0.5, True, *WINDOW)[0][0, :, 0, 0]
    print("expected", *(f"{each:8.4f}" for each in expected))
    print("got     ", *(f"{each:8.4f}" for each in got))
    return int(not torch.allclose(expected.float(), got.float(), atol=1e-4))


if __name__ == "__main__":
    sys.exit(main())
