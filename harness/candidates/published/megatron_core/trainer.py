"""Training steps as in Megatron-LM's loop: schedule, loss and data parallelism."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig
from megatron.core.distributed.finalize_model_grads import finalize_model_grads
from megatron.core.pipeline_parallel.schedules import forward_backward_no_pipelining
from megatron.core.transformer.multi_token_prediction import MTPLossLoggingHelper
from torch import Tensor
from torch import distributed as dist

from harness.candidates.protocol import Emit, Rank
from harness.candidates.published.megatron_core import groups, hybrid, library, model
from harness.candidates.published.megatron_core.attention import Current
from harness.candidates.published.megatron_core.watch import watch
from harness.candidates.published.wiring.gradients import steps, total
from harness.candidates.published.wiring.rows import micro_batches
from harness.case import Case

library.install()

# cut(micro-batch, rank, ahead=) -> this rank's part, and the library's parameters of a pack.
Cut = Callable[..., tuple[dict[str, Tensor], Any]]


@dataclass(frozen=True, kw_only=True)
class Options:
    """Options of a user of Megatron-LM."""

    cut: Cut
    # calculate_per_token_loss
    per_token: bool = False
    # The loss function returns a share of the mean over all ranks of a sequence, and no count.
    legacy: bool = False
    # The first further depth is trained, on the tokens of the case.
    ahead: bool = False
    # hybrid_context_parallel: each row on as many ranks as it needs
    hybrid: bool = False
    # context_parallel_size is 1: all ranks of a case are replicas
    replicas: bool = False
    ddp: dict[str, Any] = field(default_factory=dict)


def step(case: Case, rank: Rank, emit: Emit, *, options: Options) -> None:
    """Run every step of the case."""
    with library.OnCpu():
        _step(case, rank, emit, options)


def _step(case: Case, rank: Rank, emit: Emit, options: Options) -> None:
    per_rank = hybrid.per_rank(case, ahead=options.ahead) if options.hybrid else None
    if options.replicas:
        case, rank = as_replicas(case, rank)
    ranks = groups.use(rank)
    config = model.config_of(
        case,
        per_token=options.per_token,
        mtp_num_layers=1 if options.ahead else None,
        hybrid_context_parallel=options.hybrid,
        max_seqlen_per_dp_cp_rank=per_rank,
    )
    gpt = model.build(case, config, ranks)
    model.load(gpt, case)
    wrapped = DistributedDataParallel(
        config, DistributedDataParallelConfig(**options.ddp), gpt, pg_collection=ranks
    )
    if options.ddp.get("overlap_grad_reduce"):
        config.no_sync_func = wrapped.no_sync
    config.finalize_model_grads_func = finalize_model_grads
    watch(gpt, ahead=options.ahead)
    parameters = {name: each for name, each in gpt.named_parameters() if each.requires_grad}
    for step_emit in steps(case, parameters, emit):
        has_more_padding = options.ahead or options.hybrid
        Current.emit = staticmethod(real_only(step_emit) if has_more_padding else step_emit)
        Current.losses = []
        wrapped.zero_grad_buffer()
        reports = forward_backward_no_pipelining(
            forward_step_func=partial(forward_step, rank=rank, options=options),
            data_iterator=hybrid.batches(case, rank, config, ranks, ahead=options.ahead)
            if options.hybrid
            else iter(micro_batches(case, rank)),
            model=wrapped,
            num_microbatches=case.micro_batches,
            seq_length=0,
            micro_batch_size=0,
            pg_collection=ranks,
        )
        if options.ddp.get("use_distributed_optimizer"):
            gather_shards(wrapped, rank)
        for parameter in parameters.values():
            parameter.grad = parameter.main_grad
        emit_weights(reports, rank, options)
        step_emit("loss", logged(reports, rank, case, options))
        for name, gradient in model.gradients(gpt, case):
            step_emit(f"grad.{name}", gradient)


def real_only(emit: Emit) -> Emit:
    """Return an emit without padding, of which a token in front or further ranks add more."""

    def emit_real(key: str, tensor: Tensor, tokens: Tensor | None = None) -> None:
        assert tokens is not None
        emit(key, tensor[tokens >= 0], tokens[tokens >= 0])

    return emit_real


def forward_step(
    batches: Iterator[Any], gpt: Any, *, rank: Rank, options: Options
) -> tuple[Tensor, Callable[[Tensor], tuple[Any, ...]]]:
    """Run a training script's step -> the next micro-batch's output, and its loss function."""
    batch, packed = options.cut(next(batches), rank, ahead=options.ahead)
    Current.sequence_BL, Current.position_BL = batch["sequence"], batch["place"]
    Current.tokens = batch["numbers"].flatten()
    output = gpt(
        batch["tokens"],
        batch["position_ids"],
        None,
        labels=batch["labels"],
        loss_mask=batch["loss_mask"],
        packed_seq_params=packed,
    )
    return output, partial(loss_of, batch, rank=rank, options=options)


def loss_of(
    batch: dict[str, Tensor], output: Tensor, *, rank: Rank, options: Options
) -> tuple[Any, ...]:
    """Return the sum of this rank's losses, their number, and both for the log."""
    mask, counted = (batch[key].view(-1) for key in ("loss_mask", "counted"))
    loss = (output.view(-1).float() * mask).sum()
    count = mask.sum()
    nll, _ = Current.losses[-1]
    report = torch.stack(((nll.detach().flatten() * counted).sum(), counted.sum()))
    if options.ahead:
        # The library itself adds the further depth's loss.
        return loss * 0, count.int(), report
    if options.legacy:
        return loss / total(count, rank.sp).clamp(min=1), report
    return loss, count.int(), report


def emit_weights(reports: list[Tensor], rank: Rank, options: Options) -> None:
    """Emit the gradient of each loss, scaled as the reduction scales gradients."""
    scale = torch.tensor(1 / rank.world.size())
    if options.per_token:
        scale = 1 / total(torch.stack(reports).sum(0), rank.world)[1].clamp(min=1)
    for nll, tokens in Current.losses:
        assert nll.grad is not None
        Current.emit("weight", (nll.grad * scale).flatten(), tokens)


def logged(reports: list[Tensor], rank: Rank, case: Case, options: Options) -> Tensor:
    """Return the mean over all tokens, or the mean of the means of all micro-batches."""
    sums = torch.stack(reports)
    if options.per_token:
        loss, count = total(sums.sum(0), rank.world)
        mean: Tensor = loss / count.clamp(min=1)
        return mean
    if options.ahead:
        log: dict[str, Tensor] = {}
        MTPLossLoggingHelper.track_mtp_metrics(1 / case.micro_batches, 0, None, None, log)
        return log["mtp_1 loss"]
    loss, count = total(sums, rank.sp).unbind(-1)
    mean = (loss / count.clamp(min=1)).mean()
    return total(mean, rank.dp) / rank.dp.size()


def as_replicas(case: Case, rank: Rank) -> tuple[Case, Rank]:
    """Return the case and rank in which every rank loads its own rows."""
    rank = replace(rank, dp_index=rank.index, sp_index=0, dp=rank.world, sp=groups.alone())
    return replace(case, dp=case.ranks, sp=1, micro_batches=1), rank


def gather_shards(wrapped: DistributedDataParallel, rank: Rank) -> None:
    """Gather gradients: each rank has summed only its own shard, for its optimizer."""
    for buffer in wrapped.buffers:
        for bucket in buffer.buckets:
            shard = bucket.grad_data.chunk(rank.world.size())[rank.world.rank()].clone()
            dist.all_gather_into_tensor(bucket.grad_data, shard, group=rank.world)
