"""Steps of NeMo Automodel on its own models, and on those of transformers."""

from collections.abc import Callable
from functools import partial
from typing import Any

from nemo_automodel.components.loss.masked_ce import MaskedCrossEntropy
from torch import nn

from harness.candidates.protocol import Emit, Rank
from harness.candidates.published.flash_stand_in import flash
from harness.candidates.published.library import Step
from harness.candidates.published.nemo_automodel import batches, owned
from harness.candidates.published.nemo_automodel.distillation import LOSSES, distilled
from harness.candidates.published.nemo_automodel.experts import balanced
from harness.candidates.published.nemo_automodel.mesh import Mesh, mesh
from harness.candidates.published.nemo_automodel.model import (
    EmittingModel,
    attach_ring,
    built,
    parameters,
    sharded,
)
from harness.candidates.published.nemo_automodel.recipe import (
    recipe,
    trained_loss,
    validated_loss,
)
from harness.candidates.published.nemo_automodel.recipes import RECIPES
from harness.candidates.published.nemo_automodel.released import (
    DISTILLING,
    DISTILLING_IMAGES,
    Batch,
)
from harness.candidates.published.nemo_automodel.settings import ENGINE, OF_DISTILLING
from harness.candidates.published.wiring import ring_on_cpu
from harness.candidates.published.wiring.gradients import emit_gradients, silent, steps
from harness.candidates.published.wiring.rows import Padded, micro_batches
from harness.case import Case
from harness.case.settings import Settings
from harness.recipes import step as recipe_step

ring_on_cpu.install()


def step(
    case: Case,
    rank: Rank,
    emit: Emit,
    *,
    loss: Callable[[], nn.Module] = MaskedCrossEntropy,
    collate: Callable[[Case, Padded], Batch] = batches.padded,
    prepare: Callable[[nn.Module, Mesh], None] | None = None,
    own: bool = True,
    compiled: bool = False,
    hybrid: bool = False,
    defer: bool = True,
    validate: bool = False,
) -> None:
    """Run every step of the case; `prepare` gives the model its own way to cut a batch."""
    axes = mesh(case, rank, hybrid=hybrid)
    model = sharded(built(case, rank, own=own), axes, checkpoint=case.checkpoint)
    attach_ring(model, axes, compiled=compiled)
    # A linear loss needs only the last logits; a model that cuts embeddings has all ids.
    hidden = () if loss is MaskedCrossEntropy else ("logits",)
    of_all_ranks = ("ids", "embed") if prepare else ()
    emitting = EmittingModel(model, case, hidden=(*hidden, *of_all_ranks))
    if prepare is not None:
        prepare(model, axes)
    named_parameters = parameters(model, case)
    released = recipe(rank.device, model, emitting.loss(loss()), axes, case.pad_id, defer=defer)

    def batches_of_step() -> list[Batch]:
        return [collate(case, rows) for rows in micro_batches(case, rank)]

    for step_emit in steps(case, named_parameters, emit):
        emitting.emit = step_emit
        logged = trained_loss(released, batches_of_step())
        if validate:
            emitting.emit = silent
            logged = validated_loss(released, batches_of_step())
    emit("loss", logged)
    emit_gradients(named_parameters, emit)


def with_flash(case: Case, rank: Rank, emit: Emit, *, exchange: str) -> None:
    """Run packed rows with the kernel `flash`."""
    owned.pretend_to_have_a_gpu()
    packing = partial(owned.packed, kernel="flash", exchange=exchange)
    step(case, rank, emit, collate=batches.packed, prepare=packing)
    # The last ranks may have only padding, which attends to nothing.
    if case.sp > 1 and rank.sp_index == 0:
        flash.must_have_run()


def taking(key: str, of: Callable[..., Any], settings: Settings) -> Step:
    """Return the step of an entry with a recipe, which gets its rows as micro-batches."""
    return recipe_step(RECIPES[key], micro_batches=True, settings=settings)(of).run


chunked = LOSSES["chunked"]
dense = partial(owned.packed, kernel="dense", exchange="allgather")

STEPS: dict[str, Step] = {
    "masked": step,
    "masked-hf": partial(step, own=False),
    "chunked": partial(step, loss=chunked),
    "chunked-hsdp": partial(step, loss=chunked, hybrid=True, defer=False),
    "compiled": partial(step, compiled=True),
    "embedded": partial(step, prepare=owned.ring),
    "validation": partial(step, validate=True),
    "packed": partial(step, collate=batches.packed, prepare=dense),
    "packed-flash": partial(with_flash, exchange="allgather"),
    "packed-halo": partial(with_flash, exchange="halo"),
    "packed-a2a": partial(with_flash, exchange="a2a"),
    "kd": taking("kd", partial(distilled, released=DISTILLING), OF_DISTILLING),
    "kd-vlm": taking("kd-vlm", partial(distilled, released=DISTILLING_IMAGES), OF_DISTILLING),
    "balanced": taking("balanced", balanced, ENGINE),
}
