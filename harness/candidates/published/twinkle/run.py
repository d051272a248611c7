"""A step of a loss beyond supervised ones, taken by the calls that twinkle's users make."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import distributed as dist
from torch.distributed.device_mesh import DeviceMesh

from harness.candidates.published.flash_stand_in import flash
from harness.candidates.published.twinkle import library
from harness.candidates.published.twinkle.batch import Feature, features_of
from harness.candidates.published.twinkle.patches import prepared
from harness.candidates.published.twinkle.recipes import REFERENCE
from harness.candidates.published.twinkle.released import Exact, Released
from harness.candidates.published.wiring.scaled import scaled
from harness.recipes.batch import Batch

# The processor pads with it whatever a tokenizer has.
PAD = 0
# What `forward_backward` is given of a micro-batch beside its features.
Given = Callable[[Batch], dict[str, Any]]


def take(
    model: Any,
    batches: Sequence[Batch],
    mesh: DeviceMesh,
    loss: str,
    metric: str,
    given: Given,
    *,
    packed: bool,
    kind: type[Released] = Released,
    reference: Callable[[Any], dict[str, Any]] | None = None,
    temperature: float = 1.0,
    **options: Any,
) -> dict[str, Any]:
    """Take the step of a loss with these options -> what is logged.

    `reference` turns the answer of a reference, a model of other weights, into what
    `forward_backward` is given of it. The average over ranks is that of DDP.
    """
    world = dist.group.WORLD
    assert world is not None
    model.set_attn_implementation("flash_attention_2" if packed else "sdpa")
    is_left = any(bool((batch["attention_mask"][:, 0] == 0).any()) for batch in batches)
    of_both: dict[str, Any] = {
        "sp": mesh["sp"].size(),
        "pad_id": PAD,
        "padding_free": packed,
        "padding_side": "left" if is_left else "right",
    }
    other_model = scaled(model, REFERENCE) if reference else None
    with prepared(mesh["sp"].get_group()):
        trainer = kind(model, supervised(), world, **of_both)
        trainer.set_loss(loss, **options)
        trainer.add_metric(metric, is_training=True, **options)
        for each in trainer.group.train_status.metrics:
            with_all_digits(each)
        other = other_model and Released(other_model, supervised(), world, **of_both)
        for batch in batches:
            rows: list[Feature] = features_of(batch)
            of_batch = given(batch)
            if other is not None and reference is not None:
                answer = other.forward_only(inputs=rows, temperature=temperature)
                of_batch |= reference(answer)
            trainer.forward_backward(
                inputs=rows,
                temperature=temperature,
                gradient_accumulation_steps=len(batches),
                **of_batch,
            )
        for parameter in model.parameters():
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            dist.all_reduce(parameter.grad)
            parameter.grad /= world.size()
        trainer.clip_grad_norm(float("inf"), gradient_accumulation_steps=len(batches))
        logged: dict[str, Any] = trainer.calculate_metric(is_training=True)
    if packed:
        flash.must_have_run()
    return logged


def supervised() -> Any:
    """The loss that a model has before `set_loss`."""
    return library.losses.CrossEntropyLoss(reduction="sum")


def with_all_digits(metric: Any) -> None:
    """Have a metric print every digit of the sums from which it logs averages."""
    for name, value in vars(metric).items():
        if name.startswith("total_") and "count" not in name and "correct" not in name:
            setattr(metric, name, Exact(value))


def logged_as(logged: dict[str, Any], names: dict[str, str]) -> tuple[float, dict[str, Any]]:
    """Return the loss of a log, and what it has by the names of a recipe."""
    log = {name: float(logged[of]) for name, of in names.items() if of in logged}
    return float(logged["loss"]), log
