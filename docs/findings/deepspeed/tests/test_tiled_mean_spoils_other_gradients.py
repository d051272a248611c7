# Copyright (c) The DeepSpeed Contributors
# SPDX-License-Identifier: Apache-2.0

# DeepSpeed Team
"""
Arctic Long Sequence Training (ALST) sequence_tiled_compute with output_reduction="mean" beside another loss
"""

from deepspeed.runtime.sequence_parallel.ulysses_sp import sequence_tiled_compute
import pytest
import torch

SEQLEN, HIDDEN_DIM, VOCAB_SIZE = 6, 8, 16


def loss_fn(x, y, lm_head):
    return torch.nn.functional.cross_entropy(lm_head(x).flatten(0, 1), y.flatten())


def make_inputs(dtype=torch.float64, seed=42):
    torch.manual_seed(seed)
    lm_head = torch.nn.Linear(HIDDEN_DIM, VOCAB_SIZE, bias=False, dtype=dtype)
    x = torch.randn((1, SEQLEN, HIDDEN_DIM), dtype=dtype, requires_grad=True)
    y = torch.randint(VOCAB_SIZE, (1, SEQLEN))
    # stands in for a router, or for any other weight that only the auxiliary loss trains
    router = torch.ones((), dtype=dtype, requires_grad=True)
    return lm_head, x, y, router


def tiled_loss(lm_head, x, y, shards):
    return sequence_tiled_compute(
        loss_fn,
        SEQLEN,
        shards,
        dict(x=x, y=y),
        dict(lm_head=lm_head),
        "x",
        compute_params=[lm_head.weight],
        output_unshard_dimension=0,  # loss is a scalar
        output_reduction="mean",
    )


@pytest.mark.parametrize("shards", [2, 3])
class TestTiledMeanBesideAnotherLoss:

    @pytest.mark.parametrize("aux_first", [True, False], ids=["aux_before_tiled", "aux_after_tiled"])
    def test_grads_match_those_of_the_plain_loss(self, shards, aux_first):
        lm_head_a, x_a, y, router_a = make_inputs()
        loss_a = loss_fn(x_a, y, lm_head_a) + 2 * router_a
        loss_a.backward()

        lm_head_b, x_b, y, router_b = make_inputs()
        # autograd runs the backward of what was computed last first
        if aux_first:
            aux_loss = 2 * router_b
            loss = tiled_loss(lm_head_b, x_b, y, shards)
        else:
            loss = tiled_loss(lm_head_b, x_b, y, shards)
            aux_loss = 2 * router_b
        loss_b = loss + aux_loss
        loss_b.backward()

        torch.testing.assert_close(loss_b, loss_a)
        torch.testing.assert_close(lm_head_b.weight.grad, lm_head_a.weight.grad)
        torch.testing.assert_close(x_b.grad, x_a.grad)
        torch.testing.assert_close(router_b.grad, router_a.grad, msg=lambda m: f"grad of the auxiliary loss: {m}")

    def test_backward_leaves_the_incoming_grad_alone(self, shards):
        lm_head, x, y, _ = make_inputs()
        grad = torch.ones((), dtype=x.dtype)
        tiled_loss(lm_head, x, y, shards).backward(grad)
        assert grad.item() == 1.0, "backward changed the gradient that its caller passed"
