"""Steps of ms-swift's trainers, each with one mistake that a release could have.

`make` writes a package that wires them, as a user's own package would.
"""

from pathlib import Path

from harness.candidates.published.library import Library
from properties.planted import in_worker

NAME = "in_swift"

CANDIDATE = """
from contextlib import nullcontext
from functools import partial
from unittest.mock import patch

import torch

from harness.candidates.published.ms_swift import released
from harness.candidates.published.ms_swift.candidate import STEPS as RELEASED
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


def step(key, mistake, case, rank, emit):
    with mistake():
        RELEASED[key](case, rank, emit)


STEPS = {
    "dpo": partial(step, "dpo", nullcontext),
    "dpo-unscaled": partial(step, "dpo", each_rank_counts_itself),
    "dpo-own-shard": partial(step, "dpo", own_shard_instead_of_others),
    "grpo": partial(step, "packed-grpo", nullcontext),
    "grpo-one-place-off": partial(step, "packed-grpo", one_place_off),
    "dapo-divided-twice": partial(step, "packed-dapo", divided_twice),
}
"""
TABLES = """
from harness.candidates.published.ms_swift import limits, recipes

RELEASED = {
    "dpo": "dpo",
    "dpo-unscaled": "dpo",
    "dpo-own-shard": "dpo",
    "grpo": "packed-grpo",
    "grpo-one-place-off": "packed-grpo",
    "dapo-divided-twice": "packed-dapo",
}
LIMITS = {key: limits.LIMITS[of] for key, of in RELEASED.items()}
STATED = {key: limits.STATED[of] for key, of in RELEASED.items()}
RECIPES = {key: recipes.RECIPES[of] for key, of in RELEASED.items()}
"""
PARTS = in_worker.PARTS | {
    "candidate.py": CANDIDATE,
    "limits.py": TABLES,
    "recipes.py": TABLES,
}


def make(folder: Path, library: Library) -> Path:
    """Write the package, and return the folder to import it from."""
    return in_worker.make(folder, library, NAME, PARTS)
