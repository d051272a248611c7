"""verl's attention across ranks with a loss of ours, and the step of its current engine."""

from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from harness import huggingface
from harness.candidates.protocol import Emit, Rank
from harness.candidates.published.flash_stand_in import flash
from harness.candidates.published.library import Step
from harness.candidates.published.verl.library import (
    gather_outputs_and_unpad,
    own_tokens,
    patched,
    sharing,
    ulysses,
)
from harness.candidates.published.verl.recipes import RECIPES
from harness.candidates.published.verl.settings import ENGINE
from harness.candidates.published.wiring.emitting import emit_inputs, emit_losses
from harness.candidates.published.wiring.gradients import emit_gradients, reduce, steps, total
from harness.candidates.published.wiring.rows import Padded, micro_batches, target_weights
from harness.case import Case
from harness.recipes import step as recipe_step
from harness.reference.decoder import at_least_fp32


def attention(case: Case, rank: Rank, emit: Emit, *, implementation: str) -> None:
    """Train a patched model between the library's slicing and gathering; the loss is ours."""
    model = huggingface.build(case, rank.device)
    flash.give_to_transformers()
    model.set_attn_implementation(implementation)
    parameters = huggingface.parameters(model, case)
    with patched(model, case.sp), sharing(rank.sp):
        for step_emit in steps(case, parameters, emit):
            losses = []
            for padded in micro_batches(case, rank):
                loss = forward(model, case, padded, step_emit)
                loss.backward()
                losses.append(loss)
            reduce(parameters, rank.world, mean=True)
    if implementation == "flash_attention_2":
        flash.must_have_run()
    emit("loss", total(torch.stack(losses).sum(), rank.world) / case.ranks)
    emit_gradients(parameters, emit)


def forward(model: Any, case: Case, padded: Padded, emit: Emit) -> Tensor:
    """Return the loss of one micro-batch, the same on all ranks that share it."""
    packed = padded.packed
    inputs, labels, tokens, padding = sliced(
        case, packed.ids_T, packed.positions_T, packed.tokens_T
    )
    emit_inputs(emit, inputs, tokens)
    with huggingface.watched(model, case, emit, tokens):
        logits_LV = model(**inputs, attention_mask=None, use_cache=False).logits[0]
    nll = F.cross_entropy(at_least_fp32(logits_LV), labels[0], reduction="none")
    emit_losses(emit, nll, labels[0], tokens)
    if case.sp > 1:
        nll = gather_outputs_and_unpad(nll, gather_dim=0, unpad_dim=0, padding_size=padding)
    weights_T = target_weights(case, padded.targets_BS)[padded.attended_BS.bool()]
    # Gradients are averaged over replicas.
    return (nll * weights_T.to(nll).roll(-1)).sum() * case.dp


def sliced(
    case: Case, ids_T: Tensor, positions_T: Tensor, tokens_T: Tensor
) -> tuple[dict[str, Tensor], Tensor, Tensor, int]:
    """Return this rank's inputs, labels and token numbers, and how long the padding is."""
    ids, positions, labels, padding = ids_T[None], positions_T[None], ids_T.roll(-1)[None], 0
    if case.sp > 1:
        cut = partial(ulysses.ulysses_pad_and_slice_inputs, sp_size=case.sp)
        ids, positions, padding = cut(ids, positions)
        labels, *_ = cut(labels, None)
    inputs = {"input_ids": ids, "position_ids": positions}
    return inputs, labels, own_tokens(tokens_T, case.sp), padding


def engine(case: Case, rank: Rank, emit: Emit, *, first_tokens: bool = False) -> None:
    """Train with the released step and loss of the current engine."""
    # Older releases have no such engine, so only these entries import it.
    from harness.candidates.published.verl.engine import Engine, batch

    model = huggingface.build(case, rank.device)
    flash.give_to_transformers()
    model.set_attn_implementation("flash_attention_2")
    parameters = huggingface.parameters(model, case)
    released = Engine(case, rank, model)
    with patched(model, case.sp), sharing(rank.sp):
        for step_emit in steps(case, parameters, emit):
            loss = released.step(batch(case, rank, first_tokens=first_tokens), step_emit)
            reduce(parameters, rank.world, mean=True)
    flash.must_have_run()
    logged = next(model.parameters()).new_tensor(loss)
    emit("loss", total(logged, rank.dp) / case.dp)
    emit_gradients(parameters, emit)


def reinforced(model: Any, batches: Any, mesh: Any, *, of: str, **options: Any) -> Any:
    """Take a step of verl's worker, which older releases do not have."""
    from harness.candidates.published.verl import reinforced

    return getattr(reinforced, of)(model, batches, mesh, **options)


def taking(key: str, of: str, **options: Any) -> Step:
    """Return the step of an entry with a recipe, which gets its rows as micro-batches."""
    given = partial(reinforced, of=of, **options)
    return recipe_step(RECIPES[key], micro_batches=True, settings=ENGINE)(given).run


STEPS: dict[str, Step] = {
    "attention": partial(attention, implementation="flash_attention_2"),
    "attention-sdpa": partial(attention, implementation="sdpa"),
    "engine": engine,
    "engine-any-mask": partial(engine, first_tokens=True),
    "actor": taking("actor", "actor"),
    "actor-distilled": taking("actor-distilled", "actor", distilled=True),
    "actor-on-policy": taking("actor-on-policy", "actor", on_policy=True),
    "critic": taking("critic", "critic"),
    "critic-own-values": taking("critic-own-values", "critic", own=True),
}
