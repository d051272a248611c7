"""Steps of areal's FSDP engine on the rows of a replica."""

from contextlib import ExitStack
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor

from harness import huggingface
from harness.candidates.protocol import Emit, Rank
from harness.candidates.published.areal import configured, library
from harness.candidates.published.flash_stand_in import flash
from harness.candidates.published.wiring.emitting import emit_inputs, emit_losses
from harness.candidates.published.wiring.gradients import silent
from harness.candidates.published.wiring.rows import micro_batches
from harness.case import Case

# The key of token numbers beside rows; they count from one, because padding is zero.
NUMBERS = "token_numbers"


@dataclass(frozen=True, slots=True)
class Options:
    """Options in which the entries differ."""

    attention: str = "flash_attention_2"


class Engine(library.fsdp_engine.FSDPEngine):  # type: ignore[misc]
    """The published engine on the case's model; it emits what is computed."""

    def __init__(self, options: Options, case: Case, rank: Rank) -> None:
        self.case, self.emit = case, silent
        self.during_forward = ExitStack()
        self.tokens = torch.empty(0)
        self.case_model = huggingface.build(case, rank.device, options.attention)
        given = configured.options(
            case.dp,
            case.sp,
            attention=options.attention,
            micro_batches=case.micro_batches,
            checkpoint=case.checkpoint,
        )
        with configured.given(self.case_model):
            super().__init__(library.arguments.TrainEngineConfig(**given))

    def _create_llm_actor_or_critic(self) -> Any:
        return self.case_model

    def _prepare_mb_inputs(self, mb_item: Any) -> Any:
        numbers = mb_item.padded_mb.pop(NUMBERS)
        mb_item.orig_mb.pop(NUMBERS)
        inputs, ctx = super()._prepare_mb_inputs(mb_item)
        if self.parallel_helper.sp_size > 1:
            numbers = library.ulysses.slice_input_tensor(numbers, dim=1, padding=True)
        self.tokens = numbers.flatten() - 1
        emit_inputs(self.emit, inputs, self.tokens)
        self.during_forward.enter_context(
            huggingface.watched(self.model, self.case, self.emit, self.tokens)
        )
        return inputs, ctx

    def _compute_logprobs_and_loss(
        self, logits: Tensor, ctx: Any, loss_fn: Any, loss_weight_fn: Any, *rest: Any, **named: Any
    ) -> Tensor:
        self.during_forward.close()
        released = library.fsdp_engine.gather_logprobs_entropy

        def gather_and_emit(logits: Tensor, labels: Tensor, **options: Any) -> Any:
            logprobs, entropy = released(logits, labels, **options)
            emit_losses(self.emit, -logprobs, labels, self.tokens)
            return logprobs, entropy

        with patch.object(library.fsdp_engine, "gather_logprobs_entropy", gather_and_emit):
            if loss_weight_fn(ctx.mb_input) == 0:
                # The engine does not look at the tokens of such a micro-batch.
                with torch.no_grad():
                    self._compute_logprobs_entropy(logits, ctx.model_inputs)
            loss: Tensor = super()._compute_logprobs_and_loss(
                logits, ctx, loss_fn, loss_weight_fn, *rest, **named
            )
        return loss

    def optimizer_step(self) -> Any:
        for key, gradient in huggingface.gradients(self.model, self.case):
            sharded: Any = gradient
            self.emit(key, sharded.full_tensor())
        return super().optimizer_step()


def train(options: Options, case: Case, rank: Rank, emit: Emit) -> None:
    """Run every step of the case."""
    engine = Engine(options, case, rank)
    place = rank.dp_index, rank.sp_index
    configured.initialize(engine, case.dp, case.sp, place, case.steps)
    for step in range(case.steps):
        if step == case.steps - 1:
            engine.emit = emit
        batch, _ = library.data.concat_batch(_rows(case, rank))
        library.train_lm(SimpleNamespace(engine=engine), batch)
        logged = engine.export_stats()
        engine.emit("loss", torch.tensor(logged["loss/avg"], dtype=torch.float32))
    if options.attention == "flash_attention_2":
        flash.must_have_run("flash_attn_varlen_func")


def _rows(case: Case, rank: Rank) -> list[dict[str, Tensor]]:
    """Return a replica's rows as a data loader yields them: a dict for each, not yet padded."""
    return [
        {
            "input_ids": row.ids_T[None],
            "attention_mask": torch.ones_like(row.targets_T)[None],
            "loss_mask": row.targets_T[None],
            NUMBERS: row.tokens_T[None] + 1,
        }
        for batch in micro_batches(case, rank)
        for row in batch.rows
    ]
