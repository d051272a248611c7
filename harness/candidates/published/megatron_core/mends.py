"""The release without each of its listed bugs."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import replace
from typing import Any
from unittest.mock import patch

from torch import Tensor
from torch import distributed as dist

from harness.candidates.published.library import Mend
from harness.candidates.published.wiring.mending import wrapped

Roll = Callable[..., tuple[Tensor, Tensor]]


def counted_over_ranks() -> AbstractContextManager[Any]:
    """While this lasts, the count is that of all ranks of a sequence.

    A factor makes up for the mean over these ranks.
    """
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
    """While this lasts, a further depth's count is the mean of all counts of a sequence."""

    def counting(released: Roll) -> Roll:
        def roll(tensor: Tensor, *, cp_group: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
            rolled, count = released(tensor, cp_group=cp_group, **kwargs)
            dist.all_reduce(count, group=cp_group)
            return rolled, count / cp_group.size()

        return roll

    return _rolling(counting, blocks=False)


def depth_without_targets() -> AbstractContextManager[Any]:
    """While this lasts, a further depth without targets has a loss of zero."""

    def clamping(released: Roll) -> Roll:
        def roll(*args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
            rolled, count = released(*args, **kwargs)
            return rolled, count + (count == 0)

        return roll

    return _rolling(clamping, blocks=False)


def rolled_by_padded_lengths() -> AbstractContextManager[Any]:
    """While this lasts, a pack is rolled by the same lengths by which it was cut."""

    def padding(released: Roll) -> Roll:
        def roll(*args: Any, packed_seq_params: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
            ends = packed_seq_params.cu_seqlens_q_padded
            params = replace(packed_seq_params, cu_seqlens_q=ends)
            return released(*args, packed_seq_params=params, **kwargs)

        return roll

    return _rolling(padding)


def rolled_over_the_ranks_of_a_row() -> AbstractContextManager[Any]:
    """While this lasts, a row is rolled over the ranks that share it."""

    def choosing(released: Roll) -> Roll:
        def roll(
            *args: Any, cp_group: Any, packed_seq_params: Any, **kwargs: Any
        ) -> tuple[Tensor, Tensor]:
            if packed_seq_params.local_cp_size is not None:
                cp_group = packed_seq_params.cp_group
            return released(
                *args, cp_group=cp_group, packed_seq_params=packed_seq_params, **kwargs
            )

        return roll

    return _rolling(choosing)


def alone_in_a_group() -> AbstractContextManager[Any]:
    """While this lasts, a row on one rank has a group of one."""
    from megatron.core import utils

    from harness.candidates.published.megatron_core import groups

    released = utils.get_batch_on_this_hybrid_cp_rank

    def cut(row: Any, size: int) -> Any:
        batch, params = released(row, size)
        return batch, replace(params, cp_group=groups.alone()) if size == 1 else params

    return patch.object(utils, "get_batch_on_this_hybrid_cp_rank", cut)


@contextmanager
def _rolling(wrap: Callable[[Roll], Roll], *, blocks: bool = True) -> Iterator[None]:
    """While this lasts, wrap the rolling of labels, masks and, if `blocks`, a depth's inputs."""
    from megatron.core.models.gpt import gpt_model
    from megatron.core.transformer import multi_token_prediction

    owners = (gpt_model, multi_token_prediction) if blocks else (gpt_model,)
    with ExitStack() as patches:
        for owner in owners:
            patches.enter_context(wrapped(owner, "roll_tensor", wrap))
        yield


MENDS: dict[str, Mend] = {
    "mean-of-shard-means": counted_over_ranks,
    "mtp-mean-of-shard-means": depth_counted_over_ranks,
    "mtp-nan-without-targets": depth_without_targets,
    "mtp-packed-rolled-by-true-lengths": rolled_by_padded_lengths,
    "mtp-rolled-over-other-ranks": rolled_over_the_ranks_of_a_row,
    "hybrid-rotary-of-static-group": alone_in_a_group,
}
