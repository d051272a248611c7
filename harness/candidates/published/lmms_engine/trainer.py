"""The two trainers of lmms-engine without FSDP; gradients are averaged here instead."""

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn
from torch import distributed as dist

from harness.candidates.protocol import Rank
from harness.candidates.published.lmms_engine import library
from harness.candidates.published.lmms_engine.model import PADDED, Model
from harness.candidates.published.wiring.gradients import reduce, total
from harness.candidates.published.wiring.rows import Padded
from harness.candidates.published.wiring.stand_ins import Idle
from harness.case import Case

Batch = dict[str, Any]


def batch_of(padded: Padded) -> Batch:
    """Return a micro-batch as the collator makes it, with our padded rows beside it."""
    return {
        "input_ids": padded.ids_BS,
        "labels": padded.labels,
        "attention_mask": padded.attended_BS,
        PADDED: padded,
    }


class Fsdp2Trainer:
    """A trainer with only what the released methods of `fsdp2_trainer` read."""

    def __init__(
        self, case: Case, rank: Rank, model: Model, parameters: Mapping[str, nn.Parameter]
    ) -> None:
        self.case, self.rank = case, rank
        self.named_parameters = parameters
        self.model = self.fsdp2_model = model
        self.accumulated_grad_steps = self.global_step = 0
        self.args = SimpleNamespace(
            bf16=False,
            gradient_accumulation_steps=case.micro_batches,
            max_grad_norm=1.0,
            device=rank.device,
        )
        # The caller updates the weights.
        self.optimizer = self.scheduler = self.ema = Idle()
        of_torch = ("autocast", "bfloat16", "float16", "isfinite", "tensor")
        self._step, self._loss = library.methods_of_fsdp2_trainer(
            fsdp2_clip_grad_norm_=self.clip,
            # The process group may have more ranks than the case.
            dist=SimpleNamespace(get_world_size=lambda: case.ranks),
            torch=SimpleNamespace(
                distributed=SimpleNamespace(
                    all_reduce=self.average, ReduceOp=SimpleNamespace(AVG=None)
                ),
                **{name: getattr(torch, name) for name in of_torch},
            ),
        )

    def step(self, batches: list[Batch]) -> Tensor:
        """Run one step up to its gradients -> the mean loss; the log has only the last one."""
        logged = [self._step(self, batch)["train/loss"] for batch in batches]
        return torch.tensor(logged).mean()

    def compute_loss(self, batch: Batch) -> Tensor:
        loss: Tensor = self._loss(self, batch)
        return loss

    def clip(self, *_: Any) -> Tensor:
        """Average gradients over all ranks, as FSDP would have by now; clip nothing."""
        reduce(self.named_parameters, self.rank.world, mean=True)
        return torch.zeros(())

    def average(self, value: Tensor, op: None) -> None:  # noqa: ARG002 - as it is called
        """Average over all ranks in two steps, because gloo has no average."""
        dist.all_reduce(value, group=self.rank.world)
        value /= self.case.ranks


class HfTrainer:
    """A released `hf` trainer with only what a step reads, without the setup before one."""

    def __init__(
        self,
        case: Case,
        rank: Rank,
        model: Model,
        parameters: Mapping[str, nn.Parameter],
        *,
        across: bool,
    ) -> None:
        self.case, self.rank, self.model, self.named_parameters = case, rank, model, parameters
        released = library.hf_trainer()
        self.released = object.__new__(released)
        vars(self.released).update(
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
                gather=self.gather,
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
            # Neither the first step nor one that logs its speed.
            state=SimpleNamespace(global_step=1),
            cur_time=0.0,
            total_seq_len=[],
        )

    def gather(self, value: Tensor) -> Tensor:
        received = [torch.empty_like(value) for _ in range(self.case.ranks)]
        dist.all_gather(received, value, group=self.rank.world)
        return torch.stack(received)

    def step(self, batches: list[Batch]) -> Tensor:
        """Run one step of transformers' loop up to its gradients -> the loss that it logs."""
        batches, items = self.released.get_batch_samples(
            iter(batches), len(batches), self.rank.device
        )
        losses = [self.released.training_step(self.model, batch, items) for batch in batches]
        reduce(self.named_parameters, self.rank.world, mean=True)
        return total(torch.stack(losses).sum(), self.rank.world) / self.case.ranks
