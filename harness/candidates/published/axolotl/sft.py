"""Supervised steps: batches of the collator, and transformers' trainer as axolotl sets it up.

Legend: B rows, S tokens of a row.
"""

from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import torch
import transformers
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from torch import Tensor
from torch.nn import functional as F

from harness.candidates.protocol import Rank
from harness.candidates.published.axolotl import library
from harness.candidates.published.axolotl.model import TOKENS, Model
from harness.candidates.published.wiring.gradients import reduce, total
from harness.candidates.published.wiring.rows import PADDING, Padded, shifted
from harness.case import Case

Batch = dict[str, Any]


def table(_: Case, padded: Padded, *, with_shifted: bool = False) -> Batch:
    """Return rows padded each on its own side, as without sample packing."""
    return {
        "input_ids": padded.ids_BS,
        "attention_mask": padded.attended_BS,
        "labels": padded.labels,
        TOKENS: padded.tokens_BS,
        # A user's own collator may add these.
        **({"shift_labels": shifted(padded.labels)} if with_shifted else {}),
    }


def packed(case: Case, padded: Padded, *, kind: str) -> Batch:
    """Return all rows in one by the released collator, as with sample packing."""
    samples = [
        {
            "input_ids": row.ids_T.tolist(),
            "labels": row.labels.tolist(),
            "position_ids": row.positions_T.tolist(),
        }
        for row in padded.rows
    ]
    collate = library.collators.V2BatchSamplerDataCollatorForSeq2Seq(
        tokenizer(case), pad_to_multiple_of=case.sp if kind in ("multiple", "shifted") else None
    )
    batch = dict(collate([samples]))
    tokens_T = padded.packed.tokens_T
    more = batch["input_ids"].shape[1] - len(tokens_T)
    if kind == "shifted":
        batch["shift_labels"] = shifted(batch["labels"])
    return {**batch, TOKENS: F.pad(tokens_T, (0, more), value=PADDING)[None]}


def tokenizer(case: Case) -> Any:
    """Return a tokenizer that pads with the case's token and can do nothing else."""
    words = Tokenizer(WordLevel({"pad": case.pad_id}, unk_token="pad"))  # noqa: S106
    fast: Any = transformers.PreTrainedTokenizerFast
    return fast(tokenizer_object=words, pad_token="pad")  # noqa: S106


def trainer(case: Case, rank: Rank, *, counted: bool) -> Any:
    """Return transformers' trainer with only what a step reads, without the setup before one."""
    trainer = object.__new__(transformers.Trainer)
    vars(trainer).update(
        model=None,
        args=SimpleNamespace(
            # axolotl sets this for every trainer.
            average_tokens_across_devices=False,
            device=rank.device,
            n_gpu=1,
            world_size=case.ranks,
            torch_empty_cache_steps=None,
            optim="adamw_torch_fused",
        ),
        accelerator=SimpleNamespace(
            num_processes=case.ranks,
            distributed_type="MULTI_GPU",
            parallelism_config=SimpleNamespace(
                sp_backend=None, cp_size=case.sp, tp_size=1, non_data_parallel_size=case.sp
            ),
            backward=lambda loss: loss.backward(),
        ),
        is_deepspeed_enabled=False,
        model_accepts_loss_kwargs=counted,
        _loss_shifts_labels=True,
        compute_loss_func=None,
        label_smoother=None,
        current_gradient_accumulation_steps=case.micro_batches,
        optimizer=None,
        # axolotl's patch_prepare_cp puts this in place.
        _prepare_context_parallel_inputs=lambda _, inputs: (nullcontext, inputs),
    )
    return trainer


def step(rank: Rank, model: Model, trainer: Any, batches: list[Batch]) -> Tensor:
    """Run one step of transformers' loop up to its gradients -> the loss that it logs."""
    batches, items = trainer.get_batch_samples(iter(batches), len(batches), rank.device)
    trainer.model, logged = model.module, torch.zeros(())
    for batch in batches:
        inputs = {key: value for key, value in batch.items() if key != TOKENS}
        model.tokens_BS = batch[TOKENS]
        loss = trainer.training_step(model.module, inputs, items)
        # `logging_nan_inf_filter` adds the sum so far if a loss of the first step is not finite.
        logged = logged + (loss if loss.isfinite() else logged)
    reduce(model.parameters, rank.world, mean=True)
    return total(logged, rank.world) / model.case.ranks
