"""Steps of SkyRL's workers, each with one mistake that a release could have."""

from pathlib import Path

from harness.candidates.published.library import Library
from properties.planted.package import make_package

NAME = "in_skyrl"

CODE = """
from functools import partial
from unittest.mock import patch

from harness.candidates.published.skyrl import library, worker
from harness.candidates.published.skyrl.trainer import Trainer


def each_rank_counts_itself():
    # A gradient is averaged over ranks that share a sequence, and was not multiplied by them.
    gather = library.wrapper.gather_outputs_and_unpad
    return patch.object(
        library.wrapper, "gather_outputs_and_unpad", partial(gather, grad_scaler=False)
    )


def labels_shifted_after_the_cut():
    cut = library.wrapper.ulysses_pad_and_slice_inputs

    def shifted(ids, positions=None, mask=None, sp_size=1):
        if positions is not None:
            return cut(ids, positions, mask, sp_size)
        own, *others = cut(ids.roll(1, 1), None, None, sp_size)
        return own.roll(-1, 1), *others

    return patch.object(library.wrapper, "ulysses_pad_and_slice_inputs", shifted)


def scaled_by_all_ranks():
    # The loss is multiplied by all ranks, not by replicas.
    make = worker.Worker.__init__

    def made(self, *given):
        make(self, *given)
        self.released.mesh_rank.dp_size = self.ranks.world.size()

    return patch.object(worker.Worker, "__init__", made)


def one_place_off():
    # What workers say of responses begins at a second token.
    names = Trainer._execute_forward_pass.__globals__
    stack = names["loss_fn_outputs_to_tensor"]
    return patch.dict(
        names, loss_fn_outputs_to_tensor=lambda *given, **named: stack(*given, **named).roll(-1, 1)
    )


def micro_batches_added_up():
    return patch.object(library.CriticWorker, "optim_step", lambda self: None)
"""
# By entry, the released one, and what makes the mistake.
MISTAKES = {
    "policy": ("policy", "nullcontext"),
    "policy-unscaled": ("policy", "each_rank_counts_itself"),
    "policy-scaled-twice": ("policy", "scaled_by_all_ranks"),
    "policy-labels": ("policy", "labels_shifted_after_the_cut"),
    "policy-one-place-off": ("policy-own", "one_place_off"),
    "value-added-up": ("value", "micro_batches_added_up"),
}


def make(folder: Path, library: Library) -> Path:
    """Write the package, and return the folder to import it from."""
    return make_package(folder, library, NAME, CODE, MISTAKES)
