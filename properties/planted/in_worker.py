"""Steps of verl's workers, each with one mistake that a release of verl had, or could have."""

from pathlib import Path

from harness.candidates.published.library import Library
from properties.planted.package import make_package

NAME = "in_worker"

CODE = """
from functools import partial
from unittest.mock import patch



def released():
    from harness.candidates.published.verl import released

    return released


def of_its_micro_batch():
    # verl 6957: the value loss is a mean over a micro-batch.
    losses = released().losses
    whole = losses.compute_value_loss
    names = ("dp_size", "batch_num_tokens", "global_batch_size", "loss_scale_factor")

    def local(**given):
        return whole(**{name: value for name, value in given.items() if name not in names})

    return patch.object(losses, "compute_value_loss", local)


def one_place_off():
    # What was computed of a response begins at its own first token, not at the one before it.
    trainer = released()
    shifted = trainer.padding.no_padding_2_padding

    def unshifted(tensor, data):
        values = tensor.values().roll(-1, 0) if tensor.is_nested else tensor.roll(-1, 0)
        return shifted(values, data)

    return patch.object(trainer.padding, "no_padding_2_padding", unshifted)


def doubled_bonus():
    # The entropy and the KL count twice.
    losses = released().losses
    right = losses.agg_loss
    return patch.object(losses, "agg_loss", lambda **given: 2 * right(**given))
"""
# By entry, the released one, and what makes the mistake.
MISTAKES = {
    "critic": ("critic", "nullcontext"),
    "critic-by-micro-batch": ("critic", "of_its_micro_batch"),
    "actor-one-place-off": ("actor-on-policy", "one_place_off"),
    "actor-bonus-doubled": ("actor", "doubled_bonus"),
}


def make(folder: Path, library: Library) -> Path:
    """Write the package, and return the folder to import it from."""
    return make_package(folder, library, NAME, CODE, MISTAKES)
