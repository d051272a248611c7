"""Where sequence_parallel_size does not divide the kv heads, gradients are wrong: the ring's
backward gives each block its own out and lse, not the final ones

ms-swift 4.6.0. grad_block_lse, through which the weights of the merge depend on queries and keys,
is never used; and the first block's log-sum-exp is a view that later blocks write into. With
--control only the first two tokens have a gradient; one block holds all that they attend to.

Run: python ring-drops-lse-gradient.py (two processes on the CPU; flash-attn is written out below).
"""

import importlib.util
import sys
import tempfile
from functools import partial
from types import ModuleType

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.nn import functional as F


def _flash_attn_varlen_forward(
    q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, dropout_p, softmax_scale,
    causal, window_size=(-1, -1), alibi_slopes=None, return_softmax=False,
):  # fmt: skip
    """What flash-attn returns for one row."""
    scores = torch.einsum("qhd,khd->hqk", q, k) * softmax_scale
    if causal:
        scores = scores.masked_fill(torch.ones_like(scores[0]).triu(1).bool(), float("-inf"))
    lse = scores.logsumexp(-1)
    return torch.einsum("hqk,khd->qhd", (scores - lse[..., None]).exp(), v), lse, None, None


def _flash_attn_varlen_backward(
    dout, q, k, v, out, softmax_lse, dq, dk, dv, cu_seqlens_q, cu_seqlens_k, max_seqlen_q,
    max_seqlen_k, dropout_p, softmax_scale, causal, window_size=(-1, -1), alibi_slopes=None,
    deterministic=False,
):  # fmt: skip
    scores = torch.einsum("qhd,khd->hqk", q, k) * softmax_scale
    shares = (scores - softmax_lse[..., None]).exp()
    shares = shares.tril() if causal else shares
    dshares = torch.einsum("qhd,khd->hqk", dout, v) - (dout * out).sum(-1).T[..., None]
    dscores = shares * dshares * softmax_scale
    dq.copy_(torch.einsum("hqk,khd->qhd", dscores, k))
    dk.copy_(torch.einsum("hqk,qhd->khd", dscores, q))
    dv.copy_(torch.einsum("hqk,qhd->khd", shares, dout))


def released():
    """The module, without what the packages above it import beside it."""
    root = importlib.util.find_spec("swift").submodule_search_locations[0]
    places = {"swift": [root], "swift.sequence_parallel": [f"{root}/sequence_parallel"]}
    for name in (*places, "flash_attn", "flash_attn.flash_attn_interface"):
        sys.modules[name] = package = ModuleType(name)
        package.__path__ = places.get(name, [])
    for function in (_flash_attn_varlen_forward, _flash_attn_varlen_backward):
        vars(sys.modules["flash_attn.flash_attn_interface"])[function.__name__] = function
    from swift.sequence_parallel import zigzag_ring_attn

    return zigzag_ring_attn.zigzag_ring_flash_attn_varlen_func


def gradients(attend, mine):
    """Gradients of a rank's tokens of one row of eight."""
    torch.manual_seed(0)
    whole = torch.randn(4, 1, 8, 2, 4, dtype=torch.float64)
    whole[-1, :, 2 if "--control" in sys.argv else 8 :] = 0
    *states, dout = whole[:, :, mine]
    states = [state.requires_grad_() for state in states]
    return torch.autograd.grad(attend(*states), states, dout)


def plain(*states):
    heads_first = [state.transpose(1, 2) for state in states]
    return F.scaled_dot_product_attention(*heads_first, is_causal=True).transpose(1, 2)


def rank(index: int, size: int, store: str, found) -> None:
    dist.init_process_group("gloo", init_method=store, rank=index, world_size=size)
    ends, group = torch.tensor([0, 8], dtype=torch.int32), dist.group.WORLD
    ring = partial(released(), cu_seqlens=ends, max_seqlen=8, causal=True, group=group)
    mine = [[0, 1, 6, 7], [2, 3, 4, 5]][index]  # A zigzag: the outer pieces, or the inner.
    pairs = zip(gradients(ring, mine), gradients(plain, slice(8)), strict=True)
    found.put([(got - expected[:, mine]).abs().max().item() for got, expected in pairs])
    dist.destroy_process_group()


def main() -> int:
    found = mp.get_context("spawn").SimpleQueue()
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(rank, (2, f"file://{folder}/store", found), nprocs=2)
    errors = [max(pair) for pair in zip(found.get(), found.get(), strict=True)]
    print("expected gradients of q, k, v within 1e-5 of those of plain attention")
    print("got      gradients of q, k, v off by " + ", ".join(f"{each:.4f}" for each in errors))
    return int(max(errors) > 1e-5)


if __name__ == "__main__":
    sys.exit(main())
