"""Steps of veomni's `TextDPOTrainer`, which a recipe judges."""

from collections.abc import Sequence
from typing import Any
from unittest.mock import patch

from torch.distributed.device_mesh import DeviceMesh

from harness.candidates.published.flash_stand_in import flash
from harness.candidates.published.veomni import engine, library
from harness.candidates.published.veomni.recipes import REFERENCE
from harness.candidates.published.veomni.rows import Template, pairs_of
from harness.candidates.published.wiring.scaled import scaled
from harness.recipes.batch import Batch

# By the names of a recipe, what is logged.
LOGGED = {"chosen": "chosen_rewards", "rejected": "rejected_rewards", "margin": "reward_margin"}


class Trainer(library.pairs.TextDPOTrainer):  # type: ignore[misc]
    """The released trainer, whose own constructor loads data and weights."""

    def __init__(self) -> None:
        """Begin with nothing."""

    @property
    def model(self) -> Any:
        """The model for which the released constructor looks here, and raises (VeOmni#1129)."""
        return self.base.model


def dpo(
    model: Any,
    batches: Sequence[Batch],
    mesh: DeviceMesh,
    *,
    gradient_checkpointing: bool,
    pad_to_length: bool,
    **settings: Any,
) -> Any:
    """Take a step on pairs, with a reference of other weights."""
    trainer = Trainer()
    with engine.placed(mesh):
        arguments = library.pairs.VeOmniDPOArguments(
            **engine.options(
                *(mesh, len(batches), "dpo"),
                # A reference has nothing to train, which DDP refuses.
                fsdp_mode="fsdp2",
                cross_entropy_loss_implementation="eager",
                gradient_checkpointing=gradient_checkpointing,
                pad_to_length=pad_to_length,
            ),
            dpo_config=library.pairs.DPOConfig(**settings),
        )
    other = scaled(model, REFERENCE)
    with engine.training(trainer, arguments, model) as base:
        base.chat_template = Template()
        trainer._build_data_transform()
        trainer._build_postforward()
        engine.as_released(other, arguments)
        with patch.object(library.pairs, "build_foundation_model", lambda **_: other):
            trainer._build_reference_model()
        micro_batches = [
            base.collate_fn([base.data_transform(pair)[0] for pair in pairs_of(batch)])
            for batch in batches
        ]
        trainer.train_step(iter([micro_batches]))
    flash.must_have_run()
    log = base.step_train_metrics
    named = {name: log[f"training/{key}"] for name, key in LOGGED.items()}
    return log["training/total_loss"], {} if settings["reference_free"] else named
