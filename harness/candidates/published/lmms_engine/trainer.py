"""The two trainers of lmms-engine, without FSDP: we average gradients where it would have."""

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn
from torch import distributed as dist

from harness.candidates.protocol import Rank
from harness.candidates.published.lmms_engine import library
from harness.candidates.published.lmms_engine.model import IGNORED, PADDED, Model
from harness.candidates.published.wiring.gradients import reduce, total
from harness.candidates.published.wiring.rows import Padded
from harness.case import Case

Batch = dict[str, Any]


def batch_of(padded: Padded) -> Batch:
    """A micro-batch as the collator makes it, with our padded rows beside it."""
    return {
        "input_ids": padded.ids_BS,
        "labels": padded.ids_BS.masked_fill(~padded.targets_BS, IGNORED),
        "attention_mask": padded.attended_BS,
        PADDED: padded,
    }


class Idle:
    """Takes every call and does nothing."""

    def __getattr__(self, name: str) -> Any:
        return (lambda: [0.0]) if name == "get_last_lr" else (lambda *_, **__: None)


class Fsdp2Trainer:
    """A trainer with only what the released methods of `fsdp2_trainer` read."""

    def __init__(
        self, case: Case, rank: Rank, model: Model, parameters: Mapping[str, nn.Parameter]
    ) -> None:
        self.case, self.rank = case, rank
        self.named = parameters
        self.model = self.fsdp2_model = model
        self.accumulated_grad_steps = self.global_step = 0
        self.args = SimpleNamespace(
            bf16=False,
            gradient_accumulation_steps=case.micro_batches,
            max_grad_norm=1.0,
            device=rank.device,
        )
        # Steps are taken outside.
        self.optimizer = self.scheduler = self.ema = Idle()
        of_torch = ("autocast", "bfloat16", "float16", "isfinite", "tensor")
        self._step, self._loss = library.methods_of_fsdp2_trainer(
            fsdp2_clip_grad_norm_=self.clip,
            # There may be more ranks than those of the case.
            dist=SimpleNamespace(get_world_size=lambda: case.ranks),
            torch=SimpleNamespace(
                distributed=SimpleNamespace(
                    all_reduce=self.average, ReduceOp=SimpleNamespace(AVG=None)
                ),
                **{name: getattr(torch, name) for name in of_torch},
            ),
        )

    def step(self, batches: list[Batch]) -> Tensor:
        """One step up to its gradients -> the mean loss; the log has the last micro-batch only."""
        logged = [self._step(self, batch)["train/loss"] for batch in batches]
        return torch.tensor(logged).mean()

    def compute_loss(self, batch: Batch) -> Tensor:
        loss: Tensor = self._loss(self, batch)
        return loss

    def clip(self, *_: Any) -> Tensor:
        """Average over all ranks, as FSDP would have by now; nothing is clipped."""
        reduce(self.named, self.rank.world, mean=True)
        return torch.zeros(())

    def average(self, value: Tensor, op: None) -> None:  # noqa: ARG002 - as it is called
        """Average over all ranks in two steps, as gloo has no average."""
        dist.all_reduce(value, group=self.rank.world)
        value /= self.case.ranks


def hf_trainer(case: Case, rank: Rank, *, across: bool) -> Any:
    """A released `hf_trainer` with what a step reads, and nothing that is set up before one."""

    def gather(value: Tensor) -> Tensor:
        received = [torch.empty_like(value) for _ in range(case.ranks)]
        dist.all_gather(received, value, group=rank.world)
        return torch.stack(received)

    released = library.hf_trainer()
    trainer = object.__new__(released)
    vars(trainer).update(
        args=SimpleNamespace(
            average_tokens_across_devices=across,
            sp_ulysses_degree=case.sp,
            device=rank.device,
            n_gpu=1,
            world_size=case.ranks,
            past_index=-1,
            torch_empty_cache_steps=None,
            optim="adamw_torch_fused",
        ),
        accelerator=SimpleNamespace(
            device=rank.device,
            non_blocking=False,
            gather=gather,
            num_processes=case.ranks,
            distributed_type="MULTI_GPU",
            backward=lambda loss: loss.backward(),
        ),
        # The patched forwards take any keyword.
        model_accepts_loss_kwargs=True,
        compute_loss_func=None,
        label_smoother=None,
        current_gradient_accumulation_steps=case.micro_batches,
        is_deepspeed_enabled=False,
        use_apex=False,
        use_cpu_amp=False,
        optimizer=Idle(),
        # Neither the first step nor one that logs how fast it is.
        state=SimpleNamespace(global_step=1),
        cur_time=0.0,
        total_seq_len=[],
    )
    return trainer


def hf_step(
    case: Case,
    rank: Rank,
    trainer: Any,
    model: Model,
    parameters: Mapping[str, nn.Parameter],
    batches: list[Batch],
) -> Tensor:
    """One step of transformers' loop, up to its gradients -> the loss that it logs."""
    batches, items = trainer.get_batch_samples(iter(batches), len(batches), rank.device)
    losses = [trainer.training_step(model, batch, items) for batch in batches]
    reduce(parameters, rank.world, mean=True)
    return total(torch.stack(losses).sum(), rank.world) / case.ranks
