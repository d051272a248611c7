"""Derived ring attention: gradients of queries, keys and values are wrong, because the backward
gives each block its own out and lse, not the final ones

twinkle-kit 0.5.1. First, each block's backward gets the gradient of the block's output only;
grad_block_lse, that of its log-sum-exp, is stored (:450) and never read: those of q and k are
wrong. Second, update_out_and_lse takes a view of the first block's log-sum-exp (:101), which a
later block overwrites in part: those of v are wrong, until .clone() is put there.
With --control only the first two tokens have a loss: all keys that they see are on their rank.
Run: python ring-drops-lse-gradient.py [--control] (on the CPU; flash-attn is written out below).
"""

import importlib.util
import runpy
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
    if causal:
        shares = shares.tril()
    dshares = torch.einsum("qhd,khd->hqk", dout, v) - (dout * out).sum(-1).T[..., None]
    dscores = shares * dshares * softmax_scale
    dq.copy_(torch.einsum("hqk,khd->qhd", dscores, k))
    dk.copy_(torch.einsum("hqk,qhd->khd", dscores, q))
    dv.copy_(torch.einsum("hqk,qhd->khd", shares, dout))


def released():
    """The function, without what the packages above its module import beside it."""
    interface = ModuleType("flash_attn.flash_attn_interface")
    sys.modules |= {"flash_attn": ModuleType("flash_attn"), interface.__name__: interface}
    for function in (_flash_attn_varlen_forward, _flash_attn_varlen_backward):
        vars(interface)[function.__name__] = function
    root = importlib.util.find_spec("twinkle").submodule_search_locations[0]
    path = f"{root}/model/transformers/strategy/sequence_parallel/zigzag_ring_attn.py"
    return runpy.run_path(path)["zigzag_ring_flash_attn_varlen_func"]


def gradients(attend, mine):
    """Gradients of a rank's tokens of one row of eight."""
    torch.manual_seed(0)
    row = torch.randn(4, 1, 8, 2, 4, dtype=torch.float64)
    row[3, :, 2 if "--control" in sys.argv else 8 :] = 0
    *states, dout = row[:, :, mine]
    states = [state.requires_grad_() for state in states]
    return torch.autograd.grad(attend(*states), states, dout)


def plain(*states):
    heads_first = [state.transpose(1, 2) for state in states]
    return F.scaled_dot_product_attention(*heads_first, is_causal=True).transpose(1, 2)


def rank(index: int, size: int, store: str, found) -> None:
    dist.init_process_group("gloo", init_method=store, rank=index, world_size=size)
    ends, group = torch.tensor([0, 8], dtype=torch.int32), dist.group.WORLD
    ring = partial(released(), cu_seqlens=ends, max_seqlen=8, causal=True, group=group)
    mine = [[0, 1, 6, 7], [2, 3, 4, 5]][index]  # A zigzag.
    pairs = zip(gradients(ring, mine), gradients(plain, slice(8)), strict=True)
    found.put([(got - expected[:, mine]).abs().max().item() for got, expected in pairs])
    dist.barrier()
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
