"""Steps of AReaL's actor and critic, each with one mistake that a release could have."""

from pathlib import Path

from harness.candidates.published.library import Library
from properties.planted.package import make_package

NAME = "in_areal"

CODE = """
from types import SimpleNamespace
from unittest.mock import patch

from torch import distributed as dist

from harness.candidates.published.areal.library import fsdp_engine


def each_rank_counts_itself():
    # Backward gives a rank only the gradient of its own copy of what is gathered.
    gather = fsdp_engine.dist_F.all_gather

    def gathered(tensor, group):
        pieces, own = list(gather(tensor.detach(), group)), dist.get_rank(group)
        pieces[own] = tensor
        return pieces

    return patch.object(fsdp_engine, "dist_F", SimpleNamespace(all_gather=gathered))


def labels_shifted_after_the_cut():
    prepare = fsdp_engine.ulysses_prepare_inputs

    def prepared(*given):
        inputs = prepare(*given)
        return inputs | {"rolled_input_ids": inputs["input_ids"].roll(-1, -1)}

    return patch.object(fsdp_engine, "ulysses_prepare_inputs", prepared)


def weighed_by_micro_batch():
    # A micro-batch counts as much as any other, whatever it has of targets.
    total = fsdp_engine.compute_total_loss_weight

    def by_micro_batch(batches, weigh, group):
        return total(batches, lambda batch: weigh(batch) / weigh(batch).clamp(min=1), group)

    return patch.object(fsdp_engine, "compute_total_loss_weight", by_micro_batch)
"""
# By entry, the released one, and what makes the mistake.
MISTAKES = {
    "actor": ("actor", "nullcontext"),
    "actor-unscaled": ("actor", "each_rank_counts_itself"),
    "actor-labels": ("actor", "labels_shifted_after_the_cut"),
    "critic-by-micro-batch": ("critic", "weighed_by_micro_batch"),
}


def make(folder: Path, library: Library) -> Path:
    """Write the package, and return the folder to import it from."""
    return make_package(folder, library, NAME, CODE, MISTAKES)
