"""The release without each of its listed bugs."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor

from harness.candidates.published.library import Mend


@contextmanager
def mask_on_every_rank() -> Iterator[None]:
    """While this lasts, a shard without padding has a mask of ones, gathered as other masks."""
    from harness.candidates.published.skyrl import library

    module = library.patches
    original = module._ulysses_flash_attention_forward

    def forward(
        query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, *args: Any, **kwargs: Any
    ) -> Any:
        if mask is None:
            mask = torch.ones(query.shape[:2], dtype=torch.bool)
        return original(query, key, value, mask, *args, **kwargs)

    with patch.object(module, "_ulysses_flash_attention_forward", forward):
        yield


@contextmanager
def flash_where_ranks_share() -> Iterator[None]:
    """While this lasts, the model has the attention that the library patches."""
    from harness.candidates.published.skyrl import library

    original = library.ulysses.apply_monkey_patch

    def apply(model: Any, **options: Any) -> None:
        model.set_attn_implementation("flash_attention_2")
        original(model=model, **options)

    with (
        mask_on_every_rank(),
        patch.dict(library.monkey_patch.__globals__, apply_monkey_patch=apply),
    ):
        yield


def shares_summed() -> AbstractContextManager[Any]:
    """While this lasts, losses that are shares of a mean are summed."""
    from harness.candidates.published.skyrl import library

    names = library.CriticWorker.forward_backward.__globals__
    original = names["reduce_metrics"]

    def reduced(metrics: dict[str, list[float]]) -> Any:
        result = original(metrics)
        result["critic_loss"] = sum(metrics["critic_loss"])
        return result

    return patch.dict(names, reduce_metrics=reduced)


def reference_tempered() -> AbstractContextManager[Any]:
    """While this lasts, a reference takes log-probabilities as the policy does."""
    from harness.candidates.published.skyrl import library

    name = "_forward_micro_batch"
    return patch.object(library.RefWorker, name, getattr(library.PolicyWorker, name))


@contextmanager
def kl_weighed() -> Iterator[None]:
    """While this lasts, each micro-batch counts in the logged KL by its share of the rows."""
    from harness.candidates.published.skyrl import library

    names = library.PolicyWorker.forward_backward.__globals__
    reduce, take = names["reduce_metrics"], library.PolicyWorker._forward_backward_micro

    def taken(self: Any, experience: Any, weight: float, **options: Any) -> Any:
        status = take(self, experience, weight, **options)
        # That of padding is zero.
        status["policy_kl"] *= weight
        return status

    def reduced(metrics: dict[str, list[float]], **options: Any) -> Any:
        return reduce(metrics, **options) | {"policy_kl": sum(metrics["policy_kl"])}

    with (
        patch.object(library.PolicyWorker, "_forward_backward_micro", taken),
        patch.dict(names, reduce_metrics=reduced),
    ):
        yield


MENDS: dict[str, Mend] = {
    "reference-without-temperature": reference_tempered,
    "log-over-micro-batches": kl_weighed,
    "padded-mask-of-some-ranks": mask_on_every_rank,
    "sdpa-shares-nothing": flash_where_ranks_share,
    "critic-loss-over-micro-batches": shares_summed,
}
