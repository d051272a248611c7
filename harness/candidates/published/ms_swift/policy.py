"""A policy that a released trainer of `swift rlhf` trains for one step."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor
from torch import distributed as dist
from torch.distributed.device_mesh import DeviceMesh

from harness.candidates.published.flash_stand_in import flash
from harness.candidates.published.ms_swift.arguments import PAD
from harness.candidates.published.ms_swift.library import SequenceParallel
from harness.candidates.published.ms_swift.patches import prepared
from harness.candidates.published.wiring.scaled import scaled
from harness.recipes.batch import Batch


@contextmanager
def sharing(
    model: Any, mesh: DeviceMesh, *shares: float, packed: bool
) -> Iterator[tuple[Any, ...]]:
    """While this lasts, the model shares sequences, and so do others of scaled weights."""
    model.model_info = SimpleNamespace(is_moe_model=False)
    model.model_meta = SimpleNamespace(is_multimodal=False)
    if packed:
        flash.give_to_transformers()
    model.set_attn_implementation("flash_attention_2" if packed else "sdpa")
    others = tuple(scaled(model, share) for share in shares)
    groups = DeviceMesh.from_group(
        [mesh.get_group("dp"), mesh.get_group("sp")],
        mesh.device_type,
        mesh.mesh,
        mesh_dim_names=("data", "sequence"),
    )
    # NCCL gathers values; on a CPU it would be a step of autograd, and fail.
    gather = torch.no_grad()(SequenceParallel.gather)
    with (
        patch.object(SequenceParallel, "gather", gather),
        prepared((*others, model), groups, PAD, packed=packed),
    ):
        yield others
    if packed:
        flash.must_have_run()


def encoded(batch: Batch) -> list[dict[str, Any]]:
    """Return rows as a template encodes them, in their order."""
    rows = []
    for b in batch["row"].argsort().tolist():
        real_S = batch["attention_mask"][b].bool()
        ids, labels = (batch[name][b][real_S].tolist() for name in ("input_ids", "labels"))
        rows.append({"input_ids": ids, "labels": labels, "length": len(ids)})
    return rows


def step(trainer: Any, model: Any, batches: Sequence[Any]) -> Tensor:
    """Take the step of a trainer on its micro-batches -> the loss that it logs.

    The average over ranks is that of DDP.
    """
    device = trainer.args.device
    trainer.current_gradient_accumulation_steps = len(batches)
    batches, targets = trainer.get_batch_samples(iter(batches), len(batches), device)
    losses = [trainer.training_step(model, batch, targets) for batch in batches]
    loss = torch.stack(losses).sum()
    for shared in [loss, *(parameter.grad for parameter in model.parameters())]:
        dist.all_reduce(shared)
        shared.div_(dist.get_world_size())
    return loss
