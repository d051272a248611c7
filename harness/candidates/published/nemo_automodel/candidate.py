"""NeMo Automodel's training step on its own models, and on those of transformers."""

from collections.abc import Callable
from functools import partial

import torch
from nemo_automodel.components.loss.chunked_ce import ChunkedCrossEntropy
from nemo_automodel.components.loss.masked_ce import MaskedCrossEntropy
from torch import nn

from harness.candidates.protocol import Emit, Rank
from harness.candidates.published.flash_stand_in import flash
from harness.candidates.published.library import Step
from harness.candidates.published.nemo_automodel import batches, owned
from harness.candidates.published.nemo_automodel.mesh import Mesh, mesh
from harness.candidates.published.nemo_automodel.model import (
    Watch,
    attach_ring,
    built,
    parameters,
    sharded,
)
from harness.candidates.published.nemo_automodel.recipe import Batch, recipe, trained, validated
from harness.candidates.published.wiring import ring_on_cpu
from harness.candidates.published.wiring.gradients import steps
from harness.candidates.published.wiring.rows import Padded, micro_batches
from harness.case import Case

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
    """Every step of the case; `prepare` gives a model a sharder of its own."""
    axes = mesh(case, rank, hybrid=hybrid)
    model = sharded(built(case, rank, own=own), case, axes)
    attach_ring(model, axes, compiled=compiled)
    # A linear loss asks for the last logits only; a model that cuts embeddings has all ids.
    hidden = () if loss is MaskedCrossEntropy else ("logits",)
    whole = ("ids", "embed") if prepare else ()
    watch = Watch(model, case, hidden=(*hidden, *whole))
    if prepare is not None:
        prepare(model, axes)
    named = parameters(model, case)
    itself = recipe(rank, model, watch.loss(loss()), axes, case.pad_id, defer=defer)

    def data() -> list[Batch]:
        return [collate(case, rows) for rows in micro_batches(case, rank)]

    for say in steps(case, named, emit):
        watch.emit = say
        logged = trained(itself, data())
        if validate:
            watch.emit = lambda *_: None
            logged = validated(itself, data())
    emit("loss", logged)
    for name, parameter in named.items():
        gradient = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
        # Under FSDP each rank has a part.
        emit(
            f"grad.{name}",
            gradient.full_tensor() if hasattr(gradient, "full_tensor") else gradient,
        )


def with_flash(case: Case, rank: Rank, emit: Emit, *, exchange: str) -> None:
    owned.believe_in_a_gpu()
    packing = partial(owned.packed, kernel="flash", exchange=exchange)
    step(case, rank, emit, collate=batches.packed, prepare=packing)
    # The last ranks may have nothing but padding, which is not attended.
    if case.sp > 1 and rank.sp_index == 0:
        flash.must_have_run()


# Three tokens at a time, so that there are several chunks.
chunked = partial(ChunkedCrossEntropy, chunk_len=3, compile=False)
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
}
