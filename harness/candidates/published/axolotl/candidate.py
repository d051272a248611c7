"""Steps of axolotl's trainers over ranks that share a sequence."""

from collections.abc import Callable
from functools import partial
from typing import Any

from harness.candidates.protocol import Emit, Rank
from harness.candidates.published.axolotl import grpo, sft
from harness.candidates.published.axolotl.library import RingAttnFunc
from harness.candidates.published.axolotl.model import Model
from harness.candidates.published.flash_stand_in import flash
from harness.candidates.published.library import Step
from harness.candidates.published.wiring.gradients import emit_gradients, steps
from harness.candidates.published.wiring.rows import Padded, micro_batches
from harness.case import Case

Collate = Callable[[Case, Padded], sft.Batch]
LLAMA3, RING = RingAttnFunc.VARLEN_LLAMA3, RingAttnFunc.BATCH_RING
# In a table, positions also count padding on the left; attention uses only their differences.
OF_TABLES = ("positions", ".attn.q", ".attn.k")


def supervised(
    case: Case,
    rank: Rank,
    emit: Emit,
    *,
    collate: Collate,
    ring: Any,
    counted: bool = False,
    stride: int | None = None,
    hidden: tuple[str, ...] = (),
) -> None:
    """Train with the trainer of causal models."""
    model = Model(case, rank, hidden)
    trainer = sft.trainer(case, rank, counted=counted)
    batches = [collate(case, padded) for padded in micro_batches(case, rank)]
    with model.sharing(rank, ring_attn_func=ring, heads_k_stride=stride, gather_outputs=False):
        for step_emit in steps(case, model.parameters, emit):
            model.emit = step_emit
            loss = sft.step(rank, model, trainer, [dict(batch) for batch in batches])
    flash.must_have_run()
    emit("loss", loss)
    emit_gradients(model.parameters, emit)


def rewarded(case: Case, rank: Rank, emit: Emit, *, loss_type: str) -> None:
    """Train with the trainer of GRPO."""
    # The model computes logits of completions only.
    model = Model(case, rank, (*OF_TABLES, "logits"))
    trainer = grpo.Trainer(case, rank, model, loss_type)
    batches = [grpo.batch_of(case, padded) for padded in micro_batches(case, rank)]
    with model.sharing(rank, ring_attn_func=RING, heads_k_stride=None, gather_outputs=True):
        for step_emit in steps(case, model.parameters, emit):
            model.emit = step_emit
            loss = trainer.step(batches)
    flash.must_have_run()
    emit("loss", loss)
    emit_gradients(model.parameters, emit)


def packed(kind: str) -> Collate:
    return partial(sft.packed, kind=kind)


PACKED = partial(supervised, collate=packed("multiple"), ring=LLAMA3)
PADDED = partial(supervised, collate=sft.table, ring=RING, hidden=OF_TABLES)

STEPS: dict[str, Step] = {
    "packed": PACKED,
    "packed-counted": partial(PACKED, counted=True),
    "packed-stride": partial(PACKED, stride=2),
    "packed-shifted": partial(PACKED, collate=packed("shifted")),
    "packed-unpadded": partial(PACKED, collate=packed("as it is")),
    "flattened": partial(PACKED, collate=packed("as it is"), ring=RING),
    "padded": PADDED,
    "padded-counted": partial(PADDED, counted=True),
    "padded-shifted": partial(PADDED, collate=partial(sft.table, with_shifted=True)),
    "grpo": partial(rewarded, loss_type="bnpo"),
    "grpo-rows": partial(rewarded, loss_type="grpo"),
}
