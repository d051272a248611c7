# Copyright (c) The DeepSpeed Contributors
# SPDX-License-Identifier: Apache-2.0

# DeepSpeed Team
"""
Arctic Long Sequence Training (ALST) TiledMLP where a sequence has fewer tiles than there are shards
"""

from deepspeed.runtime.sequence_parallel.ulysses_sp import TiledMLP
import pytest
import torch

HIDDEN_DIM = 4


class SimpleMLP(torch.nn.Module):

    def __init__(self, dtype=torch.float64):
        super().__init__()
        self.up_proj = torch.nn.Linear(HIDDEN_DIM, HIDDEN_DIM * 2, bias=False, dtype=dtype)
        self.down_proj = torch.nn.Linear(HIDDEN_DIM * 2, HIDDEN_DIM, bias=False, dtype=dtype)
        self.num_calls = 0

    def forward(self, x):
        self.num_calls += 1
        return self.down_proj(self.up_proj(x).relu())


def make_mlp_and_input(seqlen, seed=42):
    torch.manual_seed(seed)
    mlp = SimpleMLP()
    x = torch.randn((1, seqlen, HIDDEN_DIM), dtype=torch.float64, requires_grad=True)
    return mlp, x


# torch.chunk makes ceil(seqlen / ceil(seqlen / shards)) tiles: 4 of 8, 4 of 7, 3 of 5 and 2 of 2 tokens for 4 shards
@pytest.mark.parametrize("seqlen, shards", [(8, 4), (7, 4), (5, 4), (2, 4)],
                         ids=["divisible", "last_tile_shorter", "one_tile_missing", "two_tiles_missing"])
class TestTiledMLPNumberOfTiles:

    def test_grads_match_the_plain_mlp(self, seqlen, shards):
        mlp_a, x_a = make_mlp_and_input(seqlen)
        out_a = mlp_a(x_a)
        out_a.square().sum().backward()

        mlp_b, x_b = make_mlp_and_input(seqlen)
        out_b = TiledMLP.apply(SimpleMLP.forward, mlp_b, x_b, shards, list(mlp_b.parameters()))
        out_b.square().sum().backward()

        torch.testing.assert_close(out_b, out_a)
        torch.testing.assert_close(x_b.grad, x_a.grad)
        torch.testing.assert_close(mlp_b.up_proj.weight.grad, mlp_a.up_proj.weight.grad)
        torch.testing.assert_close(mlp_b.down_proj.weight.grad, mlp_a.down_proj.weight.grad)

    def test_the_last_tile_releases_the_grads_to_zero(self, seqlen, shards):
        mlp, x = make_mlp_and_input(seqlen)
        released = []
        for param in mlp.parameters():
            # ZeRO's own hooks run here and leave a grad out of the reduction unless ds_grad_is_ready is set
            param.register_post_accumulate_grad_hook(lambda param: released.append(param.ds_grad_is_ready))
        TiledMLP.apply(SimpleMLP.forward, mlp, x, shards, list(mlp.parameters())).sum().backward()

        num_params = len(list(mlp.parameters()))
        assert released.count(True) == num_params, "ZeRO never reduces the gradients of this sequence"
        assert all(released[-num_params:]), "ZeRO reduces gradients before the last tile has added to them"

    def test_all_ranks_run_as_many_tiles(self, seqlen, shards):
        # ZeRO-3 gathers the weights in each call, so ranks with sequences of different lengths must make as many
        mlp, x = make_mlp_and_input(seqlen)
        out = TiledMLP.apply(SimpleMLP.forward, mlp, x, shards, list(mlp.parameters()))
        assert mlp.num_calls == shards
        out.sum().backward()
        assert mlp.num_calls == 2 * shards
