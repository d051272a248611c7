"""The release without each of its listed bugs."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor

from harness.candidates.published.library import Mend


def attention_that_shares() -> AbstractContextManager[Any]:
    """While this lasts, a model that ranks share has the attention that the library patches."""
    from harness.candidates.published.verl import candidate, library

    released = library.patched

    @contextmanager
    def patched(model: Any, size: int) -> Iterator[None]:
        model.set_attn_implementation("flash_attention_2")
        with released(model, size):
            yield

    return patch.object(candidate, "patched", patched)


def first_tokens_masked() -> AbstractContextManager[Any]:
    """While this lasts, a row's first token is no target, neither counted nor learnt."""
    from harness.candidates.published.verl import engine

    released = engine.Engine.step

    def step(self: engine.Engine, data: Any, emit: Any) -> float:
        mask = data["loss_mask"]
        values = mask.values().clone()
        values[mask.offsets()[:-1]] = 0
        data["loss_mask"] = torch.nested.nested_tensor_from_jagged(values, mask.offsets())
        return released(self, data, emit)

    return patch.object(engine.Engine, "step", step)


def nothing_is_zero() -> AbstractContextManager[Any]:
    """While this lasts, the mean of no target is zero."""
    from harness.candidates.published.verl import engine

    released = engine.names_of_modules()["sft_loss"]

    def loss(*args: Any, **kwargs: Any) -> tuple[Tensor, Any]:
        value, metrics = released(*args, **kwargs)
        return value.nan_to_num(), metrics

    return patch.dict(engine.names_of_modules(), sft_loss=loss)


MENDS: dict[str, Mend] = {
    "sdpa-stays-local": attention_that_shares,
    "engine-first-token-counts": first_tokens_masked,
    "engine-no-target-nan": nothing_is_zero,
}
