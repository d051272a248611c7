"""Steps of ms-swift's trainers, each with one mistake that a release could have."""

from pathlib import Path

from harness.candidates.published.library import Library
from properties.planted.package import make_package

NAME = "in_swift"

CODE = """
from functools import partial
from unittest.mock import patch

import torch

from harness.candidates.published.ms_swift import released
from harness.candidates.published.ms_swift.library import SequenceParallel


def each_rank_counts_itself():
    # A gradient is averaged over ranks that share a sequence, and was not multiplied by them.
    from swift.sequence_parallel.utils import GatherLoss

    backward = GatherLoss.backward

    def unscaled(ctx, *gradients):
        first, *others = backward(ctx, *gradients)
        return first / torch.distributed.get_world_size(), *others

    return patch.object(GatherLoss, "backward", staticmethod(unscaled))


def own_shard_instead_of_others():
    def repeated(self, shard, dim, position_ids=None):
        return torch.cat([shard] * self.world_size, dim)

    return patch.object(SequenceParallel, "gather", repeated)


def one_place_off():
    # What the policy, the old one and the reference say of targets begins at a later one.
    released_logps = released.GRPOTrainer._get_logps_via_sp

    def later(*given, **named):
        found = released_logps(*given, **named)
        return tuple(each if each is None else each.roll(1, 1) for each in found)

    return patch.object(released.GRPOTrainer, "_get_logps_via_sp", later)


def divided_twice():
    # The loss is a mean of all targets, and divided by the number of micro-batches as well.
    return patch.object(
        released.GRPOTrainer, "_undo_gradient_accumulation_scaling", lambda self, loss: loss
    )
"""
# By entry, the released one, and what makes the mistake.
MISTAKES = {
    "dpo": ("dpo", "nullcontext"),
    "dpo-unscaled": ("dpo", "each_rank_counts_itself"),
    "dpo-own-shard": ("dpo", "own_shard_instead_of_others"),
    "grpo": ("packed-grpo", "nullcontext"),
    "grpo-one-place-off": ("packed-grpo", "one_place_off"),
    "dapo-divided-twice": ("packed-grpo", "divided_twice"),
}


def make(folder: Path, library: Library) -> Path:
    """Write the package, and return the folder to import it from."""
    return make_package(folder, library, NAME, CODE, MISTAKES)
