"""Every entry of verl."""

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
    numbers,
    patched,
    shared_by,
    ulysses,
)
from harness.candidates.published.wiring.gradients import emit_gradients, reduce, steps, total
from harness.candidates.published.wiring.rows import Padded, all_targets, micro_batches
from harness.case import Case
from harness.reference.decoder import at_least_fp32


def attention(case: Case, rank: Rank, emit: Emit, *, implementation: str) -> None:
    """Pad and slice, a patched model, gather and unpad; the loss is our own."""
    model = huggingface.build(case, rank.device)
    flash.give_to_transformers()
    model.set_attn_implementation(implementation)
    parameters = huggingface.parameters(model, case)
    with patched(model, case.sp), shared_by(rank.sp):
        for say in steps(case, parameters, emit):
            losses = []
            for padded in micro_batches(case, rank):
                loss = forward(model, case, padded, say)
                loss.backward()
                losses.append(loss)
            reduce(parameters, rank.world, mean=True)
    if implementation == "flash_attention_2":
        flash.must_have_run()
    emit("loss", total(torch.stack(losses).sum(), rank.world) / case.ranks)
    emit_gradients(parameters, emit)


def forward(model: Any, case: Case, padded: Padded, say: Emit) -> Tensor:
    """The loss of one micro-batch, the same on all ranks that share it."""
    packed = padded.packed
    ids, positions, labels, tokens, padding = sliced(
        case, packed.ids_T, packed.positions_T, packed.tokens_T
    )
    with huggingface.watched(model, case, say, tokens):
        say("ids", ids[0], tokens)
        say("positions", positions[0], tokens)
        logits_LV = model(
            input_ids=ids, attention_mask=None, position_ids=positions, use_cache=False
        ).logits[0]
    nll = F.cross_entropy(at_least_fp32(logits_LV), labels[0], reduction="none")
    say("labels", labels[0], tokens)
    say("nll", nll, tokens)
    if case.sp > 1:
        nll = gather_outputs_and_unpad(nll, gather_dim=0, unpad_dim=0, padding_size=padding)
    # Gradients are averaged over replicas.
    return (nll * weights(case, padded).to(nll).roll(-1)).sum() * case.dp


def sliced(
    case: Case, ids_T: Tensor, positions_T: Tensor, tokens_T: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor, int]:
    """This rank's ids, positions, labels and token numbers, and how long the padding is."""
    ids, positions, labels = ids_T[None], positions_T[None], ids_T.roll(-1)[None]
    if case.sp == 1:
        return ids, positions, labels, tokens_T, 0
    cut = partial(ulysses.ulysses_pad_and_slice_inputs, sp_size=case.sp)
    ids, positions, padding = cut(ids, positions)
    labels, *_ = cut(labels, None)
    return ids, positions, labels, numbers(tokens_T, case.sp), padding


def weights(case: Case, padded: Padded) -> Tensor:
    """How much each target of the stream weighs in the loss of the whole batch."""
    targets_BS = padded.targets_BS.double()
    terms = {
        "token-mean": targets_BS.new_tensor(all_targets(case)),
        "micro-mean": targets_BS.sum() * case.dp * case.micro_batches,
        "row-mean": targets_BS.sum(1, keepdim=True) * len(case.rows),
    }[case.loss]
    return (targets_BS / terms.clamp(min=1))[padded.attended_BS.bool()]


def engine(case: Case, rank: Rank, emit: Emit, *, first_tokens: bool = False) -> None:
    """The released step and loss of the current engine."""
    # Older releases have no such engine, so only its entries import it.
    from harness.candidates.published.verl.engine import Engine, batch

    model = huggingface.build(case, rank.device)
    flash.give_to_transformers()
    model.set_attn_implementation("flash_attention_2")
    parameters = huggingface.parameters(model, case)
    runs = Engine(case, rank, model)
    with patched(model, case.sp), shared_by(rank.sp):
        for say in steps(case, parameters, emit):
            loss = runs.step(batch(case, rank, first_tokens=first_tokens), say)
            reduce(parameters, rank.world, mean=True)
    flash.must_have_run()
    logged = next(model.parameters()).new_tensor(loss)
    emit("loss", total(logged, rank.dp) / case.dp)
    emit_gradients(parameters, emit)


STEPS: dict[str, Step] = {
    "attention": partial(attention, implementation="flash_attention_2"),
    "attention-sdpa": partial(attention, implementation="sdpa"),
    "engine": engine,
    "engine-any-mask": partial(engine, first_tokens=True),
}
