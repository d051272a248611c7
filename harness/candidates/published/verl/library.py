"""verl's modules for sequence parallelism, without the ray and hydra that its packages import."""

from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from io import StringIO
from typing import Any
from unittest.mock import patch

from torch import Tensor
from torch.distributed import ProcessGroup
from transformers.integrations import flash_attention

from harness.candidates.published.wiring.packages import bare_packages

__all__ = [
    "attention_kept",
    "gather_outputs_and_unpad",
    "own_tokens",
    "patched",
    "sharing",
    "ulysses",
]

bare_packages(
    *("verl", "verl.utils", "verl.utils.dataset"),
    *("verl.models", "verl.models.transformers", "verl.plugin"),
)

from verl.models.transformers.monkey_patch import apply_monkey_patch  # noqa: E402 - only now
from verl.utils import ulysses  # noqa: E402 - only now

# The name was misspelt until 0.5.0, which kept the old one for an error message.
gather_outputs_and_unpad = getattr(
    ulysses, "gather_outputs_and_unpad", ulysses.gather_outpus_and_unpad
)


@contextmanager
def patched(model: Any, size: int) -> Iterator[None]:
    """While this lasts, a model has verl's attention for so many ranks of a sequence."""
    with attention_kept():
        with redirect_stdout(StringIO()):
            apply_monkey_patch(model, ulysses_sp_size=size)
        yield


@contextmanager
def attention_kept() -> Iterator[None]:
    """At the end, have transformers' attention as it is now."""
    name = "_flash_attention_forward"
    with patch.object(flash_attention, name, getattr(flash_attention, name)):
        yield


@contextmanager
def sharing(group: ProcessGroup) -> Iterator[None]:
    """While this lasts, the ranks of a group share a sequence; a group of one is no group."""
    ulysses.set_ulysses_sequence_parallel_group(group if group.size() > 1 else None)
    try:
        yield
    finally:
        ulysses.set_ulysses_sequence_parallel_group(None)


def own_tokens(tokens_T: Tensor, size: int) -> Tensor:
    """Return this rank's token numbers, cut as a packed row is; -1 for padding."""
    if size == 1:
        return tokens_T
    # Meanwhile they count from one, because verl pads with zeros.
    shard, *_ = ulysses.ulysses_pad_and_slice_inputs(tokens_T[None] + 1, None, size)
    tokens_L: Tensor = shard[0] - 1
    return tokens_L
