"""Steps of twinkle's model with other losses, each with one mistake that a release could have."""

from pathlib import Path

from harness.candidates.published.library import Library
from properties.planted.package import make_package

NAME = "in_twinkle"

CODE = """
from unittest.mock import patch

import torch

from harness.candidates.published.twinkle.library import losses, sharing


def each_rank_counts_itself():
    # A gradient is averaged over ranks that share a sequence, and was not multiplied by them.
    backward = sharing.GatherLoss.backward

    def unscaled(ctx, *gradients):
        first, *others = backward(ctx, *gradients)
        return first / sharing.sequence_parallel.world_size, *others

    return patch.object(sharing.GatherLoss, "backward", staticmethod(unscaled))


def own_shard_instead_of_others():
    def repeated(self, shard, dim, position_ids=None):
        return torch.cat([shard] * self.world_size, dim)

    return patch.object(sharing.SequenceParallel, "gather", repeated)


def one_place_off():
    # Numbers of answers begin at the token after the first of them.
    released = losses.GRPOLoss._pad_and_align_to_batch

    def later(self, *given, **named):
        return released(self, *given, **named).roll(1, 1)

    return patch.object(losses.GRPOLoss, "_pad_and_align_to_batch", later)
"""
# By entry, the released one, and what makes the mistake.
MISTAKES = {
    "grpo": ("grpo", "nullcontext"),
    "packed-dpo": ("packed-dpo", "nullcontext"),
    "grpo-unscaled": ("grpo", "each_rank_counts_itself"),
    "ppo-one-place-off": ("packed-ppo", "one_place_off"),
    "dpo-own-shard": ("packed-dpo", "own_shard_instead_of_others"),
}


def make(folder: Path, library: Library) -> Path:
    """Write the package, and return the folder to import it from."""
    return make_package(folder, library, NAME, CODE, MISTAKES)
