"""With context parallelism reward_norm and adv_norm of level batch count each row once for every
rank that shares it, so that std_unbiased and mean_leave1out are wrong

areal 1.0.4. Two ranks share four rows, as with context parallelism; with --control each of them
has two of the rows, as with data parallelism.
Run: torchrun --nproc-per-node 2 norms-count-shared-rows.py
"""

import sys

import torch
from areal.api.cli_args import NormConfig
from areal.utils.data import Normalization
from torch import distributed as dist

dist.init_process_group("nccl")
torch.cuda.set_device(rank := dist.get_rank())
rewards = torch.tensor([1.0, 0.0, 0.0, 2.0], device="cuda")
expected = (rewards - rewards.mean()) / (rewards.std() + 1e-5)
if "--control" in sys.argv:
    rewards, expected = rewards.chunk(2)[rank], expected.chunk(2)[rank]

# As PPOActor._compute_advantages calls it.
got = Normalization(NormConfig())(rewards)
if rank == 0:
    print("expected normed rewards", " ".join(f"{each:7.4f}" for each in expected.tolist()))
    print("got      normed rewards", " ".join(f"{each:7.4f}" for each in got.tolist()))
dist.destroy_process_group()
sys.exit(int(rank == 0 and (got - expected).abs().max() > 0.01))
