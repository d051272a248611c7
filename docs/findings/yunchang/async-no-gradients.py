"""AsyncLongContextAttention gives queries, keys and values no gradient, without an error

yunchang 0.6.4. Its all-to-alls write into plain buffers, so autograd never reaches what came in.
Its method `backward` raises, to refuse training, but autograd never calls it. A RuntimeError or
ValueError in training, out of forward or backward, is right.

Run: python async-no-gradients.py (two processes on the CPU; plain torch stands in for the kernel).
"""

import socket
import sys
from unittest.mock import MagicMock, patch

import torch
import torch.distributed as dist
import torch.multiprocessing as mp


def attention(q, k, v, **_):
    """What the ring of one rank computes; in its place, as it needs flash-attn."""
    out = torch.nn.functional.scaled_dot_product_attention(
        *(x.transpose(1, 2) for x in (q, k, v)), is_causal=True
    )
    return out.transpose(1, 2)


def rank(index: int, port: int, found) -> None:
    dist.init_process_group(
        "gloo", init_method=f"tcp://127.0.0.1:{port}", rank=index, world_size=2
    )
    from yunchang import AsyncLongContextAttention, LongContextAttention, set_seq_parallel_pg

    set_seq_parallel_pg(2, 1, index, 2)
    torch.manual_seed(index)
    told = []
    # Streams need a GPU.
    with patch.multiple("torch.cuda", Stream=MagicMock(), stream=MagicMock()):
        for kind in (LongContextAttention, AsyncLongContextAttention):
            q, k, v = torch.randn(3, 1, 4, 2, 8, requires_grad=True).unbind()
            projected = [x.detach().requires_grad_() for x in (q, k, v)]
            layer = kind(ring_impl_type="zigzag")
            layer.ring_attn_fn = attention
            try:
                # The model around it has gradients of its own, so that nothing fails.
                out = layer(*projected, causal=True) + torch.zeros((), requires_grad=True)
                out.sum().backward()
                told.append([x.grad is not None for x in projected])
            except (RuntimeError, ValueError) as error:
                if kind is LongContextAttention:
                    raise
                told.append(f"refused, as it should be: {error}")
    if index == 0:
        found.put(told)
    dist.destroy_process_group()


def main() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    found = mp.get_context("spawn").SimpleQueue()
    mp.spawn(rank, (port, found), nprocs=2)
    expected, got = found.get()
    print(f"expected a gradient of queries, keys, values: {expected} (LongContextAttention)")
    print(f"got      a gradient of queries, keys, values: {got} (AsyncLongContextAttention)")
    return int(got != expected and not isinstance(got, str))


if __name__ == "__main__":
    sys.exit(main())
