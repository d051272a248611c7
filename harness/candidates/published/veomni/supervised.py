"""Steps of veomni's `TextTrainer` on models of transformers, which recipes judge."""

from collections.abc import Sequence
from typing import Any

from torch.distributed.device_mesh import DeviceMesh

from harness.candidates.published.flash_stand_in import flash
from harness.candidates.published.veomni import engine, library
from harness.candidates.published.veomni.rows import Template, rows_of
from harness.recipes.batch import Batch


class Trainer(library.texts.TextTrainer):  # type: ignore[misc]
    """The released trainer, whose own constructor loads data and weights."""

    def __init__(self) -> None:
        """Begin with nothing."""


def supervised(
    model: Any,
    batches: Sequence[Batch],
    mesh: DeviceMesh,
    *,
    is_balanced: bool = False,
    **settings: Any,
) -> Any:
    """Take a step on rows; if it `is_balanced`, with the loss that balances experts."""
    trainer = Trainer()
    with engine.placed(mesh):
        arguments = library.arguments.VeOmniArguments(
            **engine.options(mesh, len(batches), "conversation", **settings)
        )
    with engine.training(trainer, arguments, model, is_balanced=is_balanced) as base:
        base.chat_template = Template()
        trainer._build_data_transform()
        micro_batches = [
            base.collate_fn(
                [base.data_transform({"messages": [row]})[0] for row in rows_of(batch)]
            )
            for batch in batches
        ]
        trainer.train_step(iter([micro_batches]))
    flash.must_have_run()
    return base.step_train_metrics["training/total_loss"], {}
