# Copyright (c) ModelScope Contributors. All rights reserved.
"""Derived ring attention against full attention, on the CPU: two gloo ranks share one row.

flash-attn needs a GPU, so its two functions are written out below. The ring around them is twinkle's own.
Its module is loaded by its path: neither flash-attn nor what the packages above it import is needed.
"""
import importlib.util
import os
import socket
import sys
import unittest
from datetime import timedelta
from types import ModuleType
from unittest.mock import patch

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import torch.nn.functional as F

RING = 'model/transformers/strategy/sequence_parallel/zigzag_ring_attn.py'
SEQ_LEN, NUM_HEADS, HEAD_DIM = 16, 2, 4
# The ring adds up its gradients in float32.
RTOL, ATOL = 1e-5, 1e-5


def _find_free_port() -> int:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as sock:
        sock.bind(('127.0.0.1', 0))
        return sock.getsockname()[1]


def _scores(q, k, softmax_scale, causal):
    scores = torch.einsum('qhd,khd->hqk', q, k) * softmax_scale
    if causal:
        scores = scores.masked_fill(torch.ones_like(scores[0]).triu(1).bool(), float('-inf'))
    return scores


def _flash_attn_varlen_forward(q,
                               k,
                               v,
                               cu_seqlens_q,
                               cu_seqlens_k,
                               max_seqlen_q,
                               max_seqlen_k,
                               dropout_p,
                               softmax_scale,
                               causal,
                               window_size=(-1, -1),
                               alibi_slopes=None,
                               return_softmax=False):
    scores = _scores(q, k, softmax_scale, causal)
    lse = scores.logsumexp(-1)
    out = torch.einsum('hqk,khd->qhd', (scores - lse[..., None]).exp(), v)
    return out, lse, None, None


def _flash_attn_varlen_backward(dout,
                                q,
                                k,
                                v,
                                out,
                                softmax_lse,
                                dq,
                                dk,
                                dv,
                                cu_seqlens_q,
                                cu_seqlens_k,
                                max_seqlen_q,
                                max_seqlen_k,
                                dropout_p,
                                softmax_scale,
                                causal,
                                window_size=(-1, -1),
                                alibi_slopes=None,
                                deterministic=False):
    probs = (_scores(q, k, softmax_scale, causal) - softmax_lse[..., None]).exp()
    dprobs = torch.einsum('qhd,khd->hqk', dout, v)
    delta = (dout * out).sum(-1).transpose(0, 1)[..., None]
    dscores = probs * (dprobs - delta) * softmax_scale
    dq.copy_(torch.einsum('hqk,khd->qhd', dscores, k))
    dk.copy_(torch.einsum('hqk,qhd->khd', dscores, q))
    dv.copy_(torch.einsum('hqk,qhd->khd', probs, dout))


def _load_ring() -> ModuleType:
    root = importlib.util.find_spec('twinkle').submodule_search_locations[0]
    spec = importlib.util.spec_from_file_location('zigzag_ring_attn', os.path.join(root, RING))
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _flash_attn_stand_in() -> dict:
    interface = ModuleType('flash_attn.flash_attn_interface')
    interface._flash_attn_varlen_forward = _flash_attn_varlen_forward
    interface._flash_attn_varlen_backward = _flash_attn_varlen_backward
    return {'flash_attn': ModuleType('flash_attn'), interface.__name__: interface}


def _full_attention(q, k, v):
    q, k, v = (states.transpose(1, 2) for states in (q, k, v))
    return F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2)


def _own_positions(rank: int, world_size: int) -> torch.Tensor:
    chunks = torch.arange(SEQ_LEN).chunk(2 * world_size)
    return torch.cat([chunks[rank], chunks[-1 - rank]])


def _assert_close(name: str, rank: int, current: torch.Tensor, baseline: torch.Tensor):
    if not torch.allclose(current, baseline, rtol=RTOL, atol=ATOL):
        max_diff = (current - baseline).abs().max().item()
        raise AssertionError(f'{name} mismatch on rank {rank}: max_diff={max_diff:.4f}')


def _run_ring_worker(rank: int, world_size: int, port: int, num_trained: int):
    dist.init_process_group(
        backend='gloo',
        rank=rank,
        world_size=world_size,
        init_method=f'tcp://127.0.0.1:{port}',
        timeout=timedelta(minutes=5),
    )
    try:
        torch.manual_seed(1234)
        *states, dout = torch.randn(4, 1, SEQ_LEN, NUM_HEADS, HEAD_DIM, dtype=torch.float64)
        dout[:, num_trained:] = 0
        own = _own_positions(rank, world_size)

        full = [state.clone().requires_grad_() for state in states]
        full_out = _full_attention(*full)
        full_grads = torch.autograd.grad(full_out, full, dout)

        local = [state[:, own].clone().requires_grad_() for state in states]
        with patch.dict(sys.modules, _flash_attn_stand_in()):
            ring_out = _load_ring().zigzag_ring_flash_attn_varlen_func(
                *local,
                cu_seqlens=torch.tensor([0, SEQ_LEN], dtype=torch.int32),
                max_seqlen=SEQ_LEN,
                causal=True,
                group=dist.group.WORLD,
            )
            ring_grads = torch.autograd.grad(ring_out, local, dout[:, own])

        _assert_close('out', rank, ring_out, full_out[:, own])
        for name, current, baseline in zip(('dq', 'dk', 'dv'), ring_grads, full_grads):
            _assert_close(name, rank, current, baseline[:, own])
        dist.barrier()
    finally:
        dist.destroy_process_group()


class TestDerivedRingOnCpu(unittest.TestCase):

    def _run(self, num_trained: int, world_size: int = 2):
        args = (world_size, _find_free_port(), num_trained)
        mp.spawn(_run_ring_worker, args=args, nprocs=world_size, join=True)

    def test_output_and_grads_where_one_block_holds_all_keys(self):
        # Only the first chunk of the row has a loss: no other block has a part in its softmax.
        self._run(num_trained=SEQ_LEN // 4)

    def test_output_and_grads_of_the_whole_row(self):
        self._run(num_trained=SEQ_LEN)


if __name__ == '__main__':
    unittest.main()
