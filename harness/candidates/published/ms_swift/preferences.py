"""The step of `swift rlhf --rlhf_type dpo`, which a recipe judges."""

from collections.abc import Sequence
from typing import Any

import torch
from torch.distributed.device_mesh import DeviceMesh

from harness.candidates.published.ms_swift import released
from harness.candidates.published.ms_swift.arguments import arguments, template
from harness.candidates.published.ms_swift.policy import encoded, sharing, step
from harness.candidates.published.ms_swift.recipes import BETA, REFERENCE
from harness.recipes.batch import Batch

# At the release's defaults.
OF_DPO = {
    "beta": BETA,
    "disable_dropout": True,
    "label_smoothing": 0.0,
    "ld_alpha": None,
    "loss_type": ["sigmoid"],
    "loss_weights": None,
    "precompute_ref_log_probs": False,
    "rpo_alpha": None,
}


def dpo(model: Any, batches: Sequence[Batch], mesh: DeviceMesh, *, packed: bool) -> Any:
    """Take the step of `DPOTrainer` -> the loss and the metrics that it logs."""
    with sharing(model, mesh, REFERENCE, packed=packed) as (reference,):
        trainer = released.DPOTrainer(
            model,
            reference,
            args=arguments(len(batches), OF_DPO),
            template=template("rlhf", mesh["sp"].size(), packed=packed),
            train_dataset=[],
        )
        collated = [trainer.data_collator(pairs(batch)) for batch in batches]
        loss = step(trainer, model, collated)
    stored = trainer._stored_metrics["train"]
    return loss, {
        f"{what}_{side}": torch.tensor(stored[f"{what}/{side}"], dtype=loss.dtype).mean()
        for what in ("rewards", "logps")
        for side in ("chosen", "rejected")
    }


def pairs(batch: Batch) -> list[dict[str, Any]]:
    """Return pairs of rows as a data set has them: row 0, 2, ... is preferred to the next one."""
    rows = encoded(batch)
    return [
        {f"chosen_{name}": value for name, value in chosen.items()}
        | {f"rejected_{name}": value for name, value in rejected.items()}
        for chosen, rejected in zip(rows[0::2], rows[1::2], strict=True)
    ]
