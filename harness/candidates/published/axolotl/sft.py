"""Supervised steps: what the collator makes, and the trainer of transformers as axolotl sets it.

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
from harness.candidates.published.axolotl.model import IGNORED, TOKENS, Seen, parameters
from harness.candidates.published.wiring.gradients import reduce, total
from harness.candidates.published.wiring.rows import Padded
from harness.case import Case

Batch = dict[str, Any]


def table(_: Case, padded: Padded, *, shifted: bool = False) -> Batch:
    """Without sample packing: rows, each padded on its own side."""
    labels_BS = padded.ids_BS.masked_fill(~padded.targets_BS, IGNORED)
    return {
        "input_ids": padded.ids_BS,
        "attention_mask": padded.attended_BS,
        "labels": labels_BS,
        TOKENS: padded.tokens_BS,
        **({"shift_labels": moved_up(labels_BS)} if shifted else {}),
    }


def moved_up(labels_BS: Tensor) -> Tensor:
    """Labels moved up by one, as a user's own collator may add them."""
    return F.pad(labels_BS[:, 1:], (0, 1), value=IGNORED)


def packed(case: Case, padded: Padded, *, kind: str) -> Batch:
    """With sample packing: one row, by the released collator."""
    samples = []
    for row, real in enumerate(padded.attended_BS.bool()):
        ids, targets = padded.ids_BS[row][real], padded.targets_BS[row][real]
        sample = {
            "input_ids": ids.tolist(),
            "labels": ids.masked_fill(~targets, IGNORED).tolist(),
            "position_ids": list(range(len(ids))),
        }
        samples.append(sample)
    collate = library.collators.V2BatchSamplerDataCollatorForSeq2Seq(
        tokenizer(case), pad_to_multiple_of=case.sp if kind in ("multiple", "shifted") else None
    )
    batch = dict(collate([samples]))
    tokens = padded.packed.tokens_T
    more = batch["input_ids"].shape[1] - len(tokens)
    if kind == "shifted":
        batch["shift_labels"] = moved_up(batch["labels"])
    return {**batch, TOKENS: F.pad(tokens, (0, more), value=-1)[None]}


def tokenizer(case: Case) -> Any:
    """A tokenizer that pads with the case's token and can do nothing else."""
    words = Tokenizer(WordLevel({"pad": case.pad_id}, unk_token="pad"))  # noqa: S106
    made: Any = transformers.PreTrainedTokenizerFast
    return made(tokenizer_object=words, pad_token="pad")  # noqa: S106


def trainer(case: Case, rank: Rank, *, counted: bool) -> Any:
    """A trainer of transformers with what a step reads, and nothing that is set up before one."""
    made = object.__new__(transformers.Trainer)
    vars(made).update(
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
    return made


def step(rank: Rank, seen: Seen, made: Any, batches: list[Batch]) -> Tensor:
    """One step of transformers' loop, up to its gradients -> the loss that it logs."""
    case = seen.case
    batches, items = made.get_batch_samples(iter(batches), len(batches), rank.device)
    made.model, logged = seen.model, torch.zeros(())
    for batch in batches:
        given = {key: value for key, value in batch.items() if key != TOKENS}
        seen.tokens_BS = batch[TOKENS]
        loss = made.training_step(seen.model, given, items)
        # `logging_nan_inf_filter` adds the sum so far if a loss of the first step is not finite.
        logged = logged + (loss if loss.isfinite() else logged)
    reduce(parameters(seen), rank.world, mean=True)
    return total(logged, rank.world) / case.ranks
