"""The release without each of its listed bugs."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from typing import Any
from unittest.mock import patch

from torch import Tensor
from torch import distributed as dist

from harness.candidates.published.library import Mend

Roll = Callable[..., tuple[Tensor, Tensor]]


def counted_over_ranks() -> AbstractContextManager[Any]:
    """The count is that of all ranks of a sequence; a factor makes up for the mean over them."""
    from megatron.core import parallel_state
    from megatron.core.pipeline_parallel import schedules

    released = schedules.forward_step_calc_loss

    def calculate(model: Any, output: Tensor, loss_func: Any, config: Any, *rest: Any) -> Any:
        def counted(output: Tensor) -> Any:
            outputs = loss_func(output)
            if len(outputs) == 2 or config.calculate_per_token_loss:
                return outputs
            loss, count, report = outputs
            cp = parallel_state.get_context_parallel_group()
            count = count.clone()
            dist.all_reduce(count, group=cp)
            return loss * cp.size(), count, report

        return released(model, output, counted, config, *rest)

    return patch.object(schedules, "forward_step_calc_loss", calculate)


def depth_counted_over_ranks() -> AbstractContextManager[Any]:
    """A further depth's count is the mean of the counts of all ranks of a sequence."""

    def counting(released: Roll) -> Roll:
        def roll(tensor: Tensor, *, cp_group: Any, **named: Any) -> tuple[Tensor, Tensor]:
            rolled, count = released(tensor, cp_group=cp_group, **named)
            dist.all_reduce(count, group=cp_group)
            return rolled, count / cp_group.size()

        return roll

    return _rolling(counting, blocks=False)


def depth_without_targets() -> AbstractContextManager[Any]:
    """A further depth has a loss of zero where it has no target."""

    def clamping(released: Roll) -> Roll:
        def roll(*given: Any, **named: Any) -> tuple[Tensor, Tensor]:
            rolled, count = released(*given, **named)
            return rolled, count + (count == 0)

        return roll

    return _rolling(clamping, blocks=False)


def rolled_by_what_was_cut() -> AbstractContextManager[Any]:
    """A pack is rolled by the lengths by which it was cut."""

    def padding(released: Roll) -> Roll:
        def roll(*given: Any, packed_seq_params: Any, **named: Any) -> tuple[Tensor, Tensor]:
            ends = packed_seq_params.cu_seqlens_q_padded
            told = replace(packed_seq_params, cu_seqlens_q=ends)
            return released(*given, packed_seq_params=told, **named)

        return roll

    return _rolling(padding)


def rolled_over_the_ranks_of_a_row() -> AbstractContextManager[Any]:
    """A row is rolled over the ranks that share it."""

    def choosing(released: Roll) -> Roll:
        def roll(
            *given: Any, cp_group: Any, packed_seq_params: Any, **named: Any
        ) -> tuple[Tensor, Tensor]:
            if packed_seq_params.local_cp_size is not None:
                cp_group = packed_seq_params.cp_group
            return released(
                *given, cp_group=cp_group, packed_seq_params=packed_seq_params, **named
            )

        return roll

    return _rolling(choosing)


def alone_in_a_group() -> AbstractContextManager[Any]:
    """A row that one rank has alone has a group of one."""
    from megatron.core import utils

    from harness.candidates.published.megatron_core import groups

    released = utils.get_batch_on_this_hybrid_cp_rank

    def cut(row: Any, size: int) -> Any:
        batch, told = released(row, size)
        return batch, replace(told, cp_group=groups.alone()) if size == 1 else told

    return patch.object(utils, "get_batch_on_this_hybrid_cp_rank", cut)


@contextmanager
def _rolling(wrap: Callable[[Roll], Roll], *, blocks: bool = True) -> Iterator[None]:
    """Wrap the rolling of labels and masks, and with `blocks` of a further depth's inputs."""
    from megatron.core.models.gpt import gpt_model
    from megatron.core.transformer import multi_token_prediction

    owners = (gpt_model, multi_token_prediction) if blocks else (gpt_model,)
    before = [owner.roll_tensor for owner in owners]
    for owner, released in zip(owners, before, strict=True):
        owner.roll_tensor = wrap(released)
    try:
        yield
    finally:
        for owner, released in zip(owners, before, strict=True):
            owner.roll_tensor = released


MENDS: dict[str, Mend] = {
    "mean-of-shard-means": counted_over_ranks,
    "mtp-mean-of-shard-means": depth_counted_over_ranks,
    "mtp-nan-without-targets": depth_without_targets,
    "mtp-packed-rolled-by-true-lengths": rolled_by_what_was_cut,
    "mtp-rolled-over-other-ranks": rolled_over_the_ranks_of_a_row,
    "hybrid-rotary-of-static-group": alone_in_a_group,
}
