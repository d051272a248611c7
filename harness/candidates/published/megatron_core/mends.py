"""The release without each of its listed bugs."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor
from torch import distributed as dist

from harness.candidates.published.library import Mend
from harness.candidates.published.wiring.gradients import total
from harness.candidates.published.wiring.mending import Call, wrapped
from harness.candidates.published.wiring.stand_ins import Replacing

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
    """While this lasts, a further depth's losses are divided by the count of all their ranks.

    With calculate_per_token_loss they are then multiplied by the main loss's count of all these
    ranks. Otherwise a factor makes up for the mean over them.
    """
    from megatron.core.models.gpt import gpt_model
    from megatron.core.transformer import multi_token_prediction

    def counting(released: Roll) -> Roll:
        def roll(*args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
            rolled, count = released(*args, **kwargs)
            dist.all_reduce(count, group=_ranks_of_a_row(**kwargs))
            return rolled, count

        return roll

    def around(released: Call) -> Call:
        def process(
            *, config: Any, loss_mask: Tensor, compute_language_model_loss: Call, **kwargs: Any
        ) -> Any:
            ranks = _ranks_of_a_row(**kwargs)
            factor = torch.tensor(float(ranks.size()))
            if config.calculate_per_token_loss:
                factor = total(loss_mask.sum(), ranks)

            def multiplied(labels: Tensor, logits: Tensor) -> Tensor:
                loss: Tensor = compute_language_model_loss(labels, logits) * factor
                return loss

            with wrapped(multi_token_prediction, "roll_tensor", counting):
                return released(
                    config=Replacing(config, calculate_per_token_loss=False),
                    loss_mask=loss_mask,
                    compute_language_model_loss=multiplied,
                    **kwargs,
                )

        return process

    return wrapped(gpt_model, "process_mtp_loss", around)


def rolled_by_padded_lengths() -> AbstractContextManager[Any]:
    """While this lasts, a pack is rolled by the same lengths by which it was cut."""
    from megatron.core.transformer import multi_token_prediction

    def padding(released: Roll) -> Roll:
        def roll(*args: Any, packed_seq_params: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
            ends = packed_seq_params.cu_seqlens_q_padded
            params = replace(packed_seq_params, cu_seqlens_q=ends)
            return released(*args, packed_seq_params=params, **kwargs)

        return roll

    return wrapped(multi_token_prediction, "roll_tensor", padding)


def rolled_over_the_ranks_of_a_row() -> AbstractContextManager[Any]:
    """While this lasts, a row is rolled over the ranks that share it."""
    from megatron.core.transformer import multi_token_prediction

    def choosing(released: Roll) -> Roll:
        def roll(*args: Any, cp_group: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
            ranks = _ranks_of_a_row(cp_group=cp_group, **kwargs)
            return released(*args, cp_group=ranks, **kwargs)

        return roll

    return wrapped(multi_token_prediction, "roll_tensor", choosing)


@contextmanager
def rotated_over_the_ranks_of_a_row() -> Iterator[None]:
    """While this lasts, attention rotates a row by its places on the ranks that share it."""
    from megatron.core.transformer import attention

    params: list[Any] = []

    def noting(released: Call) -> Call:
        def forward(*args: Any, packed_seq_params: Any = None, **kwargs: Any) -> Any:
            params[:] = [packed_seq_params]
            return released(*args, packed_seq_params=packed_seq_params, **kwargs)

        return forward

    def choosing(released: Call) -> Call:
        def rotate(*args: Any, cp_group: Any, **kwargs: Any) -> Any:
            ranks = _ranks_of_a_row(cp_group=cp_group, packed_seq_params=params[0])
            return released(*args, cp_group=ranks, **kwargs)

        return rotate

    with (
        wrapped(attention.Attention, "forward", noting),
        wrapped(attention, "apply_rotary_pos_emb", choosing),
    ):
        yield


def _ranks_of_a_row(*, cp_group: Any, packed_seq_params: Any, **_: Any) -> Any:
    """Return the ranks that share a row, which hybrid context parallelism chooses for each."""
    from harness.candidates.published.megatron_core import groups

    if packed_seq_params is None or packed_seq_params.local_cp_size is None:
        return cp_group
    return packed_seq_params.cp_group or groups.alone()


MENDS: dict[str, Mend] = {
    "mean-of-shard-means": counted_over_ranks,
    "mtp-mean-of-shard-means": depth_counted_over_ranks,
    "mtp-packed-rolled-by-true-lengths": rolled_by_padded_lengths,
    "mtp-rolled-over-other-ranks": rolled_over_the_ranks_of_a_row,
    "hybrid-rotary-of-static-group": rotated_over_the_ranks_of_a_row,
}
