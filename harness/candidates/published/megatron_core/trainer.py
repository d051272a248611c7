"""A training step as Megatron-LM's loop takes one: schedule, loss, data parallelism."""

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
from harness.candidates.published.megatron_core.attention import Seat
from harness.candidates.published.megatron_core.watch import watch
from harness.candidates.published.wiring.gradients import steps, total
from harness.candidates.published.wiring.rows import micro_batches
from harness.case import Case

library.install()

# cut(micro-batch, rank, ahead=) -> this rank's part, and what the library is told of a pack.
Cut = Callable[..., tuple[dict[str, Tensor], Any]]


@dataclass(frozen=True, kw_only=True)
class Options:
    """What a user of Megatron-LM sets."""

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
    """Every step of the case."""
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
    for say in steps(case, parameters, emit):
        Seat.emit = staticmethod(real(say) if options.ahead or options.hybrid else say)
        Seat.losses = []
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
        say("loss", logged(reports, rank, case, options))
        for name, gradient in model.gradients(gpt, case):
            say(f"grad.{name}", gradient)


def real(say: Emit) -> Emit:
    """Emit real tokens only: a token in front, or more ranks than share a row, add padding."""

    def emit(key: str, tensor: Tensor, tokens: Tensor | None = None) -> None:
        assert tokens is not None
        say(key, tensor[tokens >= 0], tokens[tokens >= 0])

    return emit


def forward_step(
    batches: Iterator[Any], gpt: Any, *, rank: Rank, options: Options
) -> tuple[Tensor, Callable[[Tensor], tuple[Any, ...]]]:
    """A training script's step: the next micro-batch's output, and the function of its loss."""
    batch, packed = options.cut(next(batches), rank, ahead=options.ahead)
    Seat.sequence_BL, Seat.place_BL = batch["sequence"], batch["place"]
    Seat.numbers = batch["numbers"].flatten()
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
    """The sum of this rank's losses, their number, and both for the log."""
    mask, counted = (batch[key].view(-1) for key in ("loss_mask", "counted"))
    loss = (output.view(-1).float() * mask).sum()
    count = mask.sum()
    report = torch.stack(((Seat.losses[-1][0].detach().flatten() * counted).sum(), counted.sum()))
    if options.ahead:
        # The library adds the further depth's loss by itself.
        return loss * 0, count.int(), report
    if options.legacy:
        return loss / total(count, rank.sp).clamp(min=1), report
    return loss, count.int(), report


def emit_weights(reports: list[Tensor], rank: Rank, options: Options) -> None:
    """Emit the gradient of each loss, scaled as gradients are when they are reduced."""
    scale = torch.tensor(1 / rank.world.size())
    if options.per_token:
        scale = 1 / total(torch.stack(reports).sum(0), rank.world)[1].clamp(min=1)
    for nll, numbers in Seat.losses:
        assert nll.grad is not None
        Seat.emit("weight", (nll.grad * scale).flatten(), numbers)


def logged(reports: list[Tensor], rank: Rank, case: Case, options: Options) -> Tensor:
    """The mean over all tokens; or means of micro-batches, averaged over these and replicas."""
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
    """Every rank loads rows of its own."""
    rank = replace(rank, dp_index=rank.index, sp_index=0, dp=rank.world, sp=groups.alone())
    return replace(case, dp=case.ranks, sp=1, micro_batches=1), rank


def gather_shards(wrapped: DistributedDataParallel, rank: Rank) -> None:
    """Gather gradients: each rank has summed its own shard only, which its optimizer updates."""
    for buffer in wrapped.buffers:
        for bucket in buffer.buckets:
            mine = bucket.grad_data.chunk(rank.world.size())[rank.world.rank()].clone()
            dist.all_gather_into_tensor(bucket.grad_data, mine, group=rank.world)
