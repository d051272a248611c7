"""The release without each of its listed bugs."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import wraps
from importlib import import_module
from typing import Any
from unittest.mock import patch

from torch import Tensor

from harness.candidates.published.library import Mend

Call = Callable[..., Any]


@contextmanager
def window_where_a_row_is_longer() -> Iterator[None]:
    """The window is handed on whatever the length of a shard."""
    hf_adapter = imported("ring_flash_attn.adapters.hf_adapter")
    window: list[int | None] = [None]

    def attend(original: Call) -> Call:
        @wraps(original)
        def call(*given: Any, sliding_window: int | None = None, **named: Any) -> Any:
            window[0] = sliding_window
            return original(*given, sliding_window=sliding_window, **named)

        return call

    def ring(original: Call) -> Call:
        @wraps(original)
        def call(*given: Any, **named: Any) -> Any:
            if window[0] is not None:
                named["window_size"] = (window[0], window[0])
            return original(*given, **named)

        return call

    with (
        wrapped(hf_adapter, "flash_attention_forward", attend),
        wrapped(hf_adapter, "llama3_flash_attn_varlen_func", ring),
    ):
        yield


@contextmanager
def window_counts_the_token_itself() -> Iterator[None]:
    """flash-attn counts the keys before a query, transformers the query's own as well."""
    varlen = imported("ring_flash_attn.llama3_flash_attn_varlen")

    def less(original: Call) -> Call:
        @wraps(original)
        def call(*given: Any, window_size: tuple[int, int], **named: Any) -> Any:
            behind = window_size[0] - 1 if window_size[0] > 0 else window_size[0]
            return original(*given, window_size=(behind, window_size[1]), **named)

        return call

    with ExitStack() as patches:
        for name in ("llama3_flash_attn_varlen_forward", "llama3_flash_attn_varlen_backward"):
            patches.enter_context(wrapped(varlen, name, less))
        yield


def at_least_one_target() -> AbstractContextManager[Any]:
    """A step with nothing to learn has a loss of zero."""
    from harness.candidates.published.openrlhf import library

    def clamped(original: Call) -> Call:
        @wraps(original)
        def call(*given: Any, batch_num_tokens: Tensor, **named: Any) -> Any:
            count = batch_num_tokens + (batch_num_tokens == 0)
            return original(*given, batch_num_tokens=count, **named)

        return call

    return wrapped(library.losses, "aggregate_loss", clamped)


def mean_over_replicas() -> AbstractContextManager[Any]:
    """What is logged as the step's loss is averaged as the rest of the log."""
    from harness.candidates.published.openrlhf import sft

    def reduced(original: Call) -> Call:
        def call(self: Any, args: Any, number: int, bar: Any, logs: Any, states: Any) -> None:
            logs["loss_mean"] = self.strategy.all_reduce(logs["loss_mean"])
            original(self, args, number, bar, logs, states)

        return call

    return wrapped(sft.Trainer, "save_logs_and_checkpoints", reduced)


def weighted_once() -> AbstractContextManager[Any]:
    """Losses that are shares of the step's mean already are not weighted by tokens again."""
    from harness.candidates.published.openrlhf import ppo

    def alike(original: Call) -> Call:
        def call(self: Any, *given: Any) -> Any:
            status = original(self, *given)
            status["num_action_tokens"] = 1.0
            return status

        return call

    return wrapped(ppo.Trainer, "training_step", alike)


def imported(name: str) -> Any:
    """A module of ring-flash-attn, as the strategy would import it."""
    from harness.candidates.published.openrlhf import library

    library.ring.patch_transformers_for_ring_flash_attn()
    return import_module(name)


def wrapped(owner: Any, name: str, wrapper: Callable[[Call], Call]) -> AbstractContextManager[Any]:
    return patch.object(owner, name, wrapper(getattr(owner, name)))


MENDS: dict[str, Mend] = {
    "window-gated-on-shard": window_where_a_row_is_longer,
    "window-one-too-wide": window_counts_the_token_itself,
    "step-without-targets": at_least_one_target,
    "loss-mean-of-one-replica": mean_over_replicas,
    "policy-loss-weighted-twice": weighted_once,
}
