"""Steps of verl's workers, each with one mistake that a release of verl had, or could have.

`make` writes a package that wires them, as a user's own package would.
"""

from collections.abc import Mapping
from pathlib import Path

from harness.candidates.published.library import Library

NAME = "in_worker"

CANDIDATE = """
from contextlib import nullcontext
from functools import partial
from unittest.mock import patch

from harness.candidates.published.verl.candidate import STEPS as RELEASED


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


def step(key, mistake, case, rank, emit):
    with mistake():
        RELEASED[key](case, rank, emit)


STEPS = {
    "critic": partial(step, "critic", nullcontext),
    "critic-by-micro-batch": partial(step, "critic", of_its_micro_batch),
    "actor-one-place-off": partial(step, "actor-on-policy", one_place_off),
    "actor-bonus-doubled": partial(step, "actor", doubled_bonus),
}
"""
TABLES = """
from harness.candidates.published.verl import limits, recipes

RELEASED = {
    "critic": "critic",
    "critic-by-micro-batch": "critic",
    "actor-one-place-off": "actor-on-policy",
    "actor-bonus-doubled": "actor",
}
LIMITS = {key: limits.LIMITS[of] for key, of in RELEASED.items()}
STATED = {key: limits.STATED[of] for key, of in RELEASED.items()}
RECIPES = {key: recipes.RECIPES[of] for key, of in RELEASED.items()}
"""
PARTS = {
    "__init__.py": "",
    "candidate.py": CANDIDATE,
    "limits.py": TABLES,
    "recipes.py": TABLES,
    "known.toml": "",
}


def make(
    folder: Path, library: Library, name: str = NAME, parts: Mapping[str, str] = PARTS
) -> Path:
    """Write the package, and return the folder to import it from."""
    package = folder / "outside" / name
    package.mkdir(parents=True)
    for file, text in parts.items():
        (package / file).write_text(text)
    pins = (library.folder / "requirements.txt").read_text()
    (package / "requirements.txt").write_text(pins)
    facts = folder / "outside" / f"{name}-1.dist-info"
    facts.mkdir()
    (facts / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1\n")
    (facts / "entry_points.txt").write_text(f"[harness.candidates]\n{name} = {name}\n")
    return folder / "outside"
